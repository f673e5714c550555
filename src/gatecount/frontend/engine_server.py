"""What runs in the engine's process: the engine, and a connection to each server.

Before a newcomer is started, everything is ended whose permit the newcomer may have been given. Else
more than the limit would run, though nobody was ever granted too much. Two things give a permit back
while a sample still runs here:

  - A server aborts it, and tells the engine before it releases the permit. The newcomer comes over
    another connection, and the loop may read that one first. So once a newcomer has been read, all
    that has arrived on the other connections is read as well, and only then is it started.
  - A server dies. Its permits are free as soon as the kernel drops its lock, which is while it closes
    what the process held, one descriptor after another, and possibly long before the one that is
    connected here. So a hang-up is not enough: a server is also taken for dead when its process is
    marked as exiting, which the kernel does before it closes anything (PF_EXITING, in the flags of
    /proc/<pid>/stat). For that, servers and engine are of one pid namespace, as those of one parent are.

Both are asked of the kernel at that moment: an event that waits in the loop is no news to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Final

from gatecount.frontend.channel import HUNG_UP, Channel, Message
from gatecount.frontend.engine import EngineOutput, EngineRequest, ReferenceEngine
from gatecount.frontend.orphans import end_with_parent
from gatecount.frontend.settings import EngineSettings

logger = logging.getLogger(__name__)

READY: Final = b"r"

_PF_EXITING: Final = 0x4
_FLAGS: Final = 6
"""Place of the flags among the fields of /proc/<pid>/stat that follow the name of the command."""


def serve_engine(
    control: socket.socket,
    settings: EngineSettings,
    inherited: socket.socket | None = None,
    lasting: bool = False,
) -> None:
    """Run an engine until the other end of `control` is closed; the main function of its process.

    What comes over `control` are descriptors, each the engine's end of a connection to a server.
    `inherited` is the parent's end, if this process has got it by fork. `lasting` tells that the thread
    which has started this process will not end before it.
    """
    if lasting:
        end_with_parent()
    if inherited is not None:
        inherited.close()
    # The parent ends this process, and not a signal to the whole group: the servers may still have
    # requests to finish. A forked one may have its handlers.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(_Service(settings).serve(control))


class _Server:
    """A connection to a server, and what runs for it."""

    def __init__(self, name: int, connected: socket.socket) -> None:
        self.name = name
        self.descriptor = connected.fileno()
        self.channel = Channel(connected)
        self.samples: set[str] = set()
        """The engine's ids of what it has sent and what has not ended."""
        self.gone = False
        self.stat: int | None = None
        """The open /proc/<pid>/stat of its process, once it has told its pid and where there is one."""

    def sample(self, number: int) -> str:
        """Return the engine's id of a sample: servers may use the same numbers."""
        return f"{self.name}/{number}"

    def learn_pid(self, pid: int) -> None:
        """Remember whose the other end is."""
        with contextlib.suppress(OSError):
            self.stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def is_ending(self) -> bool:
        """Whether the process at the other end is being ended, or has been."""
        if self.stat is None:
            return False
        try:
            # The command may hold anything, but ends with the last parenthesis.
            fields = os.pread(self.stat, 1024, 0).rpartition(b")")[2].split()
        except ProcessLookupError:
            return True
        return bool(int(fields[_FLAGS]) & _PF_EXITING)

    def close(self) -> None:
        """Hang up."""
        self.gone = True
        self.channel.close()
        if self.stat is not None:
            os.close(self.stat)
            self.stat = None


class _Service:
    def __init__(self, settings: EngineSettings) -> None:
        self._engine = ReferenceEngine(settings)
        self._loaded = False
        self._servers: dict[int, _Server] = {}  # by their descriptors
        self._accepted = 0
        self._poller = select.poll()
        self._newcomers: dict[str, tuple[_Server, int, EngineRequest]] = {}
        """Read, and not started yet."""

    async def serve(self, control: socket.socket) -> None:
        """Load, say so, and serve until the control channel ends."""
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._accept, control)
        await self._engine.load()
        self._loaded = True
        for server in self._servers.values():
            self._begin(server)
        with contextlib.suppress(OSError):  # the parent's end is told to _accept
            control.send(READY)
        await asyncio.get_running_loop().create_future()

    def _accept(self, control: socket.socket) -> None:
        try:
            told, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            told = b""
        if not told:
            # The parent has gone, or lets go: nothing here is worth a moment's delay.
            os._exit(0)
        for descriptor in descriptors:
            self._accepted += 1
            server = _Server(self._accepted, socket.socket(fileno=descriptor))
            self._servers[descriptor] = server
            self._poller.register(descriptor, select.POLLIN)
            if self._loaded:
                self._begin(server)

    def _begin(self, server: _Server) -> None:
        # What a server sends while the engine loads waits in the socket.
        server.channel.send(["ready"])
        server.channel.attach(
            asyncio.get_running_loop(),
            lambda message: self._receive(server, message),
            lambda reason: self._end(server, reason),
        )

    def _receive(self, server: _Server, message: Message) -> None:
        try:
            self._obey(server, message)
        except ValueError as error:
            self._end(server, f"sent a bad message: {error}")

    def _obey(self, server: _Server, message: Message) -> None:
        match message:
            case ["generate", int(number), int(prompt_tokens), int(max_tokens)]:
                sample = server.sample(number)
                if sample in server.samples:
                    raise ValueError(f"sample {number} runs already")
                self._await_start(server, number, EngineRequest(sample, prompt_tokens, max_tokens))
            case ["abort", list(numbers)]:
                self._abort([server.sample(number) for number in numbers])
            case ["statistics", int(number)]:
                server.channel.send(["statistics", number, *astuple(self._engine.statistics())])
            case ["hello", int(pid)]:
                server.learn_pid(pid)
            case _:
                raise ValueError(f"{message!r:.40}")

    def _await_start(self, server: _Server, number: int, request: EngineRequest) -> None:
        if not self._newcomers:
            asyncio.get_running_loop().call_soon(self._start_newcomers)
        server.samples.add(request.request_id)
        self._newcomers[request.request_id] = server, number, request

    def _start_newcomers(self) -> None:
        """Start what had been read before this call, once its permits are its own for certain."""
        started = tuple(self._newcomers)
        self._end_the_dead_and_read_the_others()
        for sample in started:
            newcomer = self._newcomers.pop(sample, None)
            if newcomer is not None:
                self._start(*newcomer)
        if self._newcomers:
            asyncio.get_running_loop().call_soon(self._start_newcomers)

    def _end_the_dead_and_read_the_others(self) -> None:
        events = dict(self._poller.poll(0))
        hung_up = select.POLLHUP | select.POLLERR
        servers = tuple(self._servers.items())
        self._drop(
            [
                server
                for descriptor, server in servers
                if events.get(descriptor, 0) & hung_up or (server.samples and server.is_ending)
            ]
        )
        for descriptor, server in servers:
            if descriptor in events and not server.gone:
                server.channel.drain()

    def _start(self, server: _Server, number: int, request: EngineRequest) -> None:
        def tell(output: EngineOutput) -> None:
            if output.finish_reason is not None:
                server.samples.discard(request.request_id)
            server.channel.send(["output", number, output.token, output.finish_reason])

        self._engine.submit(request, tell)

    def _abort(self, samples: Iterable[str]) -> None:
        running = []
        for sample in samples:
            newcomer = self._newcomers.pop(sample, None)
            if newcomer is None:
                running.append(sample)
            else:
                newcomer[0].samples.discard(sample)
        self._engine.abort(running)

    def _end(self, server: _Server, reason: str) -> None:
        if reason != HUNG_UP:
            logger.error("engine: dropping the connection of a server, which %s", reason)
        self._drop([server])

    def _drop(self, servers: Sequence[_Server]) -> None:
        for server in servers:
            self._poller.unregister(server.descriptor)
            del self._servers[server.descriptor]
            server.close()
        # All at once: while some still waited, the engine might start them in the place of others.
        self._abort([sample for server in servers for sample in server.samples])
