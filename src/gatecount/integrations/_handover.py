"""Gates that a server's hooks hand to the middlewares of the same process, slot and all."""

from __future__ import annotations

import os

from gatecount.gate import ENVIRONMENT, Gate

_gates: dict[str, Gate] = {}


def hand_over(name: str, gate: Gate) -> None:
    """Let the middlewares of this process use this gate where they are given the name."""
    _gates[name] = gate


def handed_over(name: str | None) -> Gate | None:
    """Return the gate that was handed over under the name, None being the one in GATECOUNT_GATE."""
    return _gates.get(os.environ.get(ENVIRONMENT, "") if name is None else name)
