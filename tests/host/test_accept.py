"""Least-loaded accept: the policy by its clock, and the acceptor on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from gatecount.frontend import accept as accept_module
from gatecount.frontend.accept import (
    PATIENCE,
    Acceptor,
    Anybody,
    LeastLoaded,
    PublishedSet,
)
from gatecount.frontend.board import Board
from gatecount.listening import listen
from support import DEADLINE


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Turn:
    """A board, and server 0 of it, which has to decide."""

    def __init__(self, *loads: int | None) -> None:
        self.board = Board(len(loads))
        for row, load in zip(self.board.rows(), loads, strict=True):
            row.connections = load
        self.clock = Clock()
        self.policy = LeastLoaded(self.board, 0, clock=self.clock)

    def set(self, index: int, load: int | None) -> None:
        self.board.at(index).connections = load

    def after(self, seconds: float) -> bool:
        self.clock.now += seconds
        return self.policy.may_accept()


@pytest.mark.parametrize(
    ("loads", "accepts"),
    [
        ((0,), True),
        ((7,), True),
        ((1, 1, 1), True),
        ((1, 2, 3), True),
        ((2, 1, 3), False),
        ((1, 0), False),
        ((5, None, None), True),  # none of the others has started
        ((5, None, 4), False),
        ((0, None, 0), True),
    ],
)
def test_the_least_loaded_of_those_that_accept_takes_it_and_of_equals_anybody(
    loads: tuple[int | None, ...], accepts: bool
) -> None:
    assert Turn(*loads).policy.may_accept() is accepts


def test_one_that_does_not_take_its_turn_is_suspected_until_its_row_changes() -> None:
    turn = Turn(5, 1, 9)
    assert not turn.after(0)
    assert not turn.after(PATIENCE * 0.9)
    assert turn.after(PATIENCE * 0.2)
    assert turn.after(1000)  # and never waited for again
    turn.set(1, 2)  # it is alive
    assert not turn.after(0)
    assert not turn.after(PATIENCE * 0.9)
    assert turn.after(PATIENCE * 0.2)


def test_a_connection_that_came_and_went_is_a_sign_of_life_too() -> None:
    turn = Turn(5, 1)
    assert not turn.after(0)
    assert not turn.after(PATIENCE * 0.9)
    turn.board.at(1).count_accepted()  # the load is what it was
    assert not turn.after(PATIENCE * 0.9)
    assert turn.after(PATIENCE * 1.1)


def test_one_suspect_does_not_hide_another_server_that_is_less_loaded() -> None:
    turn = Turn(5, 1, 9)
    turn.after(0)
    assert turn.after(PATIENCE * 1.1)
    turn.set(2, 3)
    assert not turn.after(0)
    assert turn.after(PATIENCE * 1.1)


def test_time_in_which_nothing_pended_is_held_against_nobody() -> None:
    turn = Turn(5, 1)
    assert not turn.after(0)
    turn.policy.nothing_pends()
    turn.clock.now += 1000
    assert not turn.after(0)
    assert turn.after(PATIENCE * 1.1)
    turn.policy.nothing_pends()  # a suspect stays one
    assert turn.after(1000)


def test_a_set_of_connections_shows_its_size_from_its_opening_to_its_closing() -> None:
    row = Board(1).at(0)
    connections = PublishedSet(row, ["early"])
    connections.add("a")
    assert row.connections is None
    connections.open()
    assert row.connections == 2
    connections.add("b")
    connections.add("b")
    assert row.connections == 3
    connections.discard("a")
    connections.discard("a")
    assert row.connections == 2
    connections.remove("b")
    assert row.connections == 1
    connections.pop()
    assert row.connections == 0
    connections.add("c")
    connections.clear()
    assert row.connections == 0
    connections.add("d")
    connections.close()
    connections.add("e")
    connections.discard("d")
    assert row.connections is None
    assert connections == {"e"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


class FailsOnce:
    """A listener whose first accepts fail as the system may."""

    def __init__(self, listener: socket.socket, *errors: OSError) -> None:
        self._listener = listener
        self._errors = list(errors)

    def accept(self) -> tuple[socket.socket, object]:
        if self._errors:
            raise self._errors.pop()
        return self._listener.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._listener, name)


@pytest.mark.parametrize(
    "number", [errno.ECONNABORTED, errno.EAGAIN, errno.EPROTO, errno.EPERM, errno.EMFILE, errno.ENOMEM]
)
def test_an_accept_that_fails_is_tried_again(
    listener: socket.socket,
    number: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accept_module, "REST", 0.0)

    async def accept() -> None:
        accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        async def serve(connection: socket.socket) -> None:
            accepted.set_result(connection)

        failing = FailsOnce(listener, *[OSError(number, os.strerror(number)) for _ in range(3)])
        row = Board(1).at(0)
        acceptor = Acceptor(failing, row, Anybody(), serve)  # type: ignore[arg-type]
        task = asyncio.create_task(acceptor.run())
        with socket.create_connection(listener.getsockname()):
            with await asyncio.wait_for(accepted, DEADLINE):
                assert row.accepted == 1
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(accept())
    # Once, however often it failed; who says it is in front of every line of a server.
    said = [f"cannot accept: {os.strerror(number)}"] if number in (errno.EMFILE, errno.ENOMEM) else []
    assert caplog.messages == said


class Watched(LeastLoaded):
    """Has a clock of its own, and counts how often it looked and how often nothing was pending."""

    def __init__(self, board: Board, index: int, clock: Clock) -> None:
        super().__init__(board, index, clock=clock)
        self.looks = self.rests = 0

    def may_accept(self) -> bool:
        self.looks += 1
        return super().may_accept()

    def nothing_pends(self) -> None:
        self.rests += 1
        super().nothing_pends()


def test_a_connection_that_another_server_took_is_not_held_against_the_least_loaded(
    listener: socket.socket,
) -> None:
    async def more_than(count: Callable[[], int], before: int) -> None:
        while count() <= before:
            await asyncio.sleep(0.001)

    async def accept() -> None:
        accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        async def serve(connection: socket.socket) -> None:
            accepted.set_result(connection)

        board, clock = Board(2), Clock()
        board.at(0).connections, board.at(1).connections = 5, 1
        policy = Watched(board, 0, clock)
        task = asyncio.create_task(Acceptor(listener, board.at(0), policy, serve).run())
        await more_than(lambda: policy.rests, 0)
        with socket.create_connection(listener.getsockname()):
            await more_than(lambda: policy.looks, 0)
            rests = policy.rests
            taken, _ = listener.accept()  # by a third server, say: row 1 is as before
            with taken:
                await more_than(lambda: policy.rests, rests)
        clock.now += 2 * PATIENCE
        with socket.create_connection(listener.getsockname()):
            await more_than(lambda: policy.looks, policy.looks + 1)
            clock.now += PATIENCE * 0.9
            await more_than(lambda: policy.looks, policy.looks + 1)
            assert not accepted.done()
            clock.now += PATIENCE * 0.2
            (await accepted).close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(accept(), DEADLINE))


def test_a_listener_that_is_of_no_use_ends_the_acceptor(listener: socket.socket) -> None:
    async def accept() -> None:
        failing = FailsOnce(listener, OSError(errno.EINVAL, "not listening"))
        acceptor = Acceptor(failing, Board(1).at(0), Anybody(), asyncio.sleep)  # type: ignore[arg-type]
        with socket.create_connection(listener.getsockname()):
            await asyncio.wait_for(acceptor.run(), DEADLINE)

    with pytest.raises(OSError, match="not listening"):
        asyncio.run(accept())


def test_what_is_accepted_on_the_listening_socket_sends_without_delay() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, accepted)
            connection = transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport.close()
            await asyncio.sleep(0)

    asyncio.run(check())
