"""From when to when an ASGI request holds its permit, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gatecount import Gate
from gatecount.integrations.asgi import AdmissionMiddleware
from integrations.asgi_apps import START, starlette, until
from integrations.faces import http_scope, nothing, silent
from integrations.middleware_servers import (
    abort,
    ask,
    becomes,
    half_read,
    in_flight,
    uvicorn_thread,
)
from support import DEADLINE

# Streams


def test_a_stream_holds_its_permit_until_its_last_byte(gate: Gate) -> None:
    more = threading.Event()

    async def endpoint(_request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first "
            await until(more)
            yield b"last"

        return StreamingResponse(parts())

    with starlette(gate, endpoint) as port:
        with half_read(port) as client:
            assert in_flight(gate) == 1
            with half_read(port):
                assert in_flight(gate) == 2
                assert ask(port).status == 503
                more.set()
            received = b""
            while b"last" not in received:
                received += client.recv(1000)
            becomes(gate, 0)
        assert ask(port).body == b"first last"


def test_a_stream_whose_client_has_gone_gives_its_permit_back_at_once(gate: Gate) -> None:
    ended = threading.Event()

    async def endpoint(_request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 1000
                    await asyncio.sleep(0.001)
            finally:
                ended.set()

        return StreamingResponse(parts())

    with starlette(gate, endpoint) as port:
        for leave in (abort, lambda client: client.close()):
            with half_read(port) as client:
                assert in_flight(gate) == 1
                leave(client)
                becomes(gate, 0)
            assert ended.wait(DEADLINE)
            ended.clear()


def test_a_generator_closed_early_gives_its_permit_back(gate: Gate) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield b"x"

        await send(START)
        stream = parts()
        async for part in stream:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            break
        await stream.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b""})

    with uvicorn_thread(AdmissionMiddleware(app, gate), lifespan="off") as port:
        for _ in range(5):
            assert ask(port).body == b"x"
            becomes(gate, 0)
    assert gate.statistics().caps["requests"].admitted == 5


# Background tasks


@pytest.mark.parametrize("background", [True, False])
def test_a_background_task_holds_the_permit_by_choice(gate: Gate, background: bool) -> None:
    done, began = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        await until(done)

    async def endpoint(_request: Request) -> Response:
        return PlainTextResponse("answered", background=BackgroundTask(work))

    with starlette(gate, endpoint, background=background) as port:
        assert ask(port).body == b"answered"
        assert began.wait(DEADLINE)
        assert in_flight(gate) == background
        done.set()
        becomes(gate, 0)


def test_the_permit_of_a_free_background_task_is_held_until_the_last_byte(
    gate: Gate, tmp_path: Any
) -> None:
    more = threading.Event()
    (tmp_path / "file").write_bytes(b"of a file")

    async def endpoint(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first "
            await until(more)
            yield b"last"

        if request.url.path == "/file":
            return FileResponse(tmp_path / "file")
        return StreamingResponse(parts())

    with starlette(gate, endpoint, background=False) as port:
        assert ask(port, "/file").body == b"of a file"
        becomes(gate, 0)
        gate.set_limit("requests", 1)
        with half_read(port) as client:
            received = b""
            while b"first" not in received:
                received += client.recv(1000)
            assert ask(port, "/file").status == 503
            more.set()
        becomes(gate, 0)


@pytest.mark.parametrize(
    "kind", ["http.response.body", "http.response.pathsend", "http.response.zerocopysend"]
)
def test_whatever_ends_an_answer_gives_the_permit_of_a_free_background_task_back(
    gate: Gate, kind: str
) -> None:
    seen, sending = [], []

    async def server(_message: Any) -> None:
        sending.append(in_flight(gate))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        seen.append(in_flight(gate))
        await send({"type": kind})
        seen.append(in_flight(gate))
        await send({"type": kind})  # misuse, but nothing of it is another's permit
        seen.append(in_flight(gate))

    async def main() -> None:
        with gate.admit():
            await AdmissionMiddleware(app, gate, background=False)(http_scope(), silent, server)
            seen.append(in_flight(gate))

    asyncio.run(main())
    assert seen == [2, 1, 1, 1]
    assert sending == [2, 2, 1]  # while the last byte is sent, it is still held


# Errors, timeouts, cancels


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("sent", ["nothing", "start", "a part", "all"])
def test_an_application_that_raises_holds_nothing(gate: Gate, sent: str, background: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if sent != "nothing":
            await send(START)
        if sent == "a part":
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        if sent == "all":
            await send({"type": "http.response.body", "body": b"all"})
        raise RuntimeError("the application's own")

    middleware = AdmissionMiddleware(app, gate, background=background)
    with uvicorn_thread(middleware, lifespan="off", log_level="critical") as port:
        for _ in range(5):
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = ask(port)
                assert answer.status == (500 if sent == "nothing" else 200)
            becomes(gate, 0)
    assert gate.statistics().caps["requests"].admitted == 5


def test_the_applications_error_is_for_those_outside(gate: Gate) -> None:
    async def endpoint(_request: Request) -> Response:
        raise RuntimeError("the application's own")

    handled = []

    async def handler(_request: Request, error: Exception) -> Response:
        handled.append(str(error))
        return PlainTextResponse("handled", 500)

    app = Starlette(routes=[Route("/", endpoint)], exception_handlers={Exception: handler})
    app.add_middleware(AdmissionMiddleware, gate=gate)
    with uvicorn_thread(app, log_level="critical") as port:
        assert ask(port).body == b"handled"
        becomes(gate, 0)
    assert handled == ["the application's own"]


def test_a_timeout_around_the_application_gives_the_permit_back(gate: Gate) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    limited = AdmissionMiddleware(app, gate)

    async def with_deadline(scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(0.02):
                await limited(scope, receive, send)
        except TimeoutError:
            await send(START | {"status": 504})
            await send({"type": "http.response.body", "body": b"too late"})

    with uvicorn_thread(with_deadline, lifespan="off") as port:
        for _ in range(5):
            assert ask(port).status == 504
            assert in_flight(gate) == 0


@pytest.mark.parametrize("background", [True, False])
def test_a_cancel_at_any_step_releases_exactly_once(gate: Gate, background: bool) -> None:
    """The application and the server suspend at every await, in their own clean-up too."""

    async def send(_message: Any) -> None:
        await asyncio.sleep(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send(START)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await send({"type": "http.response.body", "body": b"y"})
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    limited = AdmissionMiddleware(app, gate, background=background)

    async def cancelled_after(steps: tuple[int, ...]) -> bool:
        task = asyncio.create_task(limited(http_scope(), silent, send))
        for count in steps:
            for _ in range(count):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    async def main() -> set[bool]:
        outcomes = set()
        with gate.admit():  # another's permit, which one release too many would take
            for first in range(10):
                for second in range(5):
                    outcomes.add(await cancelled_after((first, second)))
                    assert in_flight(gate) == 1
        return outcomes

    assert asyncio.run(main()) == {True, False}
    assert in_flight(gate) == 0


def test_a_server_that_cannot_send_any_more_gives_the_permit_back(gate: Gate) -> None:
    async def broken(_message: Any) -> None:
        raise OSError("the client has gone")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)

    async def main() -> None:
        for background in (True, False):
            with pytest.raises(OSError, match="the client has gone"):
                await AdmissionMiddleware(app, gate, background=background)(
                    http_scope(),
                    silent,
                    broken,
                )
            assert in_flight(gate) == 0

    asyncio.run(main())


def test_a_child_that_is_forked_in_a_request_releases_nothing_of_its_parents(gate: Gate) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["child"] = os.fork()

    async def main() -> None:
        scope = http_scope()
        with gate.admit():
            await AdmissionMiddleware(app, gate)(scope, silent, nothing)
            if scope["child"] == 0:
                os._exit(0)
            assert os.waitpid(scope["child"], 0)[1] == 0
            assert in_flight(gate) == 1

    asyncio.run(main())
    assert in_flight(gate) == 0
