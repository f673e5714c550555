"""The names of gates and caps, and where a named gate's file stands."""

from __future__ import annotations

import os
import re

from gatecount._core import DIRECTORY, MAX_CAP_NAME

PREFIX = "gatecount-"
MAX_NAME = 200
_KEYWORDS = frozenset({"headroom", "timeout", "max_waiting"})  # of calls whose other keywords are caps
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_name(value: object, argument: str, longest: int) -> str:
    """Return value if it may be a name; else raise TypeError or ValueError with the rule."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value).__name__} ({value!r})")
    if len(value) > longest or not _NAME.fullmatch(value):
        shown = value if len(value) <= longest else value[:20] + "…"
        raise ValueError(
            f"{argument} must be 1 to {longest} letters, digits, '_', '-' or '.', and not begin with "
            f"'-' or '.': {shown!r} is not"
        )
    return value


def check_gate_name(value: object) -> str:
    """Return value if a gate may have it as its name; else raise TypeError or ValueError."""
    return check_name(value, "name", MAX_NAME)


def check_cap_name(value: object) -> str:
    """Return value if a cap may have it as its name; else raise TypeError or ValueError."""
    name = check_name(value, "the name of a cap", MAX_CAP_NAME)
    if name in _KEYWORDS:
        raise ValueError(f"no cap can be named {name!r}: that is a keyword of Gate.admit")
    return name


def path_of(name: str) -> str:
    """Return the file of a gate of that name."""
    return os.path.join(DIRECTORY, PREFIX + name)
