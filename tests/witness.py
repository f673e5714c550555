"""Witnesses that count what runs without asking the gate: plain shared words and nothing else.

A holder notes a grant after it was made and takes the note back before it releases, so a witness never
counts more than what is granted: what it sees over a limit was over the limit.
"""

from __future__ import annotations

import os

from gatecount import AtomicArray

_RUNNING, _PEAK, _GRANTS, _REFUSALS, _MEETING = 0, 8, 16, 24, 32


class Witness:
    """How many units run now, and the most that ever did. Picklable to a child that is being started."""

    def __init__(self) -> None:
        self.words = AtomicArray(40)

    def meet(self, everybody: int) -> None:
        """Go on when as many have come, so that all begin at once."""
        self.words.fetch_add(_MEETING, 1)
        while self.words.load(_MEETING) < everybody:
            os.sched_yield()

    def granted(self, n: int) -> None:
        now = self.words.fetch_add(_RUNNING, n) + n
        self.words.fetch_add(_GRANTS, 1)
        peak = self.words.load(_PEAK)
        while now > peak and not self.words.compare_exchange(_PEAK, peak, now):
            peak = self.words.load(_PEAK)

    def releasing(self, n: int) -> None:
        self.words.fetch_add(_RUNNING, -n)

    def refused(self) -> None:
        self.words.fetch_add(_REFUSALS, 1)

    @property
    def running(self) -> int:
        return self.words.load(_RUNNING)

    @property
    def peak(self) -> int:
        return self.words.load(_PEAK)

    @property
    def grants(self) -> int:
        return self.words.load(_GRANTS)

    @property
    def refusals(self) -> int:
        return self.words.load(_REFUSALS)


class KillProofWitness:
    """A witness whose holders may be killed at any instruction.

    One word has a field of 7 bits for each of 8 holders and a bit that says that the holder is about to
    be killed. So one atomic addition notes a grant and returns what everybody holds at that instant, and
    what a killed holder had noted is known to the unit. The rest of the words: violations, times that
    `reached` was reached, and per holder how often it was granted something.
    """

    HOLDERS = 8
    _BITS = 7
    _FIELD = (1 << _BITS) - 1
    _DYING = HOLDERS * _BITS

    def __init__(self, limit: int, reached: int | None = None) -> None:
        self.limit = limit
        self.reached = limit if reached is None else reached
        self.words = AtomicArray(24 + self.HOLDERS * 8)

    def _held(self, word: int, holder: int) -> int:
        return word >> (holder * self._BITS) & self._FIELD

    def _total(self, word: int) -> int:
        """Return the sum of all fields but those of the dying, whose units may be granted again."""
        return sum(
            self._held(word, holder)
            for holder in range(self.HOLDERS)
            if not word >> (self._DYING + holder) & 1
        )

    def _add(self, amount: int) -> int:
        """Add to the word and return what it is then, both as 64 bits without a sign."""
        amount &= 2**64 - 1
        before = self.words.fetch_add(0, amount - (amount >> 63 << 64))
        return before + amount & 2**64 - 1

    def granted(self, holder: int, n: int) -> None:
        total = self._total(self._add(n << holder * self._BITS))
        self.words.fetch_add(24 + 8 * holder, 1)
        if total > self.limit:
            self.words.fetch_add(8, 1)
        elif total >= self.reached:
            self.words.fetch_add(16, 1)

    def releasing(self, holder: int, n: int) -> None:
        self._add(-(n << holder * self._BITS))

    def condemn(self, holder: int) -> None:
        """Stop counting a holder: it is about to be killed."""
        self._add(1 << self._DYING + holder)

    def bury(self, holder: int) -> None:
        """Forget what a killed holder had noted, and count its successor from now on."""
        held = self._held(self.words.load(0) & 2**64 - 1, holder)
        self._add(-(held << holder * self._BITS) - (1 << self._DYING + holder))

    def grants(self, holder: int) -> int:
        return self.words.load(24 + 8 * holder)

    @property
    def running(self) -> int:
        return self._total(self.words.load(0) & 2**64 - 1)

    @property
    def violations(self) -> int:
        return self.words.load(8)

    @property
    def times_at_limit(self) -> int:
        return self.words.load(16)
