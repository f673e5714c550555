"""Clients that hang up, at whatever moment: their places are free at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import pytest

from gatecount.frontend.engine import EngineOutput, EngineRequest
from gatecount.frontend.engine_client import InprocEngineClient
from gatecount.frontend.http import Completions
from host.serving import (
    LONG,
    MANY,
    SLOW,
    HeldRenderer,
    Host,
    Server,
    Wire,
    completion,
    metric,
    refusal_of,
    serve,
)
from support import wait_until

# --- clients that go ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_hangs_up_frees_every_place_at_once(
    hosts: ExitStack, stream: bool, n: int
) -> None:
    host, server = serve(hosts, limit=3, token_limit=100, engine=SLOW)
    with Wire(server.port, max_tokens=MANY, n=n, stream=stream) as client:
        if stream:
            client.read_until(b"data: ")
        wait_until(lambda: host.table.unfinished == n)
        wait_until(lambda: metric(server.url, "gatecount_engine_running") == n)
    wait_until(host.is_empty, 5.0)
    assert metric(server.url, "gatecount_engine_running") == 0


def test_a_client_that_is_reset_frees_its_place_at_once(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=1, engine=LONG)
    with Wire(server.port) as client:
        wait_until(lambda: host.table.unfinished == 1)
        # No FIN but a reset, as from a client whose process was killed with unread data.
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_until(host.is_empty, 5.0)


def test_a_client_that_hangs_up_between_the_two_tests_gives_its_reservation_back(
    hosts: ExitStack,
) -> None:
    renderer = HeldRenderer()
    host, server = serve(hosts, limit=3, renderer=renderer)
    with Wire(server.port, n=3):
        wait_until(lambda: renderer.rendering)
        assert (host.admission.requests_in_flight, host.table.unfinished) == (3, 0)
        refusal_of(completion(server.url), 503)
    wait_until(host.is_empty, 5.0)
    renderer.let_go.set()
    assert completion(server.url, n=3).status_code == 200
    assert host.row.admitted == 1


def test_a_client_that_hangs_up_before_its_body_is_there_holds_nothing(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=1)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 99\r\n\r\n{")
        assert metric(server.url, 'gatecount_in_flight{cap="requests"}') == 0
    assert completion(server.url).status_code == 200
    assert host.row.admitted == 1


def test_a_client_that_does_not_read_holds_its_place_only_as_long_as_the_engine_runs(
    hosts: ExitStack,
) -> None:
    host = Host(limit=1)
    hosts.callback(host.close)
    server = hosts.enter_context(Server(host.app, send_buffer=4096))
    with Wire(server.port, max_tokens=MANY, stream=True) as idle:
        wait_until(lambda: host.row.admitted)
        wait_until(host.is_empty)
        assert completion(server.url).status_code == 200
        assert idle.read_until(b"[DONE]").count(b"data: ") == MANY + 1


def test_a_server_that_stops_cancels_what_is_left_and_frees_it(hosts: ExitStack) -> None:
    host, server = serve(hosts, limit=4, engine=LONG)
    with Wire(server.port, n=2, stream=True), Wire(server.port, n=2):
        wait_until(lambda: host.table.unfinished == 4)
        server.stop()
        assert host.is_empty()


def test_a_client_that_hangs_up_while_it_is_written_to_frees_its_place_at_once() -> None:
    async def scenario() -> None:
        host = Host(limit=3, engine=SLOW)
        body = b'{"prompt": "one", "n": 3, "max_tokens": 10000, "stream": true}'
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        stuck = asyncio.Event()

        async def receive() -> Any:
            if not messages:
                await stuck.wait()
                assert host.admission.requests_in_flight == 3
                return {"type": "http.disconnect"}
            return messages.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                stuck.set()
                await asyncio.Event().wait()  # as to a client that does not read

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await Completions(host.service, "reference")(scope, receive, send)
        assert host.is_empty()
        host.close()

    asyncio.run(scenario())


class _Hasty(InprocEngineClient):
    """Has all tokens but the last at once."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        yield EngineOutput(None, None)
        for number in range(1, request.max_tokens):
            yield EngineOutput(f" {number}", None)
        await asyncio.Event().wait()


def test_a_client_that_hangs_up_is_seen_beside_any_number_of_tokens_that_are_there_to_be_sent() -> None:
    async def scenario() -> None:
        host = Host(limit=1, engine=_Hasty(LONG))
        body = b'{"prompt": "one", "max_tokens": 10000, "stream": true}'
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()
        sent = 0

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_message: Any) -> None:  # there is room for all of them
            nonlocal sent
            sent += 1
            gone.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await Completions(host.service, "reference")(scope, receive, send)
        assert 0 < sent < 100
        assert host.is_empty()
        host.close()

    asyncio.run(scenario())
