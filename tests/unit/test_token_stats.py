"""SharedTokenStats: over a RawArray, over AdmissionCounters with a token_limit, over nothing."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest

import support
from gatecount import AdmissionCounters, NotOwner, SharedAdmissionStats, SharedTokenStats

CLIENTS = 3
LIMIT = 100

BUFFERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: RawArray("q", SharedAdmissionStats.num_counters(CLIENTS)),
    "hard": lambda: AdmissionCounters(CLIENTS, limit=10, token_limit=LIMIT),
}


@pytest.fixture(params=BUFFERS)
def buffer(request: pytest.FixtureRequest) -> Any:
    return BUFFERS[request.param]()


def tokens(buffer: Any, index: int = 0) -> SharedTokenStats:
    return SharedTokenStats({"mp_admission_counters": buffer}, CLIENTS, index)


def requests(buffer: Any, index: int = 0) -> SharedAdmissionStats:
    return SharedAdmissionStats({"mp_admission_counters": buffer}, CLIENTS, index)


def test_only_the_first_that_reaches_the_limit_may_pass_it(buffer: Any) -> None:
    first, second = tokens(buffer, 0), tokens(buffer, 1)
    assert first.try_reserve(LIMIT - 1, limit=LIMIT)
    assert second.try_reserve(10 * LIMIT, limit=LIMIT)
    assert not first.try_reserve(1, limit=LIMIT)
    assert first.get_num_tokens() == second.get_num_tokens() == 11 * LIMIT - 1


def test_one_long_prompt_always_fits_into_nothing(buffer: Any) -> None:
    assert tokens(buffer).try_reserve(50 * LIMIT, limit=LIMIT)


def test_what_is_given_back_makes_room_once_it_is_below_the_limit(buffer: Any) -> None:
    stats = tokens(buffer)
    assert stats.try_reserve(LIMIT + 50, limit=LIMIT)
    stats.release(50)
    assert not stats.try_reserve(1, limit=LIMIT)
    stats.release(1)
    assert stats.try_reserve(1, limit=LIMIT)


def test_a_limit_of_0_refuses_all_and_a_smaller_one_bounds_the_call(buffer: Any) -> None:
    stats = tokens(buffer)
    assert not stats.try_reserve(1, limit=0)
    assert stats.try_reserve(20, limit=50)
    assert not stats.try_reserve(1, limit=20)
    assert stats.try_reserve(1, limit=21)


def test_tokens_and_requests_of_one_slot_are_counted_apart(buffer: Any) -> None:
    count, spent = requests(buffer, 2), tokens(buffer, 2)
    assert count.try_reserve(2, limit=10)
    assert spent.try_reserve(70, limit=LIMIT)
    count.set_num_requests(2)
    assert (count.get_num_requests(), spent.get_num_tokens()) == (2, 70)
    spent.release(70)
    assert (count.get_num_requests(), spent.get_num_tokens()) == (2, 0)
    count.release(2)
    assert (count.get_num_requests(), spent.get_num_tokens()) == (0, 0)


def test_more_than_is_held_is_not_given_back(buffer: Any) -> None:
    stats, other = tokens(buffer, 0), tokens(buffer, 1)
    assert other.try_reserve(5, limit=LIMIT)
    assert stats.try_reserve(3, limit=LIMIT)
    with pytest.raises(NotOwner, match="n is 4, but this process has 3"):
        stats.release(4)
    assert stats.get_num_tokens() == 8


def test_a_raw_array_shows_tokens_in_the_second_word_of_a_line() -> None:
    buffer = BUFFERS["plain"]()
    assert tokens(buffer, 1).try_reserve(7, limit=LIMIT)
    assert [i for i, word in enumerate(buffer) if word] == [9]
    assert buffer[9] == 7


def test_tokens_in_flight_and_the_limit_are_live() -> None:
    buffer = AdmissionCounters(CLIENTS, limit=10, token_limit=LIMIT)
    stats = tokens(buffer)
    assert (buffer.token_limit, buffer.tokens_in_flight) == (LIMIT, 0)
    assert stats.exact
    assert stats.try_reserve(30)
    buffer.token_limit = 30
    assert (buffer.token_limit, buffer.tokens_in_flight) == (30, 30)
    assert not stats.try_reserve(1)
    assert list(buffer) == [0] * len(buffer), "the visible words are those of requests"


def test_counters_without_a_cap_of_tokens_say_so() -> None:
    buffer = AdmissionCounters(CLIENTS, limit=10)
    assert buffer.token_limit is None
    for use in (
        lambda: tokens(buffer),
        lambda: buffer.tokens_in_flight,
        lambda: setattr(buffer, "token_limit", 5),
    ):
        with pytest.raises(ValueError, match="no cap of tokens"):
            use()


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (2**32, ValueError), ("9", TypeError)])
def test_a_wrong_token_limit_is_named(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="token_limit"):
        AdmissionCounters(CLIENTS, limit=10, token_limit=limit)


def test_without_a_buffer_tokens_are_counted_by_each_object_alone() -> None:
    one, other = SharedTokenStats({}, 1, 0), SharedTokenStats({}, 1, 0)
    assert not one.exact
    assert one.try_reserve(LIMIT, limit=LIMIT)
    assert not one.try_reserve(1, limit=LIMIT)
    assert other.get_num_tokens() == 0


def test_32_bits_hold_every_total_that_is_granted() -> None:
    buffer = AdmissionCounters(CLIENTS, limit=1, token_limit=10)
    stats = tokens(buffer)
    assert stats.try_reserve(9)
    assert not stats.try_reserve(2**32 - 9)
    assert stats.try_reserve(2**32 - 10)
    assert buffer.tokens_in_flight == 2**32 - 1


def hold_tokens(buffer: Any, index: int) -> None:
    assert tokens(buffer, index).try_reserve(500, limit=LIMIT)
    support.wait_until(lambda: False)


def test_the_tokens_of_a_killed_process_come_back() -> None:
    buffer = AdmissionCounters(CLIENTS, limit=10, token_limit=LIMIT)
    with support.Crew("spawn") as crew:
        holder = crew.start(hold_tokens, buffer, 1)
        support.wait_until(lambda: buffer.tokens_in_flight == 500)
        assert not tokens(buffer, 0).try_reserve(1)
        crew.kill(holder)
        support.wait_until(lambda: tokens(buffer, 0).try_reserve(LIMIT))
    assert buffer.tokens_in_flight == LIMIT
