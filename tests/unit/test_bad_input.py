"""Arguments of a wrong type or range: each is refused by name, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest

from gatecount import AdmissionCounters, AtomicArray, Gate, SharedAdmissionStats, UnknownCap

MOST = 2**32 - 1
HUGE = 10**5000
"""More digits than Python is willing to print."""


class Indexless:
    __index__ = None


class Liar:
    def __index__(self) -> Any:
        return 1.5


NO_INTS: list[Any] = [True, False, 1.0, 1.5, float("nan"), None, "1", b"1", [1], {}, 1j, int, object()]
NO_INTS += [Indexless(), Liar()]
OUT_OF_UNITS = [-1, -(2**32), 2**32, 2**63, 2**64, -(2**64), 10**30, HUGE, -HUGE]


def named(value: object) -> str:
    """Name a parameter for the test report, without printing what cannot be printed."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "huge" if value > 0 else "-huge"
    if isinstance(value, (Indexless, Liar)) or type(value) is object:
        return type(value).__name__
    return repr(value)[:30]


bad_ints = pytest.mark.parametrize("value", [*NO_INTS, *OUT_OF_UNITS], ids=named)


def refused(argument: str, value: object, call: Callable[[], object]) -> None:
    """Expect the error of a wrong type or range, with the argument's name in its message."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    with pytest.raises(ValueError if is_int else TypeError) as caught:
        call()
    assert str(caught.value).startswith(f"{argument} must be ")
    assert len(str(caught.value)) < 500


# A gate's calls


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    limits = {"requests": 10, "tokens": 100}
    with Gate.create(limits=limits, slots=2, mode=request.param) as made:
        assert made.try_acquire(3)
        assert made.try_acquire(40, cap="tokens")
        before = made.statistics()
        yield made
        after = made.statistics()
        assert after.caps == before.caps
        assert [slot.held for slot in after.slots] == [slot.held for slot in before.slots]


CALLS: dict[str, tuple[str, Callable[[Gate, Any], object]]] = {
    "try_acquire(n)": ("n", lambda gate, n: gate.try_acquire(n)),
    "release(n)": ("n", lambda gate, n: gate.release(n)),
    "admit(requests)": ("requests", lambda gate, n: gate.admit(requests=n)),
    "admit(tokens)": ("tokens", lambda gate, n: gate.admit(requests=1, tokens=n)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [*NO_INTS, *OUT_OF_UNITS, 0], ids=named)
def test_a_number_of_units_must_be_a_positive_int(gate: Gate, call: str, value: Any) -> None:
    argument, run = CALLS[call]
    refused(argument, value, lambda: run(gate, value))


@bad_ints
def test_a_new_limit_must_be_an_int_from_0(gate: Gate, value: Any) -> None:
    refused("limit", value, lambda: gate.set_limit("requests", value))


CAP_CALLS: dict[str, Callable[[Gate, Any], object]] = {
    "try_acquire": lambda gate, cap: gate.try_acquire(1, cap=cap),
    "release": lambda gate, cap: gate.release(1, cap=cap),
    "held": lambda gate, cap: gate.held(cap=cap),
    "counters": lambda gate, cap: gate.counters(cap=cap),
    "set_limit": lambda gate, cap: gate.set_limit(cap, 5),
}


@pytest.mark.parametrize("call", CAP_CALLS)
@pytest.mark.parametrize("cap", [0, 1, True, b"requests", 1.0, ["requests"], ("requests",), object])
def test_a_cap_must_be_named_by_a_str(gate: Gate, call: str, cap: Any) -> None:
    with pytest.raises(TypeError, match="cap"):
        CAP_CALLS[call](gate, cap)


@pytest.mark.parametrize("call", CAP_CALLS)
@pytest.mark.parametrize("cap", ["", "Requests", "requests ", "request", "a/b", "\0", "x" * 10_000])
def test_a_cap_must_exist(gate: Gate, call: str, cap: str) -> None:
    with pytest.raises(UnknownCap, match="this gate has 'requests', 'tokens'") as caught:
        CAP_CALLS[call](gate, cap)
    assert caught.value.cap == cap
    assert caught.value.caps == ("requests", "tokens")


def test_the_cap_of_a_new_limit_must_be_named(gate: Gate) -> None:
    unnamed: Any = None
    with pytest.raises(TypeError, match="cap"):
        gate.set_limit(unnamed, 5)


@pytest.mark.parametrize("cap", ["jobs", "self", "n"])
def test_every_cap_of_an_admission_must_exist(gate: Gate, cap: str) -> None:
    with pytest.raises((UnknownCap, TypeError), match=cap):
        gate.admit(requests=1, **{cap: 1})


# Creation

CREATIONS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "Gate.create(slots)": ("slots", lambda value: Gate.create(limits={"a": 1}, slots=value)),
    "Gate.create(limits)": ("limits['a']", lambda value: Gate.create(limits={"a": value})),
    "Gate.create(permissions)": (
        "permissions",
        lambda value: Gate.create(limits={"a": 1}, permissions=value),
    ),
    "AdmissionCounters(client_count)": ("client_count", lambda value: AdmissionCounters(value, 1)),
    "AdmissionCounters(limit)": ("limit", lambda value: AdmissionCounters(1, value)),
    "SharedAdmissionStats(client_count)": (
        "client_count",
        lambda value: SharedAdmissionStats({}, value, 0),
    ),
    "SharedAdmissionStats(client_index)": (
        "client_index",
        lambda value: SharedAdmissionStats({}, 4, value),
    ),
    "num_counters(client_count)": ("client_count", SharedAdmissionStats.num_counters),
}


@pytest.mark.parametrize("creation", CREATIONS)
@bad_ints
def test_a_number_given_at_creation_must_be_an_int_in_range(creation: str, value: Any) -> None:
    argument, create = CREATIONS[creation]
    refused(argument, value, lambda: create(value))


@pytest.mark.parametrize(
    ("creation", "value"),
    [
        ("Gate.create(slots)", 0),
        ("Gate.create(slots)", 1024),
        ("Gate.create(permissions)", 0o1000),
        ("AdmissionCounters(client_count)", 0),
        ("AdmissionCounters(client_count)", 1024),
        ("SharedAdmissionStats(client_count)", 0),
        ("SharedAdmissionStats(client_count)", 1024),
        ("SharedAdmissionStats(client_index)", 4),
        ("num_counters(client_count)", 0),
        ("num_counters(client_count)", 1024),
    ],
)
def test_the_first_number_out_of_range_is_refused(creation: str, value: int) -> None:
    argument, create = CREATIONS[creation]
    refused(argument, value, lambda: create(value))


@pytest.mark.parametrize("value", [value for value in NO_INTS if value not in ([1], {})], ids=named)
def test_an_array_takes_a_length_or_values(value: Any) -> None:
    refused("n_or_values", value, lambda: AtomicArray(value))


@pytest.mark.parametrize("value", [-1, 2**40 + 1, 2**63, 2**64, 10**30, HUGE, -HUGE], ids=named)
def test_the_length_of_an_array_must_be_in_range(value: int) -> None:
    refused("n_or_values", value, lambda: AtomicArray(value))


@pytest.mark.parametrize(
    ("values", "error"),
    [([1, "2"], TypeError), ([1.0], TypeError), ([None], TypeError), ([2**63], OverflowError)],
    ids=str,
)
def test_the_values_of_an_array_must_be_words(values: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        AtomicArray(values)


@pytest.mark.parametrize("limits", [None, 10, "requests", ["requests"], [("requests", 1)], {"a"}])
def test_limits_must_be_a_mapping(limits: Any) -> None:
    with pytest.raises(TypeError, match="limits must be a mapping"):
        Gate.create(limits=limits)


@pytest.mark.parametrize("count", [0, 33, 1000])
def test_limits_must_name_1_to_32_caps(count: int) -> None:
    with pytest.raises(ValueError, match=f"limits must name 1 to 32 caps, not {count}"):
        Gate.create(limits={f"cap{i}": 1 for i in range(count)})


@pytest.mark.parametrize(
    ("cap", "error"),
    [
        (1, TypeError),
        (None, TypeError),
        (b"requests", TypeError),
        (True, TypeError),
        ("", ValueError),
        ("x" * 32, ValueError),
        ("a/b", ValueError),
        ("a\0b", ValueError),
        ("a b", ValueError),
        ("a\n", ValueError),
        (".a", ValueError),
        ("-a", ValueError),
        ("über", ValueError),
        ("\ud800", ValueError),
    ],
    ids=repr,
)
def test_the_name_of_a_cap_must_be_short_and_plain(cap: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="the name of a cap must be"):
        Gate.create(limits={"requests": 1, cap: 1})


def test_the_longest_name_of_a_cap_is_kept_whole() -> None:
    with Gate.create(limits={"x" * 31: 3}) as gate:
        assert gate.try_acquire(3, cap="x" * 31)
        assert list(gate.statistics().caps) == ["x" * 31]


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("", ValueError),
        ("HARD", ValueError),
        ("plain", ValueError),
        ("exact", ValueError),
        (None, TypeError),
        (1, TypeError),
        (b"hard", TypeError),
        (True, TypeError),
        (["hard"], TypeError),
    ],
)
def test_the_mode_must_be_one_of_two(mode: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="mode must be"):
        Gate.create(limits={"a": 1}, mode=mode)


def test_an_anonymous_gate_cannot_exist_already() -> None:
    with pytest.raises(ValueError, match="exist_ok needs a name"):
        Gate.create(limits={"a": 1}, exist_ok=True)


# The host's side


@pytest.fixture(params=["hard", "plain"])
def stats(request: pytest.FixtureRequest) -> Iterator[SharedAdmissionStats]:
    hard = AdmissionCounters(client_count=2, limit=10)
    buffer: Any = hard if request.param == "hard" else RawArray("q", 16)
    made = SharedAdmissionStats({"mp_admission_counters": buffer}, 2, 0)
    made.set_num_requests(2)
    assert made.try_reserve(1, limit=10)
    yield made
    assert list(buffer) == [3] + [0] * 15
    assert made.get_num_requests() == 3
    if made.exact:
        assert hard.in_flight == 3
    made.set_num_requests(3)  # the one that was reserved: still known as such
    assert made.get_num_requests() == 3


HOST_CALLS: dict[str, tuple[str, Callable[[SharedAdmissionStats, Any], object]]] = {
    "set_num_requests(count)": ("count", lambda stats, value: stats.set_num_requests(value)),
    "try_reserve(n)": ("n", lambda stats, value: stats.try_reserve(value, limit=10)),
    "release(n)": ("n", lambda stats, value: stats.release(value)),
}


@pytest.mark.parametrize("call", HOST_CALLS)
@bad_ints
def test_a_host_counts_in_ints(stats: SharedAdmissionStats, call: str, value: Any) -> None:
    argument, run = HOST_CALLS[call]
    refused(argument, value, lambda: run(stats, value))


@pytest.mark.parametrize("call", ["try_reserve(n)", "release(n)"])
def test_a_host_reserves_and_releases_at_least_one(stats: SharedAdmissionStats, call: str) -> None:
    argument, run = HOST_CALLS[call]
    refused(argument, 0, lambda: run(stats, 0))


@pytest.mark.parametrize("value", [v for v in [*NO_INTS, *OUT_OF_UNITS] if v is not None], ids=named)
def test_the_limit_of_one_call_must_be_an_int_from_0(stats: SharedAdmissionStats, value: Any) -> None:
    refused("limit", value, lambda: stats.try_reserve(1, limit=value))


@bad_ints
def test_the_limit_of_a_buffer_must_be_an_int_from_0(value: Any) -> None:
    buffer = AdmissionCounters(client_count=1, limit=7)

    def change() -> None:
        buffer.limit = value

    refused("limit", value, change)
    assert buffer.limit == 7


@pytest.mark.parametrize("config", [None, 1, "x", [], [("mp_admission_counters", None)]], ids=repr)
def test_a_client_config_must_be_a_mapping(config: Any) -> None:
    with pytest.raises(TypeError, match="client_config must be a mapping"):
        SharedAdmissionStats(config, 1, 0)


class Strided(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __getitem__(self, key: str) -> Any:
        if key != "mp_admission_counters":
            raise KeyError(key)
        return self.buffer

    def __iter__(self) -> Iterator[str]:
        return iter(["mp_admission_counters"])

    def __len__(self) -> int:
        return 1


def test_a_client_config_may_be_any_mapping() -> None:
    buffer = AdmissionCounters(client_count=1, limit=7)
    assert SharedAdmissionStats(Strided(buffer), 1, 0).exact
