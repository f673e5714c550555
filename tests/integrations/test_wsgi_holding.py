"""From when to when a WSGI request holds its permit, and that nothing else of it is touched."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from gatecount import Gate
from gatecount.integrations.wsgi import AdmissionMiddleware
from integrations.middleware_servers import (
    abort,
    ask,
    becomes,
    gunicorn_workers,
    half_read,
    in_flight,
    threads,
    wsgiref_threads,
)
from support import DEADLINE

Environ = dict[str, Any]
Serve = Callable[..., AbstractContextManager[int]]

SERVERS: dict[str, Serve] = {
    "wsgiref": wsgiref_threads,
    "gunicorn sync": lambda app: gunicorn_workers(app, "sync", workers=4),
    "gunicorn gthread": lambda app: gunicorn_workers(app, "gthread", threads=4),
}


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest) -> Serve:
    return SERVERS[request.param]


@pytest.fixture
def event() -> Any:
    """Return an event that workers see, too, which were forked after it was made."""
    return multiprocessing.get_context("fork").Event()


def start(start_response: Any, *headers: tuple[str, str]) -> None:
    start_response("200 OK", list(headers))


# Bodies


def test_a_stream_holds_its_permit_until_its_last_byte(serve: Serve, gate: Gate, event: Any) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start(start_response)
        yield b"first "
        assert event.wait(DEADLINE)
        yield b"last"

    with serve(AdmissionMiddleware(app, gate)) as port:
        with half_read(port) as client:
            assert in_flight(gate) == 1
            with half_read(port):
                assert in_flight(gate) == 2
                assert ask(port).status == 503
                event.set()
            received = b""
            while b"last" not in received:
                received += client.recv(1000)
            becomes(gate, 0)
        assert ask(port).body == b"first last"
        becomes(gate, 0)


@pytest.mark.parametrize("leave", [abort, socket.socket.close])
def test_a_client_that_has_gone_gives_the_permit_back(
    serve: Serve, gate: Gate, event: Any, leave: Callable[[socket.socket], None]
) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start(start_response)
        try:
            while True:
                yield b"x" * 10_000
        finally:
            event.set()

    with serve(AdmissionMiddleware(app, gate)) as port:
        with half_read(port) as client:
            assert in_flight(gate) == 1
            leave(client)
            becomes(gate, 0)
        assert event.wait(DEADLINE)


def test_an_application_that_raises_at_any_point_holds_nothing(serve: Serve, gate: Gate) -> None:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        point = environ["PATH_INFO"]
        if point == "/before":
            raise RuntimeError("the application's own")
        start(start_response)
        if point == "/started":
            raise RuntimeError("the application's own")

        def parts() -> Iterator[bytes]:
            if point == "/first":
                raise RuntimeError("the application's own")
            yield b"first"
            raise RuntimeError("the application's own")

        return parts()

    points = ("/before", "/started", "/first", "/second")
    with serve(AdmissionMiddleware(app, gate)) as port:
        for point in points * 2:
            with contextlib.suppress(OSError, http.client.HTTPException):
                assert ask(port, point).status == (200 if point == "/second" else 500)
        becomes(gate, 0)
    assert gate.statistics().caps["requests"].admitted == 2 * len(points)


def test_a_file_is_sent_whole_and_its_permit_comes_back(serve: Serve, gate: Gate, tmp_path: Any) -> None:
    content = os.urandom(300_000)
    (tmp_path / "file").write_bytes(content)

    def app(environ: Environ, start_response: Any) -> Any:
        start(start_response, ("content-length", str(len(content))))
        return environ["wsgi.file_wrapper"]((tmp_path / "file").open("rb"))

    with serve(AdmissionMiddleware(app, gate)) as port:
        for _ in range(3):
            assert ask(port).body == content
            becomes(gate, 0)
    assert gate.statistics().caps["requests"].admitted == 3


def test_processes_and_threads_share_one_limit(serve: Serve, gate: Gate, event: Any) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start(start_response)
        yield b"first "
        assert event.wait(DEADLINE)

    with serve(AdmissionMiddleware(app, gate)) as port, half_read(port), half_read(port):
        assert [ask(port).status for _ in range(5)] == [503] * 5
        assert in_flight(gate) == 2
        event.set()
        becomes(gate, 0)


# Without a server: what no server can be made to do at will


class Body:
    """An application's iterable that knows what was done to it."""

    def __init__(self, gate: Gate, fails: bool = False) -> None:
        self.gate = gate
        self.fails = fails
        self.held_at_close: list[int] = []

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    def close(self) -> None:
        self.held_at_close.append(in_flight(self.gate))
        if self.fails:
            raise RuntimeError("in the application's close")


def call(app: Any, **environ: Any) -> Any:
    return app({"REQUEST_METHOD": "GET", "PATH_INFO": "/"} | environ, lambda *_: None)


def test_a_body_that_is_never_iterated_is_closed_and_its_permit_comes_back_once(gate: Gate) -> None:
    body = Body(gate)
    with gate.admit():  # another's, which one release too many would take
        held = call(AdmissionMiddleware(lambda *_: body, gate))
        assert in_flight(gate) == 2
        held.close()
        assert in_flight(gate) == 1
        held.close()
        assert in_flight(gate) == 1
    # The application's close is called as often as the server calls, and first while the permit is held.
    assert body.held_at_close == [2, 1]


def test_a_close_that_raises_releases_and_is_told(gate: Gate) -> None:
    held = call(AdmissionMiddleware(lambda *_: Body(gate, fails=True), gate))
    with pytest.raises(RuntimeError, match="in the application's close"):
        held.close()
    assert in_flight(gate) == 0


def test_a_body_iterated_in_part_is_held_until_it_is_closed(gate: Gate) -> None:
    held = call(AdmissionMiddleware(lambda *_: Body(gate), gate))
    assert next(iter(held)) == b"one"
    assert in_flight(gate) == 1
    held.close()
    assert in_flight(gate) == 0


def test_a_generator_that_is_closed_early_runs_its_clean_up_while_the_permit_is_held(gate: Gate) -> None:
    seen: list[int] = []

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        try:
            yield b"one"
            yield b"two"
        finally:
            seen.append(in_flight(gate))

    held = call(AdmissionMiddleware(app, gate))
    assert next(iter(held)) == b"one"
    held.close()
    assert seen == [1]
    assert in_flight(gate) == 0


def test_a_body_that_a_server_drops_unclosed_gives_its_permit_back_and_warns(gate: Gate) -> None:
    held = call(AdmissionMiddleware(lambda *_: [b"one"], gate))
    assert in_flight(gate) == 1
    with pytest.warns(ResourceWarning, match="dropped without release"):
        del held
    assert in_flight(gate) == 0


def test_what_ends_a_worker_in_the_application_gives_the_permit_back(gate: Gate) -> None:
    for ending in (SystemExit, KeyboardInterrupt, GeneratorExit):

        def app(environ: Environ, start_response: Any, ending: type[BaseException] = ending) -> Any:
            raise ending

        with pytest.raises(ending):
            call(AdmissionMiddleware(app, gate))
        assert in_flight(gate) == 0


def test_the_number_of_parts_stays_known_and_unknown(gate: Gate) -> None:
    for body, length in (([b"one", b"two"], 2), ([], 0), (Body(gate), None)):
        held = call(AdmissionMiddleware(lambda *_, body=body: body, gate))
        assert (len(held) if hasattr(held, "__len__") else None) == length
        assert list(held) == list(body)
        held.close()
    assert in_flight(gate) == 0


def test_a_servers_own_file_stays_recognisable_to_it(gate: Gate, tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"of a file")
    file = (tmp_path / "file").open("rb")
    middleware = AdmissionMiddleware(lambda environ, _: environ["wsgi.file_wrapper"](file), gate)
    held = call(middleware, **{"wsgi.file_wrapper": FileWrapper})
    assert isinstance(held, FileWrapper)
    assert in_flight(gate) == 1
    held.close()
    assert file.closed
    assert in_flight(gate) == 0


def test_a_file_from_a_wrapper_that_is_a_function_is_sent_in_pieces(gate: Gate, tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(bytes(300_000))
    file = (tmp_path / "file").open("rb")
    middleware = AdmissionMiddleware(lambda environ, _: environ["wsgi.file_wrapper"](file), gate)
    held = call(middleware, **{"wsgi.file_wrapper": lambda body, _size=0: body})
    sizes = [len(piece) for piece in held]
    assert (sum(sizes), max(sizes)) == (300_000, 65_536)
    assert in_flight(gate) == 1
    held.close()
    assert file.closed
    assert in_flight(gate) == 0


def test_a_servers_own_file_that_takes_no_attributes_is_held_all_the_same(gate: Gate) -> None:
    class Sealed:
        __slots__ = ()

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"of a file"])

    held = call(AdmissionMiddleware(lambda *_: Sealed(), gate), **{"wsgi.file_wrapper": Sealed})
    assert in_flight(gate) == 1
    assert list(held) == [b"of a file"]
    held.close()
    assert in_flight(gate) == 0


def test_a_child_that_is_forked_in_a_request_releases_nothing_of_its_parents(gate: Gate) -> None:
    pids: list[int] = []

    def app(environ: Environ, start_response: Any) -> Any:
        pids.append(os.fork())
        return [b"one"]

    with gate.admit():
        held = call(AdmissionMiddleware(app, gate))
        if pids[0] == 0:
            held.close()
            os._exit(0)
        assert os.waitpid(pids[0], 0)[1] == 0
        assert in_flight(gate) == 2
        held.close()
        assert in_flight(gate) == 1


def test_a_strict_server_finds_no_fault(gate: Gate) -> None:
    """Both what is passed and what is refused keeps to PEP 3333."""

    def app(environ: Environ, start_response: Any) -> Any:
        start(start_response, ("content-type", "text/plain"))
        return [b"served"]

    strict = validator(AdmissionMiddleware(validator(app), gate))
    with wsgiref_threads(strict) as port:
        assert ask(port).body == b"served"
        becomes(gate, 0)
        with gate.admit(requests=2):
            assert ask(port).status == 503
            assert ask(port, method="HEAD").status == 503


def test_the_exempt_path_is_what_the_client_asks_for_under_a_mount(gate: Gate) -> None:
    middleware = AdmissionMiddleware(lambda *_: [b"served"], gate, exempt=("/api/health",))
    with gate.admit(requests=2):
        assert call(middleware, SCRIPT_NAME="/api", PATH_INFO="/health") == [b"served"]
        assert call(middleware, SCRIPT_NAME="", PATH_INFO="/health") != [b"served"]


def test_a_middleware_made_before_the_fork_and_before_the_gate_works_in_each_worker(
    gate_name: str, event: Any
) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start(start_response)
        yield str(os.getpid()).encode()
        assert event.wait(DEADLINE)

    middleware = AdmissionMiddleware(app, gate_name)
    with (
        gunicorn_workers(middleware, "sync", workers=3, preload_app=True) as port,
        Gate.create(gate_name, limits={"requests": 3}, slots=3) as gate,
    ):
        with half_read(port), half_read(port), half_read(port):
            slots = gate.statistics().slots
            assert [slot.held for slot in slots] == [{"requests": 1}] * 3
            assert os.getpid() not in {slot.pid for slot in slots}
            event.set()
        becomes(gate, 0)


def test_two_servers_behind_one_gate_share_one_limit(gate: Gate, event: Any) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start(start_response)
        yield b"first "
        assert event.wait(DEADLINE)

    def serving() -> AbstractContextManager[int]:
        return gunicorn_workers(AdmissionMiddleware(app, gate), "gthread", threads=4)

    with serving() as one, serving() as other, half_read(one), half_read(other):
        assert {ask(port).status for port in (one, other) for _ in range(3)} == {503}
        event.set()
        becomes(gate, 0)


def test_threads_that_open_the_gate_at_once_take_one_slot(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = threading.Barrier(4)
    opened: list[Gate] = []
    really_open = Gate.open

    def open_together(name: str) -> Gate:
        mine = really_open(name)
        opened.append(mine)
        everybody.wait(DEADLINE)
        return mine

    bodies: list[Any] = []
    with Gate.create(gate_name, limits={"requests": 9}, slots=8) as gate:
        monkeypatch.setattr(Gate, "open", open_together)
        middleware = AdmissionMiddleware(lambda *_: [b"served"], gate_name)
        for thread in threads(4, lambda _: bodies.append(call(middleware))):
            thread.join(DEADLINE)
        assert len(opened) == len(bodies) == in_flight(gate) == 4
        assert len(gate.statistics().slots) == 1
        assert sum(not each.closed for each in opened) == 1
        for body in bodies:
            body.close()
        assert in_flight(gate) == 0
