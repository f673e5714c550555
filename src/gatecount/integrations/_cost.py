"""What a request costs, in units per cap: fixed, or told by a function that may be wrong."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from gatecount._core import MAX_LIMIT, check_int
from gatecount.errors import UnknownCap
from gatecount.names import check_cap_name

Cost = int | Mapping[str, int] | Callable[[Any], int | Mapping[str, int]]
Headroom = int | Callable[[Any], int]

_BEYOND = MAX_LIMIT + 1
"""Stands for every count that is more than any limit can be."""


class CostError(Exception):
    """A cost or headroom function raised, or returned what no gate can be asked for: see __cause__."""


class Price:
    """The cost and the headroom of requests. Raises TypeError or ValueError if they cannot be right."""

    def __init__(self, cost: Cost, headroom: Headroom) -> None:
        self._cost = _callable(cost, "cost")
        self._headroom = _callable(headroom, "headroom")
        self.varies = self._cost is not None
        """Whether the request decides what it costs."""
        self._amounts = {} if callable(cost) else _amounts(cost, 1)
        self._free = 0 if callable(headroom) else check_int(headroom, "headroom", 0, MAX_LIMIT)
        if _BEYOND in self._amounts.values():
            raise ValueError(
                f"cost must be at most {MAX_LIMIT:,}, which is the highest limit: not {cost!r}"
            )
        self.needs = frozenset(map(check_cap_name, self._amounts))
        """The caps that the gate must have."""
        self.fixed = None if self._cost or self._headroom else (self._amounts, self._free)
        """What `of` returns for every request, if it is the same for all."""

    def of(self, request: Any, caps: Collection[str]) -> tuple[dict[str, int], int]:
        """Return the units per cap, none of them 0, and the headroom. Raises CostError."""
        amounts, headroom = self._amounts, self._free
        try:
            if self._cost is not None:
                amounts = _amounts(self._cost(request), 0)
                for cap in amounts:
                    if cap not in caps:
                        raise UnknownCap(cap, tuple(caps))
            if self._headroom is not None:
                headroom = check_int(self._headroom(request), "headroom", 0, MAX_LIMIT)
        except Exception as error:
            raise CostError(f"{type(error).__name__}: {error}") from error
        if _BEYOND in amounts.values():
            # More than the gate can count. With this headroom it refuses whatever its limit.
            return {cap: MAX_LIMIT for cap, n in amounts.items() if n == _BEYOND}, MAX_LIMIT
        return {cap: n for cap, n in amounts.items() if n}, headroom


def _callable(value: object, name: str) -> Callable[[Any], Any] | None:
    if any(inspect.iscoroutinefunction(f) for f in (value, type(value).__call__)):
        raise TypeError(f"{name} must be a plain function, not a coroutine function ({value!r})")
    return value if callable(value) else None


def _amounts(cost: object, low: int) -> dict[str, int]:
    if not isinstance(cost, Mapping):
        return {"requests": _units(cost, "cost", low)}
    if not cost:
        raise ValueError("cost must name at least one cap, such as {'requests': 1}, not be empty")
    return {cap: _units(n, f"cost[{cap!r}]", low) for cap, n in cost.items()}


def _units(value: object, name: str, low: int) -> int:
    try:
        return check_int(value, name, low, MAX_LIMIT)
    except ValueError:
        if operator.index(value) > MAX_LIMIT:  # type: ignore[arg-type]
            return _BEYOND
        raise
