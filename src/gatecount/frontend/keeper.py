"""One thread that starts the server processes, watches them, replaces them and ends them.

It alone touches the process objects: two threads that wait for one child would take its exit code from
each other. The others read what it publishes and wake it through a pipe. It blocks SIGINT, and so do
its children after it: a terminal sends Ctrl-C to them too, and they leave it to the parent to end them,
at whatever point of their start they are. It does not end before its children: the kernel kills them at
the end of the thread that has started them (`orphans`).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Final, Protocol

from gatecount.errors import GatecountError
from gatecount.frontend import children
from gatecount.frontend.errors import StartError
from gatecount.frontend.seat import MAX_REASON, Seat
from gatecount.interrupts import blocked

SETTLED: Final = 5.0
"""Seconds that a server has served after which its end is not one more of a row of ends."""

ENGINE_FIRST: Final = 0.5
"""Seconds in which the engine's end is seen if a server's own, during the start, comes from it."""

AT_ONCE: Final = 2 * (os.cpu_count() or 1) + 2
"""Servers that start at the same time, each beginning its time; more would only slow each other down."""

_log = logging.getLogger("gatecount.frontend")


class Engine(Protocol):
    """What the servers stand in front of, as far as their keeper knows it."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the engine has ended."""

    def cause_of_end(self) -> str:
        """Return how it has ended: "was ended by signal 9"."""

    def connect(self) -> socket.socket:
        """Return a new connection for one server; the caller closes it."""

    def wait_until_ready(self, timeout: float) -> None:
        """Return once it is loaded; raise StartError with one line if it never will be."""


class Flag:
    """A descriptor that becomes readable, for good, once it is set. For one setting thread."""

    def __init__(self) -> None:
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def set(self) -> None:
        self._writer.close()

    @property
    def is_set(self) -> bool:
        return self._reader.poll()


@dataclass(slots=True)
class _Server:
    """One index, and the process that has it now."""

    index: int
    process: SpawnProcess | None = None
    pid: int | None = None
    sentinel: int = -1
    pidfd: int | None = None
    answer: connection.Connection | None = None
    reason: str | None = None
    give_up_at: float = 0.0
    ready_at: float | None = None
    in_a_row: int = 0
    """How many have ended one after another, each soon after its start."""
    due: float | None = 0.0
    """When one is to be started."""


class Keeper:
    """The thread, and what it publishes: `all_ready`, `all_ended`, `failure`, `pids`."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[object, ...],
        *,
        servers: int,
        seat: Callable[[int, socket.socket | None, connection.Connection], Seat],
        reclaim: Callable[[int], None],
        engine: Engine | None,
        respawn: bool,
        start_timeout: float,
        stop_timeout: float,
    ) -> None:
        self._target = target
        self._arguments = arguments
        self._seat = seat
        self._reclaim = reclaim
        self._engine = engine
        self._respawn = respawn
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._context = multiprocessing.get_context("spawn")
        self._servers = [_Server(index) for index in range(servers)]
        # Reentrant: a collection at any point of any thread may end the manager, and so call `stop`.
        self._lock = threading.RLock()
        self._kill_at: float | None = None
        self._at_once = False
        self._woken, self._wake = multiprocessing.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._run, name="gatecount-keeper", daemon=True)
        self._started = False
        self.all_ready = Flag()
        self.all_ended = Flag()
        self.failure: str | None = None

    def start(self) -> None:
        """Begin; raises RuntimeError the second time."""
        with self._lock:
            if self._started:
                raise RuntimeError("the servers have been started already: make another manager")
            self._started = True
        with blocked(signal.SIGINT):  # the thread inherits it, and hands it on to its children
            self._thread.start()

    def pids(self) -> tuple[int | None, ...]:
        """Return the process of each server; None where there is none now."""
        return tuple(server.pid for server in self._servers)

    def ask_to_stop(self, timeout: float) -> None:
        """End all, killing after `timeout` seconds at the latest; do not wait for it."""
        kill_at = time.monotonic() + timeout
        with self._lock:
            if not self._started:
                self._started = True
                self.all_ended.set()
            self._at_once = self._at_once or timeout <= 0
            self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
            if not self.all_ended.is_set:
                self._wake.send_bytes(b"")

    def stop(self, timeout: float) -> None:
        """End all, and wait for it unless this is the keeper's own thread (a collection there)."""
        self.ask_to_stop(timeout)
        if threading.current_thread() is not self._thread:
            connection.wait([self.all_ended.fileno()])

    def _run(self) -> None:
        try:
            while self.failure is None and self._kill_at is None:
                self._turn()
        except Exception as error:  # noqa: BLE001 (whatever it is, no process may be left)
            _log.exception("the servers cannot be kept any longer")
            self._fail(f"the servers cannot be kept any longer: {error}")
        finally:
            try:
                self._end_all()
            finally:
                with self._lock:
                    self.all_ended.set()

    def _start_those_due(self) -> None:
        now = time.monotonic()
        for server in self._servers:
            if self._kill_at is not None or self.failure is not None or not self._has_room:
                return
            if server.due is None or server.due > now:
                continue
            try:
                self._start(server)
            except (OSError, GatecountError) as error:
                how = f"cannot be started: {error}"
                if self.all_ready.is_set:
                    self._schedule(server, how)
                else:
                    self._fail(self._engine_failure() or f"server {server.index} {how}")

    @property
    def _has_room(self) -> bool:
        return sum(server.answer is not None for server in self._servers) < AT_ONCE

    def _start(self, server: _Server) -> None:
        """Start a process for one index. Raises OSError, or what the engine's connect raises."""
        server.due = server.ready_at = server.reason = None
        answer, there = self._context.Pipe(duplex=False)
        try:
            with there, contextlib.ExitStack() as stack:
                engine = None
                if self._engine is not None:
                    engine = stack.enter_context(self._engine.connect())
                seat = self._seat(server.index, engine, there)
                process = self._context.Process(
                    target=self._target,
                    args=(seat, *self._arguments),
                    name=f"gatecount-server-{server.index}",
                )
                process.start()
        except BaseException:
            answer.close()
            raise
        server.answer = answer
        server.give_up_at = time.monotonic() + self._start_timeout
        server.process, server.pid = process, process.pid
        server.sentinel, server.pidfd = process.sentinel, children.pidfd(process)
        if server.pidfd is not None:
            server.sentinel = server.pidfd

    def _turn(self) -> None:
        """Start what is due, wait for the next thing to happen, and deal with it."""
        self._start_those_due()
        if self._kill_at is not None or self.failure is not None:
            return
        ready = self._wait(self._next_time())
        if self._woken.fileno() in ready:
            self._woken.recv_bytes()
        if self._engine is not None and self._engine.sentinel in ready:
            self._fail(self._engine_failure() or "the engine has ended")
            return
        for server in self._servers:
            if server.answer is not None and server.answer.fileno() in ready:
                self._hear(server)
            if server.process is not None and server.sentinel in ready:
                self._ended(server)
        now = time.monotonic()
        for server in self._servers:
            if server.answer is not None and server.give_up_at <= now:
                assert server.process is not None
                server.reason = f"was not ready within {self._start_timeout:g} s (--start-timeout)"
                server.answer.close()
                server.answer = None
                server.process.kill()

    def _wait(self, until: float | None, *, listen: bool = True) -> set[int]:
        descriptors = [server.sentinel for server in self._servers if server.process is not None]
        descriptors.append(self._woken.fileno())
        if listen:
            descriptors += [s.answer.fileno() for s in self._servers if s.answer is not None]
            if self._engine is not None:
                descriptors.append(self._engine.sentinel)
        timeout = None if until is None else max(0.0, until - time.monotonic())
        return {fd for fd in connection.wait(descriptors, timeout) if isinstance(fd, int)}

    def _next_time(self) -> float | None:
        times = [s.due for s in self._servers if s.due is not None] if self._has_room else []
        times += [server.give_up_at for server in self._servers if server.answer is not None]
        return min(times, default=None)

    def _hear(self, server: _Server) -> None:
        assert server.answer is not None
        try:
            said = server.answer.recv_bytes(MAX_REASON)
        except (EOFError, OSError):
            pass  # it ends without a word
        else:
            if said:
                server.reason = f"failed: {said.decode('utf-8', 'replace')}"
            else:
                server.ready_at = time.monotonic()
        server.answer.close()
        server.answer = None
        if server.ready_at is None:
            return
        if self.all_ready.is_set:
            _log.info("server %d serves again (process %s)", server.index, server.pid)
        elif all(other.ready_at is not None for other in self._servers):
            self.all_ready.set()

    def _ended(self, server: _Server) -> None:
        """Take back what a process that has ended held, and decide what follows."""
        if server.answer is not None and server.answer.poll():  # what it said last explains its end
            self._hear(server)
        how = self._bury(server)
        failure = self._engine_failure()
        if failure is not None or not self.all_ready.is_set:
            self._fail(failure or f"server {server.index} {how}")
        elif self._respawn:
            self._schedule(server, how)
        else:
            self._fail(f"server {server.index} {how}")

    def _bury(self, server: _Server) -> str:
        """Reap a process that has ended, reclaim what it held, and return how it ended."""
        assert server.process is not None
        how = server.reason or children.how(children.exit_code(server.process))
        if server.ready_at is None and server.reason is None:
            how += " before it was ready"
        if server.pidfd is not None:
            os.close(server.pidfd)
        if server.answer is not None:
            server.answer.close()
        server.process.close()
        server.process = server.pid = server.pidfd = server.answer = None
        self._reclaim(server.index)
        return how

    def _schedule(self, server: _Server, how: str) -> None:
        now = time.monotonic()
        if server.ready_at is not None and now - server.ready_at >= SETTLED:
            server.in_a_row = 0
        delay = back_off(server.in_a_row, served=server.ready_at is not None)
        server.in_a_row += 1
        server.due = now + delay
        again = f", {server.in_a_row} times in a row" if server.in_a_row > 1 else ""
        when = f"in {delay:g} s" if delay else "now"
        _log.warning("server %d %s%s; another takes its index %s", server.index, how, again, when)

    def _engine_failure(self) -> str | None:
        """Return why the engine has ended, if it has: the reason behind whatever a server says."""
        engine = self._engine
        starting = not self.all_ready.is_set
        if engine is None or not connection.wait([engine.sentinel], ENGINE_FIRST if starting else 0):
            return None
        if starting:
            try:
                engine.wait_until_ready(1.0)
            except StartError as error:
                return str(error)
        return f"the engine {engine.cause_of_end()}"

    def _fail(self, failure: str) -> None:
        if self.failure is None:
            self.failure = failure

    def _end_all(self) -> None:
        """End every process: SIGTERM, then SIGKILL at the time that was asked for."""
        if self._kill_at is None:
            self.ask_to_stop(self._stop_timeout)
        for server in self._servers:
            if server.process is not None:
                server.process.terminate()
        while any(server.process is not None for server in self._servers):
            assert self._kill_at is not None
            ready = self._wait(self._kill_at, listen=False)
            if self._woken.fileno() in ready:
                self._woken.recv_bytes()
            late = time.monotonic() >= self._kill_at
            for server in self._servers:
                if server.process is None:
                    continue
                if late and server.sentinel not in ready:
                    server.process.kill()
                    if server.ready_at is not None and not self._at_once:
                        _log.warning("server %d did not end in time, and was killed", server.index)
                if late or server.sentinel in ready:
                    self._bury(server)


def back_off(in_a_row: int, *, served: bool) -> float:
    """Return how many seconds to wait before the next start, after so many ends in a row before.

    One that had served is replaced at once, and from the second in a row on after 0.02 s and up to 1 s;
    one that had not even become ready after 0.1 s and up to 10 s.
    """
    doublings = min(in_a_row, 10)
    if not served:
        return float(min(0.1 * 2**doublings, 10.0))
    return float(min(0.01 * 2**doublings, 1.0)) if in_a_row else 0.0
