"""What the tests of files share: the bytes of a good gate, and calls that must refuse a bad one."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gatecount import Gate, GateExists, LayoutMismatch
from support import path_of

LIMITS = {"requests": 10, "tokens": 1000}
SLOTS = 4

HEADER = {
    "magic": range(8),
    "layout hash": range(8, 16),
    "size": range(16, 24),
    "slots": range(24, 28),
    "caps": range(28, 32),
    "words": range(32, 40),
    "mode": range(40, 44),
    "creator": range(44, 48),
    "boot id": range(48, 64),
    "time": range(64, 72),
    "room for later": range(72, 128),
}
"""Where the fields of a header stand."""


def create(name: str, permissions: int = 0o600) -> Gate:
    return Gate.create(name, limits=LIMITS, slots=SLOTS, permissions=permissions)


def adopt(name: str) -> Gate:
    return Gate.create(name, limits=LIMITS, slots=SLOTS, exist_ok=True)


CALLS: dict[str, Callable[[str], object]] = {
    "open": Gate.open,
    "adopt": adopt,
    "remove": Gate.remove,
}


def good_bytes(name: str) -> bytes:
    """Return the bytes of a gate that stood under the name and is there no more."""
    create(name).close()
    whole = path_of(name).read_bytes()
    Gate.remove(name)
    return whole


def identity(path: Path) -> tuple[object, ...]:
    """Return what any write to a file would change, and what a replacement would."""
    told = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(told.st_mode) else None
    return told.st_ino, told.st_mode, told.st_uid, told.st_size, told.st_mtime_ns, content


def descriptors_of(path: Path) -> list[str]:
    """Return this process's descriptors of a file. Others may come and go with what is collected."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            if os.readlink(f"/proc/self/fd/{fd}") == str(path):
                found.append(fd)
    return found


def error_of(call: Callable[[str], object], name: str) -> tuple[type[Exception], str]:
    """Return type and text of the error that a call raises, and let go of everything else."""
    try:
        call(name)
    except Exception as error:  # noqa: BLE001 (it is for the test to judge)
        return type(error), str(error)
    raise AssertionError(f"{call} raised nothing")


def expect_refusal(
    name: str,
    reason: str = "",
    errors: tuple[type[Exception], ...] = (LayoutMismatch,),
    within: float = 30.0,
) -> None:
    """Find that each call raises one typed error that names the file, and leaves the file alone."""
    path = path_of(name)
    before, descriptors = identity(path), descriptors_of(path)
    for call in CALLS.values():
        began = time.monotonic()
        error, text = error_of(call, name)
        assert time.monotonic() - began < within
        assert issubclass(error, errors), text
        assert str(path) in text
        assert re.search(reason, text), text
    assert error_of(create, name)[0] is GateExists
    assert identity(path) == before
    assert descriptors_of(path) == descriptors
