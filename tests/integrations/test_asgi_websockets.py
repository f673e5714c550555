"""WebSockets hold a permit while they are open, and are refused as HTTP requests are."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus

from gatecount import Gate
from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.asgi_apps import echo, web_socket
from integrations.middleware_servers import (
    becomes,
    in_flight,
    threads,
    uvicorn_thread,
)
from support import DEADLINE, scaled


def echoing(gate: Any, **options: Any) -> contextlib.AbstractContextManager[int]:
    app = Starlette(routes=[WebSocketRoute("/{path:path}", echo)])
    app.add_middleware(AdmissionMiddleware, gate=gate, **options)
    return uvicorn_thread(app, log_level="critical")


@pytest.mark.parametrize("background", [True, False])
def test_a_web_socket_holds_its_permit_while_it_is_open(gate: Gate, background: bool) -> None:
    with echoing(gate, background=background) as port:
        with web_socket(port) as first, web_socket(port) as second:
            for client in (first, second):
                client.send("hello")
                assert client.recv() == "hello"
            assert in_flight(gate) == 2
            with pytest.raises(InvalidStatus) as refused:
                web_socket(port)
            assert in_flight(gate) == 2
        becomes(gate, 0)
    response = refused.value.response
    assert response.status_code == 503
    assert 1 <= int(response.headers["retry-after"]) <= 5
    assert b"try again later" in (response.body or b"")


def test_web_socket_churn_leaves_nothing_behind(gate: Gate) -> None:
    gate.set_limit("requests", 3)
    rounds = scaled(40)

    def churn(number: int) -> None:
        for turn in range(rounds):
            with contextlib.suppress(InvalidStatus), web_socket(port) as client:
                client.send("hello")
                client.recv()
                if (number + turn) % 2:
                    client.socket.shutdown(socket.SHUT_RDWR)  # no word of goodbye

    with echoing(gate) as port:
        for thread in threads(4, churn):
            thread.join(DEADLINE)
        becomes(gate, 0)
        cap = gate.statistics().caps["requests"]
        assert cap.admitted + cap.refused == 4 * rounds
        assert cap.admitted >= 3  # nobody held a place yet
        assert cap.peak <= 3


@pytest.mark.parametrize("extensions", [{}, {"extensions": None}, {"extensions": {"tls": {}}}])
def test_a_web_socket_is_refused_with_403_by_a_server_that_cannot_answer_otherwise(
    gate: Gate, extensions: dict[str, Any]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("never reached")

    refusing = AdmissionMiddleware(app, gate)

    async def without_the_extension(scope: Any, receive: Any, send: Any) -> None:
        del scope["extensions"]
        await refusing(scope | extensions, receive, send)

    with uvicorn_thread(without_the_extension, lifespan="off") as port, gate.admit(requests=2):
        with pytest.raises(InvalidStatus) as refused:
            web_socket(port)
        assert in_flight(gate) == 2
    assert refused.value.response.status_code == 403


def test_an_exempt_web_socket_is_served_when_the_gate_is_full(gate: Gate) -> None:
    with (
        echoing(gate, exempt=("/health",)) as port,
        gate.admit(requests=2),
        web_socket(port, "/health") as client,
    ):
        client.send("alive")
        assert client.recv() == "alive"


def test_a_web_socket_that_the_application_denies_holds_nothing(gate: Gate) -> None:
    async def deny(websocket: WebSocket) -> None:
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/", deny)])
    app.add_middleware(AdmissionMiddleware, gate=gate)
    with uvicorn_thread(app, log_level="critical") as port:
        for _ in range(5):
            with pytest.raises(InvalidStatus):
                web_socket(port)
        becomes(gate, 0)
