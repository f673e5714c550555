"""Any ASGI application behind the cap: its place is held until it has returned, however it ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Board
from gatecount.frontend.limited_app import LimitedApp
from gatecount.frontend.metrics import Metrics
from host.serving import Server, Wire, get, metric
from support import DEADLINE, wait_until


class App:
    """An application whose paths do what a test needs; it notes what it sees."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.seen: list[str] = []
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        self.running += 1
        try:
            await getattr(self, scope["path"].strip("/"))(scope, receive, send)
        finally:
            self.running -= 1

    async def lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = (await receive())["type"]
            self.seen.append(message)
            await send({"type": f"{message}.complete"})
            if message == "lifespan.shutdown":
                return

    async def hello(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begin", "more_body": True})
        await self.wait()
        await send({"type": "http.response.body", "body": b"end"})

    async def background(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.hello(scope, receive, send)
        await self.wait()

    async def until_gone(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        while self.seen[-1:] != ["http.disconnect"]:
            self.seen.append((await receive())["type"])

    async def fails(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise ArithmeticError("a bug in the application")

    async def socket(self, _scope: Scope, receive: Receive, send: Send) -> None:
        while self.seen[-1:] != ["websocket.disconnect"]:
            message = await receive()
            self.seen.append(message["type"])
            if message["type"] == "websocket.connect":
                await send({"type": "websocket.accept"})
            elif message["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})

    async def wait(self) -> None:
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)


class Limited:
    """An application behind a cap of so many, served."""

    def __init__(self, stack: ExitStack, limit: int, **options: Any) -> None:
        self.app = App()
        stack.callback(self.app.go_on.set)
        board = Board(1, shared=False)
        self.row = board.at(0)
        config = {"client_count": 1, "client_index": 0}
        self.admission = Admission(config, max_num_queued_reqs=limit)
        metrics = Metrics(self.admission, board)
        limited = LimitedApp(self.app, self.admission, self.row, metrics)
        self.server = stack.enter_context(Server(limited, **options))
        self.url = self.server.url

    def is_empty(self) -> bool:
        return self.admission.requests_in_flight == 0 and not self.admission._holdings

    def open_socket(self) -> ClientConnection:
        return connect(f"{self.url.replace('http', 'ws')}/socket", open_timeout=DEADLINE, proxy=None)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_what_is_admitted_reaches_the_application_and_what_is_not_gets_503(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    assert get(limited.url, "/hello").text == "hello"
    wait_until(limited.is_empty)
    with Wire(limited.server.port, "/stream") as running:
        running.read_until(b"begin")
        refused = get(limited.url, "/hello")
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "Service Unavailable"
        assert refused.json()["error"]["code"] == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert limited.app.running == 1
    assert (limited.row.admitted, limited.row.refused("requests")) == (2, 1)


def test_a_stream_holds_its_place_until_its_last_byte(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    with Wire(limited.server.port, "/stream") as client:
        client.read_until(b"begin")
        assert limited.admission.requests_in_flight == 1
        limited.app.go_on.set()
        client.read_until(b"end")
        wait_until(limited.is_empty)


def test_what_the_application_does_after_its_answer_holds_the_place_too(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    with Wire(limited.server.port, "/background") as client:
        client.read_until(b"hello")
        assert limited.admission.requests_in_flight == 1
        assert get(limited.url, "/hello").status_code == 503
        limited.app.go_on.set()
        wait_until(limited.is_empty)


def test_an_error_in_the_application_frees_the_place_and_is_not_hidden(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    for _ in range(3):
        assert get(limited.url, "/fails").status_code == 500
        assert limited.is_empty()
    assert limited.row.admitted == 3


def test_the_application_sees_its_client_go_and_its_return_frees_the_place(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    with Wire(limited.server.port, "/until_gone"):
        wait_until(lambda: limited.app.seen)
        assert limited.admission.requests_in_flight == 1
    wait_until(limited.is_empty, 5.0)
    assert limited.app.seen == ["http.request", "http.disconnect"]


def test_a_place_is_held_while_the_application_works_on_for_a_client_that_has_gone(
    stack: ExitStack,
) -> None:
    limited = Limited(stack, 1)
    with Wire(limited.server.port, "/stream") as client:
        client.read_until(b"begin")
    assert get(limited.url, "/hello").status_code == 503
    limited.app.go_on.set()
    wait_until(limited.is_empty)


def test_a_cancel_when_the_server_stops_frees_the_place(stack: ExitStack) -> None:
    limited = Limited(stack, 2)
    with Wire(limited.server.port, "/stream") as client:
        client.read_until(b"begin")
        limited.server.stop()
        assert limited.is_empty()
        assert limited.app.running == 0


def test_a_websocket_holds_a_place_until_it_is_closed(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    with limited.open_socket() as websocket:
        websocket.send("ping")
        assert websocket.recv(DEADLINE) == "ping"
        assert limited.admission.requests_in_flight == 1
        assert get(limited.url, "/hello").status_code == 503
    wait_until(limited.is_empty, 5.0)
    assert limited.app.seen == ["websocket.connect", "websocket.receive", "websocket.disconnect"]


def test_websockets_that_come_and_go_leave_nothing_held(stack: ExitStack) -> None:
    limited = Limited(stack, 2)
    for number in range(20):
        limited.app.seen.clear()
        with limited.open_socket() as websocket:
            wait_until(lambda: limited.app.seen)
            if number % 2:
                websocket.socket.shutdown(socket.SHUT_RDWR)  # without a close frame
        wait_until(limited.is_empty, 5.0)
    assert (limited.row.admitted, limited.row.refused("requests")) == (20, 0)


def test_a_websocket_that_is_refused_is_told_so_by_http(stack: ExitStack) -> None:
    limited = Limited(stack, 0)
    with pytest.raises(InvalidStatus) as refused, limited.open_socket():
        pass
    assert refused.value.response.status_code == 503
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert b"busy, try again" in refused.value.response.body
    assert limited.app.running == 0
    assert limited.row.refused("requests") == 1


def test_a_websocket_is_closed_with_try_again_later_where_no_http_answer_can_be_given() -> None:
    board = Board(1, shared=False)
    admission = Admission({"client_count": 1, "client_index": 0}, max_num_queued_reqs=0)
    limited = LimitedApp(App(), admission, board.at(0), Metrics(admission, board))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(limited({"type": "websocket", "path": "/socket"}, receive, send))
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1013)]


def test_health_and_metrics_are_answered_here_and_never_refused(stack: ExitStack) -> None:
    limited = Limited(stack, 1)
    with Wire(limited.server.port, "/stream") as client:
        client.read_until(b"begin")
        for _ in range(5):
            assert get(limited.url, "/health").json() == {"status": "ok"}
            assert metric(limited.url, 'gatecount_in_flight{cap="requests"}') == 1
        assert limited.app.running == 1
    assert limited.row.refused("requests") == 0


def test_lifespan_reaches_the_application_and_holds_nothing(stack: ExitStack) -> None:
    limited = Limited(stack, 1, lifespan="on")
    assert limited.app.seen == ["lifespan.startup"]
    assert limited.admission.requests_in_flight == 0
    limited.server.stop()
    assert limited.app.seen == ["lifespan.startup", "lifespan.shutdown"]


def test_a_refused_request_does_not_free_what_others_hold(stack: ExitStack) -> None:
    limited = Limited(stack, 2)
    with (
        Wire(limited.server.port, "/stream") as first,
        Wire(limited.server.port, "/stream") as second,
    ):
        first.read_until(b"begin")
        second.read_until(b"begin")
        for _ in range(10):
            assert get(limited.url, "/hello").status_code == 503
        assert limited.admission.requests_in_flight == 2


def test_the_application_gets_the_servers_own_receive() -> None:
    board = Board(1, shared=False)
    admission = Admission({"client_count": 1, "client_index": 0}, max_num_queued_reqs=1)
    given: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given.extend((scope, receive, send))

    async def receive() -> Any:
        raise AssertionError("nothing is read before the application reads it")

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent but by the application")

    scope = {"type": "http", "path": "/", "method": "GET"}
    limited = LimitedApp(app, admission, board.at(0), Metrics(admission, board))
    asyncio.run(limited(scope, receive, send))
    assert given == [scope, receive, send]
