"""What the application gets: all that it would get without the middleware."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import WebSocket as FastWebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from websockets.exceptions import InvalidStatus

from gatecount import Gate, GateFull
from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.asgi_apps import START, echo, starlette, web_socket
from integrations.expected import only
from integrations.faces import http_scope, nothing, silent
from integrations.middleware_servers import (
    HOST,
    ask,
    ask_over,
    becomes,
    half_read,
    in_flight,
    threads,
    uvicorn_thread,
)
from support import DEADLINE, wait_until


def test_the_application_gets_the_servers_own_receive_and_send(gate: Gate) -> None:
    got: list[Any] = []

    async def app(*arguments: Any) -> None:
        got.extend(arguments)

    async def main() -> None:
        scope = http_scope()
        await AdmissionMiddleware(app, gate)(scope, silent, nothing)
        await AdmissionMiddleware(app, gate, background=False)(scope, silent, nothing)
        assert got[:3] == [scope, silent, nothing]
        assert got[0] is scope
        assert got[3:5] == [scope, silent]

    asyncio.run(main())


def test_the_application_sees_the_body_and_the_disconnect(gate: Gate) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            seen.append(message)
            if message["type"] == "http.disconnect":
                return
            if not message.get("more_body"):
                await send(START)
                await send({"type": "http.response.body", "body": b"part", "more_body": True})

    with uvicorn_thread(AdmissionMiddleware(app, gate), lifespan="off") as port:
        with half_read(port):
            assert in_flight(gate) == 1
        becomes(gate, 0)
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect"]


def test_a_connection_serves_on_after_a_refused_request_with_a_body(gate: Gate) -> None:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    with starlette(gate, endpoint) as port:
        connection = http.client.HTTPConnection(HOST, port, timeout=DEADLINE)
        with contextlib.closing(connection):
            with gate.admit(requests=2):
                for _ in range(3):
                    assert ask_over(connection, method="POST", body=b"x" * 50_000).status == 503
            assert ask_over(connection, method="POST", body=b"x" * 50_000).body == b"50000"


def test_lifespan_passes_and_claims_a_slot(gate: Gate) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, str]]:
        events.append(f"up with {len(gate.statistics().slots)} slot")
        yield {"engine": "warm"}
        events.append("down")

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(request.state.engine)

    app = Starlette(routes=[Route("/", endpoint)], lifespan=lifespan)
    app.add_middleware(AdmissionMiddleware, gate=gate)
    with uvicorn_thread(app) as port:
        assert ask(port).body == b"warm"
    assert events == ["up with 1 slot", "down"]


@pytest.mark.parametrize("cause", ["GateNotFound", "PermissionError"])
def test_a_server_starts_without_its_gate_and_says_so_at_once(
    cause: str, gate_name: str, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_name: str) -> Gate:
        raise PermissionError("another user's")

    if cause == "PermissionError":
        monkeypatch.setattr(Gate, "open", forbidden)
    app = Starlette(routes=[])
    app.add_middleware(AdmissionMiddleware, gate=gate_name)
    with uvicorn_thread(app, lifespan="on") as port:
        level, line = only(log())
        assert level == logging.ERROR
        said = f"refuses the first request with 503: the gate cannot be used: {cause}: "
        assert line.startswith(said)
        assert ask(port).status == 503


def test_what_is_neither_a_request_nor_lifespan_passes(gate: Gate) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def main() -> None:
        with gate.admit(requests=2):
            await AdmissionMiddleware(app, gate)({"type": "mqtt"}, silent, nothing)

    asyncio.run(main())
    assert seen == ["mqtt"]


# Frameworks


def test_fastapi_takes_it_by_add_middleware(gate: Gate) -> None:
    app = FastAPI()
    app.add_middleware(AdmissionMiddleware, gate=gate, exempt=("/health",), cost={"tokens": 30})
    more = threading.Event()

    @app.get("/work")
    def work() -> dict[str, int]:
        assert more.wait(DEADLINE)
        return {"tokens": in_flight(gate, "tokens")}

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.websocket("/echo")
    async def web_socket_echo(websocket: FastWebSocket) -> None:
        await echo(websocket)

    answers = []
    with uvicorn_thread(app) as port:
        asking = threads(3, lambda _: answers.append(ask(port, "/work").status))
        wait_until(lambda: in_flight(gate, "tokens") == 90)
        assert ask(port, "/work").status == 503
        with pytest.raises(InvalidStatus):
            web_socket(port, "/echo")
        assert ask(port, "/health").body == b'"ok"'
        more.set()
        for thread in asking:
            thread.join(DEADLINE)
        wait_until(lambda: in_flight(gate, "tokens") == 0)
        with web_socket(port, "/echo") as client:
            client.send("hello")
            assert client.recv() == "hello"
    assert answers == [200] * 3


def test_a_gate_full_that_the_application_raises_is_its_own(gate: Gate) -> None:
    """An inner gate's refusal is not taken for the middleware's, and its permit comes back."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        gate.admit(requests=2)

    async def main() -> None:
        with pytest.raises(GateFull):
            await AdmissionMiddleware(app, gate, dry_run=True)(http_scope(), silent, nothing)

    asyncio.run(main())
    assert in_flight(gate) == 0


def test_two_layers_hold_one_permit_each(gate: Gate) -> None:
    seen: list[Callable[[], int] | int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(in_flight(gate))

    inner = AdmissionMiddleware(app, gate)
    outer = AdmissionMiddleware(inner, gate)
    asyncio.run(outer(http_scope(), silent, nothing))
    assert seen == [2]
    assert in_flight(gate) == 0
