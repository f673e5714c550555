"""Admission over several server processes: exact where the counters are, and true after a death."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gatecount import AdmissionCounters, NotOwner, SharedTokenStats
from gatecount._core import MAX_LIMIT
from gatecount.frontend.admission import Admission
from gatecount.frontend.errors import AdmissionRefused, MaxQueuedTokensError, QueueOverflowError
from host.admitting import (
    LIMIT,
    SERVERS,
    TOKENS,
    Holder,
    admits,
    both,
    buffer_of,
    burst,
    config_of,
    fill_with_prompts,
    in_flight,
    shared,
)
from support import DEADLINE, Crew, Remote, wait_until


@pytest.fixture
def forked() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_burst_of_300_against_166_admits_exactly_166_though_each_is_tested_twice(method: str) -> None:
    buffer = buffer_of("hard", 166)
    with Crew(method) as crew:
        ours, theirs = crew.context.Pipe()
        start, tested = crew.context.Barrier(SERVERS), crew.context.Barrier(SERVERS)
        for index in range(SERVERS):
            crew.start(burst, start, tested, theirs, config_of(buffer, index), 75)
        crew.join()
        outcomes = [ours.recv() for _ in range(SERVERS)]
    assert sum(unfinished for unfinished, _ in outcomes) == 166
    assert max(seen for _, seen in outcomes) == 166


def prompts_admitted(kind: str, length: int) -> int:
    """Return how many of as many prompts as fit four servers admit together to a cap of 1,000 tokens."""
    buffer = buffer_of(kind, MAX_LIMIT, 1000)
    with Crew("fork") as crew:
        start, done = crew.context.Barrier(SERVERS), crew.context.Barrier(SERVERS + 1)
        for index in range(SERVERS):
            crew.start(fill_with_prompts, start, done, config_of(buffer, index), length)
        wait_until(lambda: done.n_waiting == SERVERS)
        tokens = SharedTokenStats(config_of(buffer, 0), SERVERS, 0).get_num_tokens()
        done.wait(DEADLINE)
        crew.join()
    assert tokens % length == 0
    return int(tokens // length)


def test_over_four_servers_the_exact_token_cap_stops_at_the_first_admission_that_reached_it() -> None:
    for length in (1, 3, 7, 100, 333, 5000):
        assert prompts_admitted("hard", length) == -(-1000 // length)


def test_over_four_servers_the_approximate_token_cap_has_at_most_one_prompt_more_for_each_other() -> (
    None
):
    for length in (1, 7, 333, 5000):
        exact = -(-1000 // length)
        assert exact <= prompts_admitted("approximate", length) <= exact + SERVERS - 1


def test_without_shared_counters_the_caps_bound_each_server_alone() -> None:
    servers = [both({"client_count": SERVERS, "client_index": i}) for i in range(SERVERS)]
    for admission in servers:
        admission.check_admission(LIMIT, "r", TOKENS)
        assert in_flight(admission) == (LIMIT, LIMIT * TOKENS)
        assert not admission.exact


def test_a_cap_that_is_not_set_refuses_nothing() -> None:
    neither = Admission({"client_count": SERVERS, "client_index": 0})
    neither.check_admission(1_000_000, "r", 1000)
    assert in_flight(neither) == (1_000_000, 1_000_000_000)
    requests = both({"client_count": 1, "client_index": 0}, LIMIT, None)
    requests.check_admission(LIMIT, "r", 1_000_000)
    tokens = both({"client_count": 1, "client_index": 0}, None, TOKENS)
    tokens.check_admission(1_000_000, "r", 0)
    shared_with_tokens_alone = both(config_of(buffer_of("hard", MAX_LIMIT), 0), None, 0)
    with pytest.raises(MaxQueuedTokensError):
        shared_with_tokens_alone.check_admission()


def test_exact_counters_without_a_token_limit_leave_an_unset_token_cap_to_this_server() -> None:
    admission = Admission(
        {
            "client_count": 1,
            "client_index": 0,
            "mp_admission_counters": AdmissionCounters(1, LIMIT),
        },
        max_num_queued_reqs=LIMIT,
    )
    admission.check_admission(1, "r", 1_000_000)
    assert in_flight(admission) == (1, 1_000_000)
    assert admission.exact


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [((LIMIT, "r"), QueueOverflowError), ((1, "r", TOKENS), MaxQueuedTokensError)],
)
def test_what_a_killed_server_held_lets_the_others_in_again_before_anybody_reclaims(
    forked: Crew, arguments: tuple[Any, ...], refusal: type[AdmissionRefused]
) -> None:
    buffer = buffer_of("hard")
    admission, victim = shared(buffer, 0), Remote(forked, Holder, config_of(buffer, 1), LIMIT, TOKENS)
    victim.call("check_admission", *arguments)
    with pytest.raises(refusal):
        admission.check_admission(1, "mine")
    victim.kill()
    wait_until(lambda: admits(admission, 1, "mine"))
    assert (buffer.in_flight, buffer.tokens_in_flight) == (1, 0)


def test_a_server_whose_index_is_in_use_is_told_when_it_starts(forked: Crew) -> None:
    buffer = buffer_of("hard")
    first = Remote(forked, Holder, config_of(buffer, 1), LIMIT, TOKENS)
    first.call("check_admission", 2, "r")
    with pytest.raises(NotOwner, match="client_index 1 is in use"):
        shared(buffer, 1)
    assert buffer.in_flight == 2


def test_a_new_server_starts_from_nothing_whatever_stood_in_its_word() -> None:
    buffer = buffer_of("approximate")
    buffer[8] = 9
    shared(buffer, 1)
    assert buffer[8] == 0
