"""The gates of this machine: what stands under their names, whoever put it there.

for found in gatecount.gates():
    print(found.name, found.problem or found.statistics)
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from dataclasses import dataclass
from typing import Literal

from gatecount._core import DIRECTORY
from gatecount.errors import LayoutMismatch
from gatecount.gate import Gate
from gatecount.names import PREFIX, path_of
from gatecount.statistics import GateStatistics

Status = Literal["ok", "denied", "invalid"]

_OUR_OWN_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # says nothing of the file


@dataclass(frozen=True)
class FoundGate:
    """What stands under one name."""

    name: str
    """What `Gate.open` takes. Of a file that no gate can have made, any text at all."""
    path: str
    status: Status
    """ok: a gate that this process may use; denied: another user's; invalid: damaged, foreign or of
    another version, so that nothing here will touch it."""
    problem: str | None
    """Why it is not ok."""
    user: str | None
    """Who owns the file: a name, or the number of a user without one."""
    permissions: int | None
    """The bits of the file's mode."""
    statistics: GateStatistics | None
    """None unless it is ok."""


def gates() -> tuple[FoundGate, ...]:
    """Return every gate of this machine that has a name, in the order of their names.

    Other users' gates and files that are no gates are told of, too, by their status. Nothing is written
    to shared memory: what dead owners held still counts. A gate that is created or removed meanwhile may
    be missing. Raises OSError if the directory cannot be read; one that does not exist holds no gates.
    """
    found = (look(name) for name in names())
    return tuple(one for one in found if one is not None)


def names() -> list[str]:
    """Return what follows the prefix of a gate's file in the name of each file that has it, sorted."""
    try:
        entries = os.listdir(DIRECTORY)
    except FileNotFoundError:
        return []
    return sorted(entry.removeprefix(PREFIX) for entry in entries if entry.startswith(PREFIX))


def open_now(name: str) -> Gate:
    """Open a gate as `Gate.open` does, but without waiting for one that is just being created.

    For who looks at every file: an empty one that will never be a gate must not take a second each time.
    Raises as `Gate.open` does.
    """
    return Gate._open(name, 0)


def look(name: str) -> FoundGate | None:
    """Return what stands under a name, or None if nothing does any more."""
    path = path_of(name)
    status: Status = "ok"
    problem = statistics = None
    try:
        told = os.lstat(path)
        with open_now(name) as gate:
            statistics = gate.statistics()
    except FileNotFoundError:
        return None
    except LayoutMismatch as mismatch:
        status, problem = "invalid", mismatch.reason
    except ValueError:
        status, problem = "invalid", "has a name that no gate can have"
    except PermissionError:
        status, problem = "denied", "may not be opened by this user"
    except OSError as error:
        if error.errno in _OUR_OWN_FAULT:
            raise
        status, problem = "invalid", error.strerror or str(error)
    return FoundGate(name, path, status, problem, _user(told.st_uid), told.st_mode & 0o777, statistics)


def _user(number: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return str(number)


__all__ = ["FoundGate", "gates"]
