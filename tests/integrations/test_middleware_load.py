"""Several server processes behind one gate, under load."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from gatecount import Gate
from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.middleware_servers import (
    HOST,
    Refused,
    ask,
    ask_over,
    becomes,
    half_read,
    in_flight,
    run_uvicorn,
    threads,
)
from support import DEADLINE, Crew, scaled, wait_until
from witness import Witness

START = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


@contextmanager
def workers(crew: Crew, app: Any, count: int) -> Iterator[list[int]]:
    """Serve an application made before the fork in that many processes, each at a port of its own."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        for listener in listeners:
            # Asyncio sets this by itself only where the protocol was named; connections inherit it.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            crew.start(run_uvicorn, app, listener)
        yield [listener.getsockname()[1] for listener in listeners]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer; /stream until the client has gone."""
    await send(START)
    if scope["path"] == "/raise":
        raise RuntimeError("the application's own")
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    else:
        await send({"type": "http.response.body", "body": b"done"})


def test_the_limit_is_one_over_all_workers_and_a_killed_workers_share_comes_back(
    crew: Crew, gate_name: str
) -> None:
    app = AdmissionMiddleware(answer, gate_name)  # neither the gate nor the workers are there yet
    with (
        Gate.create(gate_name, limits={"requests": 4}, slots=4) as gate,
        workers(crew, app, 3) as ports,
        ExitStack() as clients,
    ):
        for number in range(4):
            clients.enter_context(half_read(ports[number % 3], "/stream"))
        assert in_flight(gate) == 4
        assert [ask(port).status for port in ports] == [503] * 3
        assert sorted(slot.held["requests"] for slot in gate.statistics().slots) == [1, 1, 2]

        crew.kill(crew.members[0])  # it held two
        wait_until(lambda: ask(ports[1]).status == 200)
        becomes(gate, 2)
        for port in ports[1:]:
            clients.enter_context(half_read(port, "/stream"))
        assert [ask(port).status for port in ports[1:]] == [503] * 2
        cap = gate.statistics().caps["requests"]
        assert (cap.in_flight, cap.peak, cap.reclaimed, cap.repairs) == (4, 4, 2, 0)

        clients.close()
        becomes(gate, 0)


def test_low_priority_stops_first_under_a_mixed_load(crew: Crew) -> None:
    """A limit of 10, of which low priority leaves 4 free, and 10 clients of that against 2 of high.

    Each of the two servers may be about to release what its client has already got: so 2 + 2 places are
    as many as high priority can ever need, and it is never refused.
    """
    rounds, low, whole = scaled(60), Witness(), Witness()

    async def work(scope: Any, receive: Any, send: Any) -> None:
        witnesses = (whole, low) if scope["path"] == "/low" else (whole,)
        for witness in witnesses:
            witness.granted(1)
        await asyncio.sleep(0.005)
        for witness in witnesses:
            witness.releasing(1)
        await send(START)
        await send({"type": "http.response.body", "body": b"done"})

    answers: Counter[tuple[str, int]] = Counter()
    lock, over = threading.Lock(), threading.Event()

    def client(number: int) -> None:
        path = "/high" if number < 2 else "/low"
        with closing(http.client.HTTPConnection(HOST, ports[number % 2], timeout=DEADLINE)) as line:
            asked = 0
            while asked < rounds or (number < 2 and not over.is_set()):
                status = ask_over(line, path).status
                asked += 1
                with lock:
                    answers[path, status] += 1

    with Gate.create(limits={"requests": 10}, slots=4) as gate:
        app = AdmissionMiddleware(work, gate, headroom=lambda scope: 4 if scope["path"] == "/low" else 0)
        with workers(crew, app, 2) as ports:
            asking = threads(12, client)
            for thread in asking[2:]:
                thread.join(DEADLINE)
            over.set()  # high priority is there as long as low is
            for thread in asking:
                thread.join(DEADLINE)
            becomes(gate, 0)
        cap = gate.statistics().caps["requests"]

    assert answers["/high", 503] == 0
    assert answers["/high", 200] >= 2 * rounds
    assert answers["/low", 503] > 0
    assert answers["/low", 200] > 0
    assert set(answers) <= {("/high", 200), ("/low", 200), ("/low", 503)}
    assert low.peak <= 6
    assert whole.peak <= cap.peak <= 10
    assert cap.admitted == answers["/high", 200] + answers["/low", 200] == whole.grants
    assert cap.refused == answers["/low", 503]


def test_no_permit_is_lost_when_clients_come_and_go_as_they_like(crew: Crew) -> None:
    """Whole answers, aborted streams, refusals and errors, over three workers."""
    rounds = scaled(40)

    def client(number: int) -> None:
        for turn in range(rounds):
            port, kind = ports[turn % 3], (number + turn) % 3
            if kind == 0:
                assert ask(port, "/whole").status in (200, 503)
            elif kind == 1:
                with suppress(Refused), half_read(port, "/stream"):
                    pass
            else:
                with suppress(http.client.HTTPException):
                    assert ask(port, "/raise").status == 503

    with Gate.create(limits={"requests": 5}, slots=4) as gate:
        with workers(crew, AdmissionMiddleware(answer, gate), 3) as ports:
            for thread in threads(9, client):
                thread.join(DEADLINE)
            becomes(gate, 0)
        cap = gate.statistics().caps["requests"]
        assert cap.admitted + cap.refused == 9 * rounds
        assert cap.peak <= 5
        assert (cap.reclaimed, cap.repairs) == (0, 0)
