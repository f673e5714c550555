"""Servers for these tests: uvicorn on real sockets, on a thread of the test or in its own process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn
from starlette.types import ASGIApp

from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Board
from gatecount.frontend.engine_client import EngineClient, InprocEngineClient
from gatecount.frontend.engine_process import EngineProcess
from gatecount.frontend.http import build_app
from gatecount.frontend.metrics import Metrics
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.rendering import Prompt, Renderer
from gatecount.frontend.requests import RequestTable
from gatecount.frontend.service import CompletionService
from gatecount.frontend.settings import EngineSettings
from support import DEADLINE, Crew, wait_until

LONG = EngineSettings(service_time=10 * DEADLINE)
"""An engine whose samples do not end within a test, unless they are aborted."""
SLOW = EngineSettings(service_time=100.0)
"""With MANY tokens one comes every 10 ms, and never the last."""
MANY = 10_000
QUICK = EngineSettings(service_time=0.0)
PLAIN: dict[str, Any] = {"timeout": DEADLINE, "verify": False}
"""For httpx: without certificates, which take long to load for every client."""


class HeldRenderer(Renderer):
    """Renders a prompt only once it has been let go, as a slow tokenizer would."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.rendering = 0

    def render_here(self, prompt: object) -> Prompt:
        self.rendering += 1
        assert self.let_go.wait(DEADLINE)
        return super().render_here(prompt)

    def close(self) -> None:
        self.let_go.set()
        super().close()


class BrokenRenderer(Renderer):
    """Has a bug."""

    def render_here(self, prompt: object) -> Prompt:
        raise ArithmeticError("a bug in the tokenizer")


class Host:
    """The parts of one server process, wired as a host wires them."""

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        *,
        limit: int | None = None,
        token_limit: int | None = None,
        engine: EngineSettings | EngineClient = QUICK,
        renderer: Renderer | None = None,
        board: Board | None = None,
    ) -> None:
        config = config or {"client_count": 1, "client_index": 0}
        self.board = board or Board(config["client_count"], shared=False)
        self.row = self.board.at(config["client_index"])
        self.renderer = renderer or Renderer()
        self.client = InprocEngineClient(engine) if isinstance(engine, EngineSettings) else engine
        self.admission = Admission(config, max_num_queued_reqs=limit, max_num_queued_tokens=token_limit)
        self.table = RequestTable(self.admission)
        self.service = CompletionService(
            self.client, self.renderer, self.admission, self.table, self.row
        )
        self.metrics = Metrics(self.admission, self.board, self.client)

    @property
    def app(self) -> ASGIApp:
        return build_app(self.service, self.metrics)

    def is_empty(self) -> bool:
        """Tell whether nothing is held any more, by any account."""
        counts = (
            self.admission.requests_in_flight,
            self.admission.tokens_in_flight,
            len(self.admission._holdings),
            len(self.table),
            self.table.unfinished,
        )
        return counts == (0, 0, 0, 0, 0)

    def close(self) -> None:
        self.renderer.close()


def serve(stack: ExitStack, **options: Any) -> tuple[Host, Server]:
    """Serve a host on a thread until the end of the stack."""
    host = Host(**options)
    stack.callback(host.close)
    return host, stack.enter_context(Server(host.app))


class Server:
    """An ASGI application served by uvicorn on a thread, until the end of the block."""

    def __init__(self, app: ASGIApp, *, send_buffer: int | None = None, **options: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        if send_buffer is not None:  # of each connection: they inherit it
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # What a client keeps open is not closed just as it is used again, however slow the machine is.
        fixed: dict[str, Any] = {
            "timeout_graceful_shutdown": 1,
            "timeout_keep_alive": int(10 * DEADLINE),
        }
        options = fixed | {"log_level": "critical", "lifespan": "off"} | options
        self._server = uvicorn.Server(uvicorn.Config(app, ws="websockets-sansio", **options))
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._listener])

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the thread of the server's loop, and wait until it has returned."""
        called = threading.Event()

        def there() -> None:
            function()
            called.set()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(there)
        assert called.wait(DEADLINE)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it as SIGTERM does: what still runs after a second is cancelled."""
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        self._listener.close()


def request_of(path: str, **body: Any) -> bytes:
    """Return a request as it goes over the wire."""
    content = json.dumps({"prompt": "one two three", "max_tokens": 4} | body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Wire:
    """A client that can hang up: one connection, one request on it."""

    def __init__(self, port: int, path: str = "/v1/completions", **body: Any) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE)
        # Little room for what the test does not read, so that a server soon notices.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(request_of(path, **body))

    def read_until(self, mark: bytes) -> bytes:
        """Return what has come, once it contains a mark."""
        seen = bytearray()
        while mark not in seen[-65536 - len(mark) :]:
            part = self.socket.recv(65536)
            assert part, f"no {mark!r} in {bytes(seen)!r}"
            seen += part
        return bytes(seen)

    def hang_up(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.hang_up()


def completion(url: str, **body: Any) -> httpx.Response:
    """Ask for a completion, on a connection of its own."""
    body = {"prompt": "one two three", "max_tokens": 4} | body
    return httpx.post(f"{url}/v1/completions", json=body, **PLAIN)


def get(url: str, path: str) -> httpx.Response:
    """Get a page, on a connection of its own."""
    return httpx.get(f"{url}{path}", **PLAIN)


def refusal_of(response: httpx.Response, status: int) -> str:
    """Return the message of an error, whose shape is checked."""
    assert response.status_code == status
    error = response.json()["error"]
    kinds = {400: "Bad Request", 500: "Internal Server Error", 503: "Service Unavailable"}
    assert (error["type"], error["param"], error["code"]) == (
        kinds.get(status, error["type"]),
        None,
        status,
    )
    assert set(response.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def events(text: str) -> list[Any]:
    """Return what an event stream says, JSON decoded but for the closing mark."""
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def metric(url: str, line: str) -> float:
    """Return the value of one line of /metrics, named as it stands there; 0 if there is none.

    The engine's are waited for: they are left out when it takes a second to answer.
    """

    def found() -> list[float]:
        lines = get(url, "/metrics").text.splitlines()
        return [float(each.removeprefix(line)) for each in lines if each.startswith(f"{line} ")]

    if line.startswith("gatecount_engine_"):
        return wait_until(found)[0]
    return next(iter(found()), 0.0)


def serve_host(ports: Any, stop: Any, config: dict[str, Any], options: dict[str, Any]) -> None:
    """Be one of several server processes until told to stop."""
    if isinstance(options.get("engine"), socket.socket):
        options["engine"] = MPEngineClient(options["engine"])
    host = Host(config, **options)
    with Server(host.app) as server:
        ports.send(server.port)
        stop.wait()
    host.client.shutdown()
    host.close()


class Fleet:
    """Several server processes over one buffer, each on a port of its own.

    Each has an engine of its own, or all are in front of one: an `EngineProcess`.
    """

    def __init__(
        self,
        crew: Crew,
        buffer: Any,
        count: int,
        *,
        engine: EngineSettings | EngineProcess,
        **options: Any,
    ) -> None:
        self._stop = crew.context.Event()
        self._crew = crew
        self.urls = []
        ends = []
        for index in range(count):
            ours, theirs = crew.context.Pipe()
            config = {"client_count": count, "client_index": index, "mp_admission_counters": buffer}
            its = engine.connect() if isinstance(engine, EngineProcess) else engine
            crew.start(serve_host, theirs, self._stop, config, {"engine": its, **options})
            ends.append(ours)
            theirs.close()
            if isinstance(its, socket.socket):
                its.close()
        for end in ends:
            assert end.poll(DEADLINE), "a server did not start"
            self.urls.append(f"http://127.0.0.1:{end.recv()}")
            end.close()

    @property
    def ports(self) -> list[int]:
        return [int(url.rpartition(":")[2]) for url in self.urls]

    def total(self, line: str) -> float:
        """Return the sum of a metric over all servers."""
        return sum(metric(url, line) for url in self.urls)

    def end(self) -> None:
        """Let all servers end by themselves."""
        self._stop.set()
        self._crew.join()
