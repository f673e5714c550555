"""The process that the engine runs in, as its parent sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import threading
import weakref
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Final, Literal, get_args

from gatecount.frontend.engine_server import READY, serve_engine
from gatecount.frontend.errors import EngineDead, StartError
from gatecount.frontend.settings import EngineSettings
from gatecount.interrupts import blocked

StartMethod = Literal["spawn", "fork"]

STOP_DEADLINE: Final = 3.0
"""Seconds a process has to end once it was told to, before it is killed."""

_REAP_DEADLINE: Final = 3.0
"""Seconds; the kernel closes what a process held a little before its exit code is there."""


class EngineProcess:
    """Starts one engine in a process of its own; any number of servers can be connected to it.

    Parent and engine share a control channel, and nothing with a name. Its end, which comes with the
    parent's death however that dies, ends the engine; `shutdown` does, and so does garbage collection
    of this object. Thread-safe; of no use in a forked child, and harmless there.

    SIGINT and SIGTERM are blocked in the process from its first instruction. That is why a fork server
    cannot start it: what it starts has the signal mask that the server itself was started with. Raises
    ValueError for a `start_method` other than spawn and fork.
    """

    def __init__(self, settings: EngineSettings, start_method: StartMethod = "spawn") -> None:
        if start_method not in get_args(StartMethod):
            raise ValueError(f"start_method must be 'spawn' or 'fork', not {start_method!r}")
        context = multiprocessing.get_context(start_method)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._ready = False
        self._control, there = socket.socketpair()
        # A forked child has its parent's end too, and would never see it close.
        inherited = self._control if start_method == "fork" else None
        # The kernel would take the end of any other thread that starts it for the parent's.
        lasting = threading.current_thread() is threading.main_thread()
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=serve_engine,
            args=(there, settings, inherited, lasting),
            daemon=True,
            name="gatecount-engine",
        )
        try:
            with blocked(signal.SIGINT, signal.SIGTERM):
                self._process.start()
        except BaseException:
            self._control.close()
            raise
        finally:
            there.close()
        self._finalizer = weakref.finalize(
            self, _end, self._process, self._control, STOP_DEADLINE, self._owner
        )

    @property
    def pid(self) -> int:
        """The engine's process id."""
        assert self._process.pid is not None  # it was started
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the engine has ended."""
        return self._process.sentinel

    @property
    def ready_fd(self) -> int:
        """A descriptor that becomes readable when there is something for `wait_until_ready` to tell.

        That is readiness, or the end before it. Closed by `shutdown`.
        """
        return self._control.fileno()

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended, as the kernel knows at this instant."""
        return not connection.wait([self.sentinel], 0)

    @property
    def exitcode(self) -> int | None:
        """How the process ended, minus the number of the signal that ended it; None while it runs."""
        with self._lock:
            return self._process.exitcode

    def connect(self) -> socket.socket:
        """Return a new connection to the engine, for one server; valid at once, while it loads too.

        Hand it to the server's process and close it here: the engine learns from its end that the
        server is gone. Raises EngineDead if the engine has ended or does not take connections.
        """
        here, there = socket.socketpair()
        with there:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"c"], [there.fileno()], socket.MSG_DONTWAIT)
            except OSError as error:
                here.close()
                raise EngineDead(f"the engine takes no connection: {error.strerror or error}") from None
        return here

    def wait_until_ready(self, timeout: float) -> None:
        """Return once the engine has loaded.

        Raises StartError, after ending it, if it ends by itself before or takes over timeout seconds.
        For one thread at a time.
        """
        if self._ready:
            return
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(max(0.0, timeout) * 1000):
            self.shutdown()
            raise StartError(f"the engine was not ready within {timeout:g} s")
        with contextlib.suppress(ConnectionResetError):
            self._ready = self._control.recv(1) == READY
        if not self._ready:
            cause = self.cause_of_end()
            self.shutdown()
            raise StartError(f"the engine {cause} while it was loading")

    def cause_of_end(self) -> str:
        """Return how the engine has ended, which a connection's end has shown: "was ended by signal 9".

        May block for a moment, until the exit code is there.
        """
        with self._lock:
            self._process.join(_REAP_DEADLINE)
            code = self._process.exitcode
        if code is None:
            return "closed its connection"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def shutdown(self, timeout: float = STOP_DEADLINE) -> None:
        """Tell the engine to end, and kill it if it is there after timeout seconds. Idempotent."""
        with self._lock:
            if self._finalizer.detach() is not None:
                _end(self._process, self._control, timeout, self._owner)


def _end(process: BaseProcess, control: socket.socket, timeout: float, owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):  # it has ended already
        control.shutdown(socket.SHUT_RDWR)  # seen there though a forked child may have a copy
    control.close()
    process.join(timeout)
    process.kill()
    process.join()
