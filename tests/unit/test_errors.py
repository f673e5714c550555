"""Errors: one base, leaves named by their cause, each with its fields, whole after a pickle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import gatecount
from gatecount import (
    GateClosed,
    GatecountError,
    GateExists,
    GateFull,
    GateNotFound,
    LayoutMismatch,
    NotOwner,
    SlotsExhausted,
    UnknownCap,
)

CASES: list[tuple[GatecountError, dict[str, Any], tuple[type[Exception], ...]]] = [
    (
        GateFull("tokens", 10, 8, 3),
        {"cap": "tokens", "limit": 10, "in_flight": 8, "requested": 3},
        (),
    ),
    (GateNotFound("api", "there is none"), {"name": "api"}, (FileNotFoundError,)),
    (GateNotFound(None, "no name was given"), {"name": None}, (FileNotFoundError,)),
    (GateExists("api"), {"name": "api"}, (FileExistsError,)),
    (
        LayoutMismatch("/dev/shm/x", "is a directory"),
        {"name": "/dev/shm/x", "reason": "is a directory"},
        (ValueError,),
    ),
    (
        UnknownCap("token", ("requests", "tokens")),
        {"cap": "token", "caps": ("requests", "tokens")},
        (KeyError, ValueError),
    ),
    (SlotsExhausted(16), {"slots": 16}, ()),
    (NotOwner("not yours", requested=3, held=2), {"requested": 3, "held": 2}, (ValueError,)),
    (NotOwner("a slot of another"), {"requested": None, "held": None}, (ValueError,)),
    (GateClosed(), {}, (ValueError,)),
]


@pytest.mark.parametrize(("error", "fields", "bases"), CASES, ids=lambda value: repr(value)[:30])
class TestEveryError:
    def test_is_a_gatecount_error_and_the_built_in_one_expected(
        self, error: GatecountError, fields: dict[str, Any], bases: tuple[type[Exception], ...]
    ) -> None:
        assert isinstance(error, GatecountError)
        for base in bases:
            assert isinstance(error, base)
            with pytest.raises(base):
                raise error

    def test_carries_its_fields(
        self, error: GatecountError, fields: dict[str, Any], bases: tuple[type[Exception], ...]
    ) -> None:
        for name, value in fields.items():
            assert getattr(error, name) == value

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_is_whole_after_a_pickle(
        self,
        error: GatecountError,
        fields: dict[str, Any],
        bases: tuple[type[Exception], ...],
        protocol: int,
    ) -> None:
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert str(again) == str(error)
        for name, value in fields.items():
            assert getattr(again, name) == value

    def test_is_whole_after_a_copy(
        self, error: GatecountError, fields: dict[str, Any], bases: tuple[type[Exception], ...]
    ) -> None:
        for again in (copy.copy(error), copy.deepcopy(error)):
            assert (type(again), str(again)) == (type(error), str(error))


def test_all_of_them_are_here() -> None:
    public = {
        value
        for value in vars(gatecount).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert {type(error) for error, *_ in CASES} | {GatecountError} <= public
    assert all(issubclass(error, GatecountError) for error in public)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (GateFull("tokens", 10, 8, 3), ["'tokens'", "8 of 10", "3"]),
        (GateExists("api"), ["'api'", "Gate.open('api')", "exist_ok=True", "Gate.remove('api')"]),
        (UnknownCap("token", ("requests", "tokens")), ["'token'", "'requests', 'tokens'"]),
        (SlotsExhausted(16), ["all 16 slots", "slots="]),
        (GateClosed(), ["closed", "open it again"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_says_what_is_wrong_and_what_to_do(error: GatecountError, says: list[str]) -> None:
    for words in says:
        assert words in str(error)
