"""Ready hooks for gunicorn: one gate over all workers of all generations, from the start to the exit.

# gunicorn.conf.py
gate = GateHooks("api", limits={"requests": 10}, slots=2 * workers)
nworkers_changed, post_fork = gate.nworkers_changed, gate.post_fork
child_exit, on_exit = gate.child_exit, gate.on_exit

The name travels to the workers by GATECOUNT_GATE, so that their middlewares need none. At a reload (HUP)
gunicorn reads its configuration anew and makes new hooks: what has to outlast that is kept here, per
master. After an upgrade (USR2) two masters stand side by side, the new one a child of the old: it adopts
the gate, and only the master that is the last removes it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from gatecount.errors import GatecountError, GateNotFound
from gatecount.gate import ENVIRONMENT, Gate
from gatecount.integrations._handover import hand_over

KILLED: Final = 1.0
"""Seconds for which workers that were killed in the end may take to be gone, at most."""

_standing: dict[str, Gate] = {}
"""The gates of this master: more than one only after a reload under another name."""


class GateHooks:
    """The hooks of a gunicorn master for one gate; the arguments are those of `Gate.create`.

    slots must be at least twice the number of workers, as a reload has both generations at a time.
    Nothing is done, and nothing is checked, before gunicorn calls a hook: a configuration that is only
    looked at (--check-config) leaves nothing behind. Each hook is for the master, but for `post_fork`.
    To add something of your own to one, define it in the configuration and call this one from it.
    """

    def __init__(
        self,
        name: str,
        *,
        limits: Mapping[str, int],
        slots: int = 16,
        mode: str = "hard",
        permissions: int = 0o600,
    ) -> None:
        self._name = name
        self._layout: dict[str, Any] = {
            "limits": limits,
            "slots": slots,
            "mode": mode,
            "permissions": permissions,
        }
        self._applied = False

    def nworkers_changed(self, server: Any, new_value: int, old_value: int | None) -> None:
        """Create the gate, or adopt the one that stands under the name, and publish the name.

        Of all hooks this is the first: gunicorn calls it before it loads an application (--preload),
        when it starts, and again with the new hooks of a reload, where the limits become those of the
        configuration. A start that cannot have its gate ends with one line in the log and exit code 1;
        a reload that cannot is logged, and the service goes on with the gate it has. When workers are
        added one by one (TTIN), only their number is checked: slots for less than two sets are logged.
        """
        if not self._applied:
            self._applied = True
            try:
                self._apply(server)
            # TypeError and ValueError: of an argument.
            except (GatecountError, OSError, TypeError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                if old_value is None:
                    server.log.error("gate %r cannot be used: %s", self._name, reason)
                    sys.exit(1)
                server.log.error("reload: the gate stays as it was: %s", reason)
        gate = _published()
        if gate is not None and gate.segment.slots < 2 * new_value:
            server.log.warning(
                "gate %r has %d slots, but a reload of %d workers needs %d: create it with more slots=",
                gate.name,
                gate.segment.slots,
                new_value,
                2 * new_value,
            )

    def _apply(self, server: Any) -> None:
        gate = Gate.create(self._name, **self._layout, exist_ok=True)
        if not _standing:
            # gunicorn calls no hook of a start that fails (a port in use), nor if workers that fail in
            # the midst of the shutdown break it off.
            atexit.register(_leave, server, os.getpid())
        before = _standing.get(self._name)
        _standing[self._name] = gate
        os.environ[ENVIRONMENT] = self._name
        if before is not None:
            before.close()

    def post_fork(self, server: Any, worker: Any) -> None:
        """Claim a slot in the new worker, for its middlewares to use; log it if there is none.

        A worker without a slot goes on: its middleware refuses, or lets in, what it cannot count, until
        it gets one.
        """
        gate = _published()
        if gate is None:
            return
        hand_over(os.environ[ENVIRONMENT], gate)
        try:
            gate.claim()
        except (GatecountError, OSError) as error:
            server.log.error("worker %s has no slot in gate %r: %s", worker.pid, gate.name, error)

    def child_exit(self, server: Any, worker: Any) -> None:
        """Take back what a worker that has ended still held, at once rather than when it is missed."""
        for gate in _standing.values():
            try:
                gate.reclaim()
            except (GatecountError, OSError) as error:  # it is done all the same when it is missed
                server.log.warning("gate %r after worker %s: %s", gate.name, worker.pid, error)

    def on_exit(self, server: Any) -> None:
        """Remove the gate's name, unless another master goes on with it or its processes still live."""
        _remove(server)


def _published() -> Gate | None:
    return _standing.get(os.environ.get(ENVIRONMENT, ""))


def _remove(server: Any) -> None:
    last = not _has_another_master(server)
    deadline = time.monotonic() + KILLED
    while _standing:
        name, gate = _standing.popitem()
        with gate:
            # gunicorn does not wait for the workers that it has to kill. Others that live are not its
            # own: somebody else's start under the same name, on another port, is to go on.
            while last and (alive := gate.statistics().slots) and time.monotonic() < deadline:
                time.sleep(0.01)
            if not last or alive:
                continue
        try:
            Gate.remove(name)
        except GateNotFound:
            pass
        except (GatecountError, OSError) as error:
            server.log.warning("gate %r cannot be removed: %s", name, error)


def _has_another_master(server: Any) -> bool:
    """Tell whether this master is one of the two of an upgrade, and the other lives."""
    upgraded = getattr(server, "reexec_pid", 0)
    try:
        # Without waiting for it: gunicorn does.
        if upgraded and not os.waitid(os.P_PID, upgraded, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
    except ChildProcessError:
        pass
    return os.environ.get("GUNICORN_PID") == str(os.getppid())  # as the old one hands over its pid


def _leave(server: Any, master: int) -> None:
    """Clean up at a master's end, if `on_exit` has not; its workers' ends are not its own."""
    if os.getpid() == master:
        _remove(server)
