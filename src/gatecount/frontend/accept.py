"""Accept connections on a socket that several server processes share: the least loaded takes the next.

The kernel wakes every process that waits, and whichever comes first takes the connection; so they pile
up in one. Here a server that wakes first looks at the others' rows of the board, and leaves the
connection to one that has fewer open. It gives that one PATIENCE seconds to be seen at work; if it is
not, it has been stopped, killed or is busy, and whoever waits suspects it, and does not wait for it
again, until its row changes. So nobody's stale load ever blocks the rest for longer than that, and a
lone survivor does not wait at all. Of equals, whoever comes first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from gatecount.frontend.board import Board, Row

PATIENCE: Final = 0.1
"""Seconds that a server with fewer connections may take to accept one before it is suspected."""
PAUSE: Final = 0.001
"""Seconds between two looks at the others while a connection is left to them."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
OF_ONE_CONNECTION: Final = frozenset(
    {errno.EPROTO, errno.EPERM, errno.ENOPROTOOPT}
    | {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""What accept(2) tells of a connection that has failed already, or that a firewall forbids."""
REST: Final = 0.5
"""Seconds to leave connections to the others when there is no descriptor or memory for one more."""
SILENCE: Final = 10.0
"""Seconds after a line that says so in which it is not said again."""

_log = logging.getLogger("gatecount.frontend")


class PublishedSet(set[Any]):
    """The open connections of one server, whose number its row shows as soon as it changes.

    Put in the place of uvicorn's own set. A WebSocket stays counted: its connection leaves the set as
    HTTP and enters it again.
    """

    def __init__(self, row: Row, connections: Iterable[Any] = ()) -> None:
        super().__init__(connections)
        self._row = row
        self._open = False

    def open(self) -> None:
        """Show from now on that this server accepts."""
        self._open = True
        self._publish()

    def close(self) -> None:
        """Show from now on that it does not, whatever is still open."""
        self._open = False
        self._row.connections = None

    def add(self, connection: Any) -> None:
        super().add(connection)
        self._publish()

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._publish()

    def remove(self, connection: Any) -> None:
        super().remove(connection)
        self._publish()

    def pop(self) -> Any:
        connection = super().pop()
        self._publish()
        return connection

    def clear(self) -> None:
        super().clear()
        self._publish()

    def _publish(self) -> None:
        if self._open:
            self._row.connections = len(self)


class LeastLoaded:
    """Tell one server whether a pending connection is its own to take. For one thread."""

    def __init__(self, board: Board, index: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._mine = board.at(index)
        self._others = [row for row in board.rows() if row.index != index]
        self._clock = clock
        self._since: dict[int, tuple[tuple[int, int], float]] = {}
        """Since when each other server has had fewer connections, and what its row showed then."""

    def may_accept(self) -> bool:
        """Return whether nobody who can be waited for has fewer connections. Call it while one pends."""
        mine = self._mine.connections or 0
        now = self._clock()
        waited_for = False
        for other in self._others:
            load = other.connections
            if load is None or load >= mine:
                self._since.pop(other.index, None)
                continue
            # `accepted` too: a connection that came and went leaves the load as it was.
            shown = (load, other.accepted)
            seen, since = self._since.get(other.index, (None, now))
            if seen != shown:
                self._since[other.index] = (shown, now)
                waited_for = True
            elif now - since < PATIENCE:
                waited_for = True
        return not waited_for

    def nothing_pends(self) -> None:
        """Forget how long the others have taken, but not who is suspected: there is nothing to take."""
        now = self._clock()
        self._since = {
            index: (shown, since)
            for index, (shown, since) in self._since.items()
            if now - since >= PATIENCE
        }


class Anybody:
    """Let every server take what it finds, as the kernel wakes them."""

    def may_accept(self) -> bool:
        return True

    def nothing_pends(self) -> None:
        pass


class Acceptor:
    """Accept connections for one server on a socket that it shares with others.

    Every connection is counted in `row` and given to `serve`, which returns once it is among those that
    the row shows: only then is the next one looked for. The listener is made non-blocking, which other
    processes see too.
    """

    def __init__(
        self,
        listener: socket.socket,
        row: Row,
        policy: LeastLoaded | Anybody,
        serve: Callable[[socket.socket], Awaitable[object]],
    ) -> None:
        self._listener = listener
        self._row = row
        self._policy = policy
        self._serve = serve
        self._silent_until = 0.0

    async def run(self) -> None:
        """Accept until cancelled. Raises OSError if the listener is of no use any more."""
        self._listener.setblocking(False)
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        while True:
            if not poller.poll(0):
                self._policy.nothing_pends()
                await self._until_one_pends()
            if not self._policy.may_accept():
                await asyncio.sleep(PAUSE)
                continue
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue  # another server was faster, or the client has gone
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    await asyncio.sleep(0)
                elif error.errno in EXHAUSTED:
                    self._complain(error)
                    await asyncio.sleep(REST)
                else:
                    raise
                continue
            self._row.count_accepted()
            try:
                await self._serve(connection)
            except OSError:  # it has gone already
                connection.close()

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + SILENCE
            _log.error("cannot accept: %s", error.strerror)

    async def _until_one_pends(self) -> None:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        descriptor = self._listener.fileno()
        loop.add_reader(descriptor, _resolve, readable)
        try:
            await readable
        finally:
            loop.remove_reader(descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
