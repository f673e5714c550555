"""The gate of a middleware: found at the first use in a process, and looked for until it can be used."""

from __future__ import annotations

import time
from typing import Final

from gatecount.errors import GatecountError, UnknownCap
from gatecount.gate import Gate
from gatecount.integrations._handover import handed_over
from gatecount.integrations._journal import logger
from gatecount.names import check_gate_name

RETRY: Final = 1.0
"""Seconds between two attempts at a gate that cannot be used, at least."""
RETRY_SHARE: Final = 10
"""An attempt may block its thread for a second: the rest after it is so many times as long."""


class Unusable(Exception):
    """The gate is missing, foreign, forbidden or closed, or has no slot left for this process."""


class GateSource:
    """A gate given as such, by name, or by the environment variable GATECOUNT_GATE (None).

    Opens nothing while it is made, so a server may make it before it forks, or before there is a gate.
    Safe from any thread; a forked child claims a slot of its own. needs are caps that the gate must
    have. Raises TypeError, ValueError.
    """

    def __init__(self, gate: Gate | str | None, needs: frozenset[str]) -> None:
        if isinstance(gate, str):
            check_gate_name(gate)  # for its rule: a wrong name is wrong for ever
        elif gate is not None and not isinstance(gate, Gate):
            raise TypeError(f"gate must be a Gate, a name or None, not {type(gate).__name__} ({gate!r})")
        self._name = None if isinstance(gate, Gate) else gate
        self._given = gate if isinstance(gate, Gate) else None
        self._needs = needs
        self._found: dict[str, Gate] = {}
        self._usable: Gate | None = None
        self._trouble = ""
        self._retry_at = 0.0

    def ready(self) -> Gate:
        """Return the gate, in which this process has a slot. Raises Unusable.

        Blocks for up to a second while a gate is just being created or a slot freed, and then not again
        for ten times as long; in between it raises at once.
        """
        return self._usable if self._usable is not None else self._attempt()

    def lost(self, error: Exception, took: float = 0.0) -> Unusable:
        """Take note that an attempt of so many seconds, or the use of the gate, has failed; return the
        error to be raised."""
        self._usable = None
        self._trouble = f"{type(error).__name__}: {error}"
        self._retry_at = time.monotonic() + max(RETRY, RETRY_SHARE * took)
        return Unusable(self._trouble)

    def _attempt(self) -> Gate:
        began = time.monotonic()
        if began < self._retry_at:
            raise Unusable(self._trouble)
        try:
            gate = self._open()
            for cap in self._needs.difference(gate.segment.caps):
                raise UnknownCap(cap, gate.segment.caps)
            gate.claim()
        except (GatecountError, OSError, ValueError) as error:  # ValueError: the variable holds no name
            self._found.clear()  # another may stand under the name by the next attempt
            raise self.lost(error, time.monotonic() - began) from error
        if self._trouble:
            logger.warning("the gate can be used again, after %s", self._trouble)
            self._trouble = ""
        self._usable = gate
        return gate

    def _open(self) -> Gate:
        found = self._found.get("gate") if self._given is None else self._given
        if found is not None:
            return found
        opened = handed_over(self._name)
        if opened is None:
            opened = Gate.from_env() if self._name is None else Gate.open(self._name)
        # Of threads that open it at once, one wins; the others' have no slot yet. A lock could be held
        # by a thread that a fork leaves behind.
        found = self._found.setdefault("gate", opened)
        if found is not opened:
            opened.close()
        return found
