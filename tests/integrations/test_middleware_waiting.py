"""Requests that wait for room before they are refused."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from gatecount import Gate
from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.expected import expect_busy, only
from integrations.faces import AsgiFace, Face, http_scope, nothing, query, silent
from integrations.middleware_servers import Answer, ask, becomes, in_flight, threads
from support import DEADLINE, wait_until


def waiting(gate: Gate) -> int:
    return gate.statistics().caps["requests"].waiting


class Asking:
    """Clients that have asked and got no answer yet."""

    def __init__(self, port: int, count: int) -> None:
        self.answers: list[Answer] = []
        self._threads = threads(count, lambda _: self.answers.append(ask(port)))

    def end(self) -> list[int]:
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        return sorted(answer.status for answer in self.answers)


@pytest.mark.parametrize("timeout", [DEADLINE, None])
def test_a_request_waits_for_room_and_is_served(face: Face, gate: Gate, timeout: float | None) -> None:
    with face.serve(gate, timeout=timeout) as port:
        with gate.admit(requests=2):
            clients = Asking(port, 3)
            wait_until(lambda: waiting(gate) == 3)
            assert clients.answers == []
        assert clients.end() == [200] * 3
        becomes(gate, 0)
    assert (face.calls, waiting(gate)) == (3, 0)


def test_a_request_that_has_waited_in_vain_is_refused_as_any_other(
    face: Face, gate: Gate, log: Any
) -> None:
    with face.serve(gate, timeout=0.05, status=429) as port:
        with gate.admit(requests=2):
            expect_busy(ask(port), 429)
            assert (face.calls, in_flight(gate), waiting(gate)) == (0, 2, 0)
        assert ask(port).status == 200
    level, line = only(log())
    assert level == logging.WARNING
    assert line.startswith("refuses GET '/' with 429: cap 'requests' was full for 0.05 s")
    assert gate.statistics().caps["requests"].refused_by["timeout"] == 1


def test_one_more_than_may_wait_is_refused_at_once(face: Face, gate: Gate) -> None:
    with face.serve(gate, timeout=None, max_waiting=2) as port:
        with gate.admit(requests=2):
            clients = Asking(port, 2)
            wait_until(lambda: waiting(gate) == 2)
            assert ask(port).status == 503
            assert waiting(gate) == 2
        assert clients.end() == [200] * 2


def test_what_can_never_fit_does_not_wait(face: Face, gate: Gate) -> None:
    with face.serve(gate, timeout=None, cost=lambda request: int(query(request))) as port:
        assert ask(port, "/?3").status == 413
        assert ask(port, f"/?{10**12}").status == 413


def test_a_dry_run_does_not_wait(face: Face, gate: Gate) -> None:
    with face.serve(gate, timeout=None, dry_run=True) as port, gate.admit(requests=2):
        assert ask(port).status == 200
    assert gate.statistics().caps["requests"].refused == 1


def test_a_gate_that_is_closed_while_requests_wait_refuses_them(face: Face, gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 1}) as gate:
        used = Gate.open(gate_name)
        with face.serve(used, timeout=DEADLINE) as port, gate.admit():
            clients = Asking(port, 2)
            wait_until(lambda: waiting(gate) == 2)
            used.close()
            assert clients.end() == [503] * 2
        assert waiting(gate) == 0


def test_a_request_that_waits_does_not_keep_others_from_being_answered(gate: Gate) -> None:
    """In an event loop it is its own task that waits, not the thread."""
    with AsgiFace().serve(gate, timeout=DEADLINE, exempt=("/health",)) as port:
        with gate.admit(requests=2):
            clients = Asking(port, 5)
            wait_until(lambda: waiting(gate) == 5)
            assert ask(port, "/health").status == 200
        assert clients.end() == [200] * 5


def test_a_cancel_at_any_step_of_waiting_keeps_no_permit_and_swallows_no_wake_up(gate: Gate) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)

    limited = AdmissionMiddleware(app, gate, timeout=None)

    async def main() -> None:
        for steps in range(12):
            permit = gate.admit(requests=2)
            cancelled = asyncio.create_task(limited(http_scope(), silent, nothing))
            patient = asyncio.create_task(limited(http_scope(), silent, nothing))
            await asyncio.sleep(0.01 if steps % 2 else 0)
            threading.Thread(target=permit.release).start()
            for _ in range(steps):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait_for(patient, DEADLINE)
            await asyncio.wait([cancelled])
            assert (in_flight(gate), waiting(gate)) == (0, 0)

    asyncio.run(main())
