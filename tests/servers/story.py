"""What every server's test tells: the limit under load, a kill, a reload, and that all comes back."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import suppress

from gatecount import Gate
from gatecount.statistics import CapStatistics
from servers.clients import Held, load
from servers.running import Server
from support import wait_until

LIMIT = 10
"""The limit of every page."""


def requests(gate: Gate) -> CapStatistics:
    return gate.statistics().caps["requests"]


def owners(gate: Gate) -> set[int]:
    """Return the living processes that own slots."""
    return {slot.pid for slot in gate.statistics().slots}


def becomes(gate: Gate, units: int) -> None:
    """Wait until that many units are in flight; nobody has to ask for anything."""
    with suppress(AssertionError):
        wait_until(lambda: requests(gate).in_flight == units, 15.0)
    assert requests(gate).in_flight == units


def full(server: Server, gate: Gate, held: Held) -> None:
    """Fill the limit with held requests: gate and bystander count the same, and no more is let in."""
    held.fill(LIMIT)
    counted = (server.bystander.running, requests(gate).in_flight)
    assert counted == (LIMIT, LIMIT), (server.bystander.by_worker(), gate.statistics().slots, server.log)
    answer = server.ask()
    assert answer.status_code == 503
    assert "busy" in answer.json()["error"]["message"]
    assert 1 <= int(answer.headers["Retry-After"]) <= 5


def busiest(server: Server) -> tuple[int, int]:
    """Return the worker that runs most, and how much that is."""
    return max(server.bystander.by_worker().items(), key=lambda item: item[1])


def kill_one(server: Server, gate: Gate, held: Held) -> int:
    """Kill the worker that holds most; return how much that was."""
    victim, _ = busiest(server)
    lost = server.bystander.kill(victim)
    held.lose(lost)
    wait_until(lambda: victim not in owners(gate))
    return lost


def all_answer(server: Server, gate: Gate, count: int) -> None:
    """Wait until so many workers or more own slots, and each has answered or runs something.

    A signal to one that is just starting may be lost on it: in the end it is killed then, with whatever
    it runs. Or it comes up, takes requests, and is ended only then: no new one, though it was none of
    the old.
    """
    answered = set()

    def asked() -> bool:
        answer = server.ask()
        if answer.is_success:
            answered.add(int(answer.text))
        answered.update(server.bystander.by_worker())
        return len(now := owners(gate)) >= count and now <= answered

    wait_until(asked)


def through_a_kill_and_a_reload(server: Server, gate: Gate, *, workers: int, overlap: int) -> None:
    """Under load: the limit is reached, a worker is killed, the others are replaced by SIGHUP.

    workers is how many there are. overlap is how many new ones there must be while the old ones still
    run what they have; with 0 the old ones end first.
    """
    with Held(server) as held, load(server) as answers:
        all_answer(server, gate, workers)
        full(server, gate, held)
        lost = kill_one(server, gate, held)
        all_answer(server, gate, workers)
        full(server, gate, held)
        old = owners(gate)
        server.signal(signal.SIGHUP)
        reloaded(server, gate, held, old, overlap)
        full(server, gate, held)
        assert not held.finish() & old
    everything_is_back(server, gate, answers, lost)


def reloaded(server: Server, gate: Gate, held: Held, old: set[int], overlap: int) -> None:
    """The generations overlap, the limit holds over both, then the old one ends."""
    if overlap:
        wait_until(lambda: len(owners(gate) - old) >= overlap)
        assert owners(gate) & old
        full(server, gate, held)
        held.finish(1)
        wait_until(lambda: (told := server.ask()).is_success and int(told.text) not in old)
    assert held.finish() <= old
    wait_until(lambda: (now := owners(gate)) and not now & old)


def everything_is_back(server: Server, gate: Gate, answers: Counter[str], lost: int) -> None:
    """Nothing is in flight, the limit was never passed, and what the dead had held is what came back."""
    becomes(gate, 0)
    cap = requests(gate)
    assert server.bystander.peak == LIMIT
    assert (cap.limit, cap.peak, cap.reclaimed, cap.repairs) == (LIMIT, LIMIT, lost, 0)
    assert answers["200"] > 0
    assert answers["503"] > 0
    assert set(answers) <= {"200", "503", "lost"}
    for trouble in ("the gate cannot be used", "has no slot"):
        assert trouble not in server.log
