"""Counts as people write them: 500, 32k, 1K."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    _Type = click.ParamType[int]
else:
    _Type = click.ParamType  # not generic in every click that will do

UNITS: Final = {"": 1}
for _power, _letter in enumerate("kmg", start=1):
    UNITS[_letter] = 1000**_power
    UNITS[_letter.upper()] = 1024**_power

_COUNT: Final = re.compile(r"([0-9]+)([A-Za-z]*)")


class Count(_Type):
    """A whole number from `least` to `most`, with k, m, g for powers of 1,000 and K, M, G of 1,024."""

    name = "count"

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert an option's text, or fail as a usage error that says the rule."""
        if isinstance(value, int):
            return self._within(value, param, ctx)
        text = str(value).strip()
        found = _COUNT.fullmatch(text)
        if found is None or found[2] not in UNITS:
            self.fail(_complaint(text), param, ctx)
        digits = found[1].lstrip("0") or "0"
        if len(digits) > len(str(self.most)):  # more than Python would convert, perhaps
            self.fail(self._outside(f"a number of {len(digits):,} digits"), param, ctx)
        return self._within(int(digits) * UNITS[found[2]], param, ctx)

    def _within(self, count: int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not self.least <= count <= self.most:
            self.fail(self._outside(f"{count:,}"), param, ctx)
        return count

    def _outside(self, told: str) -> str:
        return f"{told} is not from {self.least:,} to {self.most:,}."


def _complaint(text: str) -> str:
    rule = "write digits alone, or with k, m, g (32k is 32,000) or K, M, G (1K is 1,024)."
    if text.startswith("-"):
        return f"{text!r} is negative: {rule}"
    if re.fullmatch(r"[0-9]*[.,_][0-9.,_]*[A-Za-z]*", text):
        return f"{text!r} is not a whole number: {rule}"
    return f"{text!r} is not a count: {rule}"
