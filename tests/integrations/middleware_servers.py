"""Real servers for the middlewares' tests, and the clients that ask them."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import uvicorn
from gunicorn.app.base import BaseApplication

from gatecount import Gate
from support import DEADLINE, Crew, wait_for_end, wait_until

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """What a client got; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error that a refusal in JSON tells."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def ask(
    port: int, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str
) -> Answer:
    """Ask once, over a connection of its own."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=DEADLINE)) as connection:
        return ask_over(connection, path, method, body, **headers)


def ask_over(
    connection: http.client.HTTPConnection,
    path: str = "/",
    method: str = "GET",
    body: bytes | None = None,
    **headers: str,
) -> Answer:
    """Ask once, over a connection that stays open."""
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    named = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, named, response.read())


class Refused(Exception):
    """The answer was not 200."""


@contextmanager
def half_read(port: int, path: str = "/") -> Iterator[socket.socket]:
    """Ask, and go on once the first line of the answer has come; the rest is left unread.

    Raises Refused if that line tells of anything but success.
    """
    with socket.create_connection((HOST, port), timeout=DEADLINE) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        line = b""
        while b"\r\n" not in line and (byte := client.recv(1)):
            line += byte
        if line.split()[1:2] != [b"200"]:
            raise Refused(line)
        yield client


def abort(client: socket.socket) -> None:
    """Go without a word: what is on its way either way is lost."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def in_flight(gate: Gate, cap: str = "requests") -> int:
    return gate.statistics().caps[cap].in_flight


def becomes(gate: Gate, units: int) -> None:
    """Wait until that many units of cap "requests" are in flight."""
    with suppress(AssertionError):
        wait_until(lambda: in_flight(gate) == units)
    assert in_flight(gate) == units


class _Server(uvicorn.Server):
    @property
    def port(self) -> int:
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


def _uvicorn(app: Any, **options: Any) -> _Server:
    fixed: dict[str, Any] = {"loop": "asyncio", "ws": "websockets-sansio", "log_config": None}
    return _Server(
        uvicorn.Config(app, host=HOST, port=0, timeout_graceful_shutdown=1, **fixed | options)
    )


@contextmanager
def uvicorn_thread(app: Any, **options: Any) -> Iterator[int]:
    """Serve an ASGI application in a thread; yield the port."""
    server = _uvicorn(app, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield server.port
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
    assert not thread.is_alive()


def run_uvicorn(app: Any, listener: socket.socket) -> None:
    """Serve on a listening socket until SIGTERM: the work of a process."""
    _uvicorn(app, log_level="critical").run(sockets=[listener])


class _WSGIServer(ThreadingMixIn, WSGIServer):
    daemon_threads = False  # so that closing it waits for the last release

    def server_bind(self) -> None:
        super().server_bind()
        self.base_environ["SERVER_NAME"] = HOST

    def handle_error(self, *_request: object) -> None:
        """Say nothing of clients that have gone."""


class _WSGIHandler(WSGIRequestHandler):
    def log_message(self, *_line: object) -> None:
        """Say nothing of requests."""

    def get_stderr(self) -> Any:
        return io.StringIO()  # for the traceback of an application that raises


@contextmanager
def wsgiref_threads(app: Any) -> Iterator[int]:
    """Serve a WSGI application, each request in a thread of its own; yield the port."""
    with _WSGIServer((HOST, 0), _WSGIHandler) as server:
        server.set_app(app)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(DEADLINE)


class _Gunicorn(BaseApplication):  # type: ignore[misc] # it has no types
    def __init__(self, app: Any, options: Mapping[str, object]) -> None:
        self._app = app
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._app


def _run_gunicorn(app: Any, options: Mapping[str, object]) -> None:
    _Gunicorn(app, options).run()


@contextmanager
def gunicorn_workers(app: Any, worker_class: str, **options: object) -> Iterator[int]:
    """Serve a WSGI application in forked workers of gunicorn; yield the port."""
    with socket.create_server((HOST, 0)) as listener, Crew("fork") as crew:
        fixed = {
            "bind": [f"fd://{listener.fileno()}"],
            "worker_class": worker_class,
            "control_socket_disable": True,
            "loglevel": "critical",
            "graceful_timeout": 2,
        }
        arbiter = crew.start(_run_gunicorn, app, fixed | options)
        yield listener.getsockname()[1]
        assert arbiter.pid is not None
        os.kill(arbiter.pid, signal.SIGTERM)
        wait_for_end(arbiter)


def threads(count: int, work: Callable[[int], None]) -> list[threading.Thread]:
    """Start that many threads, each with its number."""
    started = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in started:
        thread.start()
    return started
