"""Messages over a connected socket: one JSON array to a line, never pickle, and nothing unbounded."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Callable
from typing import Any, Final

MAX_LINE: Final = 1 << 20
"""Bytes; a longer message is nobody's who speaks this protocol."""

MAX_BACKLOG: Final = 16 << 20
"""Bytes that may wait for a peer which does not read: one that was stopped, say."""

_RECEIVE: Final = 1 << 14

HUNG_UP: Final = "hung up"
"""The reason for an end that is nobody's fault: the peer has closed the socket, or died."""

Message = list[Any]


class Channel:
    """One end of a socket pair, for one event loop. Owns the socket; not thread-safe.

    `on_message` is called with each message, in order. `on_end` is called once, from the loop, with
    the reason: the peer closed or died, does not read, or sent what is no message. Nothing is sent or
    received from then on, but the socket stays open until `close`, after which neither is called.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._backlog = bytearray()
        self._writing = False
        self._silent = False

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Begin to read, and to write what was sent before."""
        self._loop = loop
        self._on_message = on_message
        self._on_end = on_end
        loop.add_reader(self._socket, self._read)
        self._write()

    @property
    def hung_up(self) -> bool:
        """Whether the peer has closed its end or died, as the kernel knows at this instant."""
        if self._silent:
            return True
        poller = select.poll()
        poller.register(self._socket, 0)  # a hang-up is always told
        return bool(poller.poll(0))

    def send(self, message: Message) -> None:
        """Send, or keep until the peer reads. Never blocks; drops what is sent after the end."""
        if self._silent:
            return
        self._backlog += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if not self._writing:
            self._write()
        if len(self._backlog) > MAX_BACKLOG:
            self._end(f"does not read: {MAX_BACKLOG} bytes wait for it")

    def close(self) -> None:
        """Close the socket: the peer sees a hang-up. Idempotent, and right after the loop's end too."""
        self._fall_silent()
        self._socket.close()

    def _write(self) -> None:
        try:
            while self._backlog:
                del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            pass
        except OSError:
            # The peer has gone, which its hang-up tells the reader as well.
            self._backlog.clear()
        if self._loop is not None and self._writing != bool(self._backlog):
            self._writing = bool(self._backlog)
            if self._writing:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)

    def drain(self) -> None:
        """Take in whatever has arrived by now, without waiting for the loop to tell."""
        while self._read():
            pass

    def _read(self) -> bool:
        """Take in one piece; return whether more may be there.

        The loop takes them one to a turn: a peer that sends as fast as they are read would never let
        go of it otherwise.
        """
        if self._silent:
            return False
        try:
            received = self._socket.recv(_RECEIVE)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if received:
            self._take(received)
        else:
            self._end(HUNG_UP)
        return len(received) == _RECEIVE

    def _take(self, received: bytes) -> None:
        self._received += received
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        if len(rest) > MAX_LINE:
            self._end(f"sent a line of more than {MAX_LINE} bytes")
            return
        for line in lines:
            if self._silent:
                return
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, list):
                self._end(f"sent what is no message: {bytes(line[:40])!r}")
                return
            self._on_message(message)

    def _end(self, reason: str) -> None:
        if self._silent:
            return
        self._fall_silent()
        if self._loop is not None:
            # Not from within a send: its caller may be half-way through something.
            self._loop.call_soon(self._tell_end, reason)

    def _tell_end(self, reason: str) -> None:
        if self._socket.fileno() >= 0:
            self._on_end(reason)

    def _fall_silent(self) -> None:
        if self._silent:
            return
        self._silent = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
