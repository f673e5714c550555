"""Admission: charged once, all or nothing, one cap without touching the other, over all servers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from gatecount._core import MAX_LIMIT
from gatecount.frontend.errors import AdmissionRefused, MaxQueuedTokensError, QueueOverflowError
from host.admitting import (
    LIMIT,
    SERVERS,
    TOKENS,
    admits,
    both,
    buffer_of,
    in_flight,
    shared,
)
from support import Crew, Remote, wait_until


@pytest.fixture(params=["hard", "approximate", "local"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the first of four servers is handed, with shared counters and without."""
    made: dict[str, Any] = {"client_count": SERVERS, "client_index": 0}
    if request.param != "local":
        made["mp_admission_counters"] = buffer_of(request.param)
    return made


# --- charged once ---------------------------------------------------------------------------------


def test_the_second_test_finds_what_the_first_has_reserved(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(3, "r")
    assert in_flight(admission) == (3, 0)
    admission.check_admission(3, "r")
    admission.check_admission(3, "r", 7)
    admission.check_admission(3, "r", 7)
    admission.check_admission(3, "r")
    assert in_flight(admission) == (3, 21)
    admission.release("r")
    assert in_flight(admission) == (0, 0)


def test_the_second_test_passes_though_everything_is_full_by_then(config: dict[str, Any]) -> None:
    admission = both(config, limit=3)
    admission.check_admission(3, "r")
    with pytest.raises(QueueOverflowError):
        admission.check_admission(1, "other")
    admission.check_admission(3, "r", 5)
    assert in_flight(admission) == (3, 15)


# --- all or nothing -------------------------------------------------------------------------------


def test_three_samples_against_a_cap_of_three_with_one_in_flight_are_refused_whole(
    config: dict[str, Any],
) -> None:
    admission = both(config, limit=3)
    admission.check_admission(1, "first")
    with pytest.raises(QueueOverflowError) as refused:
        admission.check_admission(3, "r")
    assert (refused.value.limit, refused.value.current, refused.value.requested) == (3, 1, 3)
    assert in_flight(admission) == (1, 0)
    assert not admission.holds("r")
    admission.release("first")
    admission.check_admission(3, "r")
    assert in_flight(admission) == (3, 0)


def test_a_refusal_says_busy_and_to_try_again_and_survives_a_pickle(config: dict[str, Any]) -> None:
    admission = both(config, limit=1)
    admission.check_admission(1, "first", 100)
    with pytest.raises(
        QueueOverflowError, match=r"busy, try again .*max_num_queued_reqs = 1"
    ) as refused:
        admission.check_admission(2)
    admission.max_num_queued_reqs = LIMIT
    with pytest.raises(MaxQueuedTokensError, match=r"busy, try again .*max_num_queued_tokens = 100"):
        admission.check_admission(1)
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (type(copy), str(copy), copy.cap) == (QueueOverflowError, str(refused.value), "requests")
    assert (copy.limit, copy.current, copy.requested) == (1, 1, 2)


def test_without_an_id_it_only_looks(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission()
    admission.check_admission(LIMIT, prompt_tokens=5)
    assert in_flight(admission) == (0, 0)
    with pytest.raises(QueueOverflowError):
        admission.check_admission(LIMIT + 1)
    admission.check_admission(1, "r", TOKENS)
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission()
    with pytest.raises(QueueOverflowError):
        admission.check_admission(LIMIT)
    assert in_flight(admission) == (1, TOKENS)


def test_a_look_alone_gives_the_places_of_a_dead_server_back() -> None:
    buffer = buffer_of("hard")
    with Crew("fork") as crew:
        dead = Remote(crew, shared, buffer, 1)
        dead.call("check_admission", LIMIT, "r")
        admission = shared(buffer, 0)
        with pytest.raises(QueueOverflowError):
            admission.check_admission()
        dead.kill()
        wait_until(lambda: admits(admission))
    assert in_flight(admission) == (0, 0)


def test_one_request_passes_the_token_limit_by_n_times_its_prompt(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(3, "r", TOKENS + 1)
    assert in_flight(admission) == (3, 3 * (TOKENS + 1))
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission(1, "next", 1)


# --- two caps -------------------------------------------------------------------------------------


def test_a_request_that_the_token_cap_refuses_leaves_the_request_cap_as_it_was(
    config: dict[str, Any],
) -> None:
    admission = both(config)
    admission.check_admission(1, "second", None)
    admission.check_admission(1, "long", TOKENS)
    assert in_flight(admission) == (2, TOKENS)
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission(4, "at the first test")
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission(4, "at both at once", 5)
    assert in_flight(admission) == (2, TOKENS)
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission(1, "second", 5)
    assert in_flight(admission) == (1, TOKENS)
    assert not admission.holds("second")
    admission.release("second")
    assert in_flight(admission) == (1, TOKENS)


def test_a_request_that_the_request_cap_refuses_leaves_the_token_cap_as_it_was(
    config: dict[str, Any],
) -> None:
    admission = both(config)
    admission.check_admission(LIMIT, "all", 1)
    with pytest.raises(QueueOverflowError):
        admission.check_admission(1, "r", 5)
    assert in_flight(admission) == (LIMIT, LIMIT)


def test_where_both_caps_are_full_the_request_cap_refuses(config: dict[str, Any]) -> None:
    admission = both(config, limit=1)
    admission.check_admission(1, "r", TOKENS)
    for arguments in ((1,), (1, "other"), (1, "other", 3)):
        with pytest.raises(QueueOverflowError):
            admission.check_admission(*arguments)


def test_the_incoming_prompt_is_not_added_so_one_long_one_always_runs(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(1, "short", TOKENS - 1)
    admission.check_admission(1, "long", 500_000)
    assert in_flight(admission) == (2, TOKENS - 1 + 500_000)
    with pytest.raises(MaxQueuedTokensError) as refused:
        admission.check_admission(1, "next")
    assert (refused.value.limit, refused.value.current) == (TOKENS, TOKENS - 1 + 500_000)
    admission.prefilled("long")
    admission.check_admission(1, "next", 1)
    assert in_flight(admission) == (3, TOKENS)


def test_eight_long_prompts_that_all_passed_the_first_test_are_charged_at_the_second(
    config: dict[str, Any],
) -> None:
    admission = both(config)
    for number in range(8):
        admission.check_admission(1, str(number))
    admission.check_admission(1, "0", 500_000)
    for number in range(1, 8):
        with pytest.raises(MaxQueuedTokensError):
            admission.check_admission(1, str(number), 500_000)
    assert in_flight(admission) == (1, 500_000)


def test_a_prompt_without_tokens_is_tested_and_charged_nothing(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(2, "empty", 0)
    assert in_flight(admission) == (2, 0)
    admission.prefilled("empty")
    admission.check_admission(1, "long", TOKENS)
    with pytest.raises(MaxQueuedTokensError):
        admission.check_admission(1, "another", 0)
    admission.release("empty")
    assert in_flight(admission) == (1, TOKENS)


def test_the_tokens_of_each_sample_come_back_once(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(2, "r", 7)
    for left in (7, 0, 0):
        admission.prefilled("r")
        assert in_flight(admission) == (2, left)
    admission.prefilled("unknown")
    admission.release("r")
    admission.prefilled("r")
    assert in_flight(admission) == (0, 0)


def test_a_release_of_what_was_refused_released_or_never_there_does_nothing(
    config: dict[str, Any],
) -> None:
    admission = both(config)
    admission.check_admission(LIMIT, "r", 1)
    with pytest.raises(QueueOverflowError):
        admission.check_admission(1, "refused")
    admission.release("refused")
    admission.release("never there")
    assert in_flight(admission) == (LIMIT, LIMIT)
    admission.release("r")
    admission.release("r")
    assert in_flight(admission) == (0, 0)


@pytest.mark.parametrize(("limit", "tokens"), [(0, TOKENS), (LIMIT, 0)])
def test_a_limit_of_0_refuses_everything(config: dict[str, Any], limit: int, tokens: int) -> None:
    admission = both(config, limit, tokens)
    for arguments in ((1,), (1, "r"), (1, "r", 0), (1, "r", 5)):
        with pytest.raises(AdmissionRefused):
            admission.check_admission(*arguments)
    assert in_flight(admission) == (0, 0)


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -1, MAX_LIMIT + 1, 10**30])
def test_a_number_of_samples_out_of_range_is_refused_and_changes_nothing(
    config: dict[str, Any], n: int
) -> None:
    admission = both(config)
    for request_id in (None, "r"):
        with pytest.raises(ValueError, match=f"n must be from 1 to .*, not {n}"):
            admission.check_admission(n, request_id)
    assert in_flight(admission) == (0, 0)


@pytest.mark.parametrize("value", [1.0, "1", True, [1], float("nan")])
def test_what_is_no_integer_is_refused_and_changes_nothing(config: dict[str, Any], value: Any) -> None:
    admission = both(config)
    with pytest.raises(TypeError, match="n must be an int"):
        admission.check_admission(value, "r")
    with pytest.raises(TypeError, match="prompt_tokens must be an int"):
        admission.check_admission(1, "r", value)
    with pytest.raises(TypeError, match="max_num_queued_reqs must be an int"):
        both(config, value)
    with pytest.raises(TypeError, match="max_num_queued_tokens must be an int"):
        both(config, LIMIT, value)
    assert in_flight(admission) == (0, 0)


def test_a_number_of_tokens_out_of_range_is_refused_and_changes_nothing(config: dict[str, Any]) -> None:
    admission = both(config)
    for n, tokens in ((1, -1), (1, MAX_LIMIT + 1), (2, MAX_LIMIT), (1, 10**30)):
        with pytest.raises(ValueError, match="prompt_tokens must be from 0"):
            admission.check_admission(n, "r", tokens)
    assert in_flight(admission) == (0, 0)


def test_an_id_stands_for_one_request_of_one_size(config: dict[str, Any]) -> None:
    admission = both(config)
    admission.check_admission(2, "r", 5)
    with pytest.raises(ValueError, match="n is 3, but request 'r' is charged with n = 2"):
        admission.check_admission(3, "r")
    with pytest.raises(ValueError, match="prompt_tokens is 6, but request 'r' is charged with"):
        admission.check_admission(2, "r", 6)
    assert in_flight(admission) == (2, 10)


def test_a_very_large_n_is_refused_by_the_cap_and_by_nothing_else(config: dict[str, Any]) -> None:
    admission = both(config)
    with pytest.raises(QueueOverflowError):
        admission.check_admission(MAX_LIMIT, "r")
    assert in_flight(admission) == (0, 0)
