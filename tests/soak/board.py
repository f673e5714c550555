"""What the soak's processes share besides the gate: commands, figures, and the witnesses.

WHY THE WITNESS IS SOUND

The witness must find every excess that lasts for more than an instant, must not need the gate for it,
and must never cry wolf, though the processes that tell it what they hold are killed at any instruction.
Each cap has one 64-bit word with a field per process (`KillProofWitness`), so what all of them have
noted is read in one load: a sum over several words, read one after the other, could count a unit twice
that was released by one process and granted to the next in between.

1. A process notes a grant after the call has returned, and takes the note back before it calls release,
   `Permit.release` or `close`. So at every instant what a living process has noted is at most what it
   holds.
2. A killed process can no longer take its notes back, while the gate may grant its units to others as
   soon as it is dead. So the one that kills first condemns the victim: from then on its field is in no
   sum. Before, it was alive and its units were its own (1). The victim may note some more until the
   signal comes: nobody counts it. When it is certainly dead, its field is emptied, and only then a
   successor begins.
3. Therefore every sum is at most what the gate had granted at that instant. If it is over the limit, so
   was the gate. (In the other order, note first and then ask, the sum would count what was never
   granted, and with a kill between the two for ever.)

What the witness can miss is an excess that was taken back before it was noted. The check is made by
each process right after each of its own grants are noted, so to be missed it has to be gone within
microseconds.

WHICH LIMIT

While limits change, "the limit" is what was in force during the call. One process changes them, and
writes into the cap's rule: before, the larger of old and new and the next epoch; then it calls
set_limit; then the new limit and the next epoch. A process reads the rule before it asks for a grant,
and again after it has read the sum. If it is the same epoch, the sum must be within that limit: at the
instant of its own grant the gate's total was within it, and so it is after every later grant of this
epoch, because whoever is granted later has read the total after ours and the limit after that. If the
epoch has changed, the largest limit is checked, and only that can be checked where everybody sets
limits.

At the end some leave with what they hold. Nobody is condemned for that: all are paused before, and none
asks for anything any more.
"""

from __future__ import annotations

from gatecount import AtomicArray
from witness import KillProofWitness

LIMITS = {"requests": 12, "tokens": 60}
"""The largest limits that are ever set."""

LOWER = {"requests": (12, 12, 8, 5, 3), "tokens": (60, 60, 40, 25)}
"""What limits are changed to."""

SEATS = KillProofWitness.HOLDERS
STAGES = (
    "between calls",
    "reserve",
    "reserve two caps",
    "release",
    "reclaim",
    "set_limit",
    "close and open",
    "reserve and release in a hurry",
    "start",
)
BETWEEN, RESERVE, ADMIT, RELEASE, RECLAIM, SET_LIMIT, REOPEN, HURRIED, START = range(len(STAGES))

RUN, STOP = 0, -1
"""Commands; a number above 0 means: pause, and say so by that number."""

_COMMAND, _PHASE, _VIOLATIONS, _RULES, _SEATS = 0, 8, 16, 24, 48
_STAGE, _OPERATIONS, _GRANTS, _REFUSALS, _ACK, _PID, _RECLAIMED = range(7)
_CAPS = tuple(LIMITS)


class Board:
    """Shared words. A seat is one process at a time, which alone writes the words of that seat."""

    def __init__(self) -> None:
        self.words = AtomicArray(_SEATS + 8 * SEATS)
        self.witnesses = {cap: KillProofWitness(limit) for cap, limit in LIMITS.items()}
        for cap, limit in LIMITS.items():
            self.announce(cap, limit)

    # Commands

    @property
    def command(self) -> int:
        return self.words.load(_COMMAND)

    @command.setter
    def command(self, command: int) -> None:
        self.words.store(_COMMAND, command)

    @property
    def phase(self) -> int:
        return self.words.load(_PHASE)

    @phase.setter
    def phase(self, phase: int) -> None:
        self.words.store(_PHASE, phase)

    # The limit in force

    def announce(self, cap: str, limit: int) -> None:
        """Begin a new epoch with that limit; one process only."""
        at = _RULES + 8 * _CAPS.index(cap)
        epoch = self.words.load(at) >> 32
        self.words.store(at, epoch + 1 << 32 | limit)

    def rule(self, cap: str) -> int:
        """Return epoch and limit as one number."""
        return self.words.load(_RULES + 8 * _CAPS.index(cap))

    # Notes

    def granted(self, seat: int, cap: str, n: int, rule: int) -> None:
        """Note a grant that was asked for under a rule, and check what everybody has noted."""
        witness = self.witnesses[cap]
        witness.granted(seat, n)  # checks the largest limit
        total = witness.running
        if self.rule(cap) == rule and total > rule & 0xFFFFFFFF:
            self.words.fetch_add(_VIOLATIONS, 1)
        self.add(seat, _GRANTS)

    def releasing(self, seat: int, cap: str, n: int) -> None:
        self.witnesses[cap].releasing(seat, n)

    def refused(self, seat: int) -> None:
        self.add(seat, _REFUSALS)

    def condemn(self, seat: int) -> None:
        for witness in self.witnesses.values():
            witness.condemn(seat)

    def bury(self, seat: int) -> None:
        """Forget a process that is certainly dead."""
        for witness in self.witnesses.values():
            witness.bury(seat)
        self.words.store(self._at(seat, _PID), 0)
        self.words.store(self._at(seat, _ACK), 0)

    def noted(self, seat: int, cap: str) -> int:
        witness = self.witnesses[cap]
        return witness._held(witness.words.load(0) & 2**64 - 1, seat)

    @property
    def violations(self) -> int:
        return self.words.load(_VIOLATIONS) + sum(one.violations for one in self.witnesses.values())

    # Figures of a seat

    def _at(self, seat: int, what: int) -> int:
        return _SEATS + 8 * seat + what

    def add(self, seat: int, what: int, n: int = 1) -> None:
        self.words.store(self._at(seat, what), self.words.load(self._at(seat, what)) + n)

    def stage(self, seat: int, stage: int) -> None:
        self.words.store(self._at(seat, _STAGE), stage)

    def stage_of(self, seat: int) -> int:
        return self.words.load(self._at(seat, _STAGE))

    def worked(self, seat: int, operations: int = 1) -> None:
        self.add(seat, _OPERATIONS, operations)

    def operations(self, seat: int) -> int:
        return self.words.load(self._at(seat, _OPERATIONS))

    def take(self, seat: int, pid: int) -> None:
        """Sit down: from now on the process is known by its pid."""
        self.words.store(self._at(seat, _PID), pid)

    def pid(self, seat: int) -> int:
        return self.words.load(self._at(seat, _PID))

    def acknowledge(self, seat: int, command: int) -> None:
        self.words.store(self._at(seat, _ACK), command)

    def acknowledged(self, seat: int) -> int:
        return self.words.load(self._at(seat, _ACK))

    def reclaimed(self, seat: int, owners: int) -> None:
        self.add(seat, _RECLAIMED, owners)

    def totals(self) -> dict[str, int]:
        """Return what all that ever sat here have done."""
        names = {
            "operations": _OPERATIONS,
            "grants": _GRANTS,
            "refusals": _REFUSALS,
            "owners_reclaimed": _RECLAIMED,
        }
        return {
            name: sum(self.words.load(self._at(seat, what)) for seat in range(SEATS))
            for name, what in names.items()
        }
