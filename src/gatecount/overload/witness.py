"""Count the requests truly running: from inside the handlers, in words that no gate uses.

All servers count in one word, each in a lane of its own, so the one atomic add that counts a
request also tells what every server was running at that very instant. Nothing is sampled and
nothing is added up from parts read one after another, so the peak is exact: never more than really
ran, never less.

    bit  63   62..60   59..45   44..30   29..15   14..0
          0    dead    lane 3   lane 2   lane 1   lane 0

A lane holds the requests running in that server. `dead` is 0, or 1 + the index of the one server
that is being killed: its requests do not run any more, though nobody is left to take them out of
its lane, so from that instant its lane counts as nothing. Being in the same word, the mark takes
effect between two counts and never in the middle of one. It is set just before the signal is sent;
for the microseconds between, the victim's last requests are not seen.
"""

import time
from dataclasses import dataclass
from typing import Final

from gatecount import AtomicArray

MAX_SERVERS: Final = 4

_LANE_BITS: Final = 15
_LANE_MASK: Final = (1 << _LANE_BITS) - 1
_DEAD_SHIFT: Final = MAX_SERVERS * _LANE_BITS
MAX_RUNNING: Final = _LANE_MASK
"""The most requests that one lane can hold."""

# One word to a cache line: every handler adds to the first, and most only read the others.
_RUNNING, _PEAK, _PEAK_AFTER_KILL, _FULL_AGAIN_AT = 0, 8, 16, 24
_WORDS: Final = 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What every server ran at one instant."""

    word: int

    @property
    def dead(self) -> int | None:
        """The index of the server that was killed, if one was."""
        mark = self.word >> _DEAD_SHIFT
        return mark - 1 if mark else None

    @property
    def lanes(self) -> tuple[int, ...]:
        """Requests by server; those of a dead server stand still, they do not run."""
        word = self.word
        return tuple(word >> i * _LANE_BITS & _LANE_MASK for i in range(MAX_SERVERS))

    @property
    def running(self) -> int:
        """All requests running, without those of a dead server."""
        lanes, dead = self.lanes, self.dead
        return sum(lanes) - (lanes[dead] if dead is not None else 0)

    @property
    def busiest(self) -> int:
        """The index of the server that runs most."""
        lanes = self.lanes
        return lanes.index(max(lanes))


class Witness:
    """The count of one experiment, shared by its processes; `limit` is what counts as full.

    Picklable only while a child process is being started. Each server must use an index of its own,
    below MAX_SERVERS, and never run more than MAX_RUNNING requests.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._words = AtomicArray(_WORDS)

    def enter(self, server: int) -> None:
        """Count a request of `server` that has been admitted and starts to run now."""
        one = 1 << server * _LANE_BITS
        now = Snapshot(self._words.fetch_add(_RUNNING, one) + one)
        running = now.running
        self._raise(_PEAK, running)
        if now.dead is not None:
            self._raise(_PEAK_AFTER_KILL, running)
            if running >= self._limit:
                self._words.compare_exchange(_FULL_AGAIN_AT, 0, time.monotonic_ns())

    def leave(self, server: int) -> None:
        """Take a request of `server` out again: it no longer runs, and still holds its permit."""
        self._words.fetch_add(_RUNNING, -(1 << server * _LANE_BITS))

    def look(self) -> Snapshot:
        """Return what every server runs now."""
        return Snapshot(self._words.load(_RUNNING))

    def mark_dead(self, seen: Snapshot, server: int) -> bool:
        """Leave `server` out from now on if nothing has changed since `seen`; return whether.

        Success says that what `seen` shows is what was running at that very instant. Only one
        server can be marked.
        """
        marked = seen.word | server + 1 << _DEAD_SHIFT
        return seen.dead is None and self._words.compare_exchange(_RUNNING, seen.word, marked)

    @property
    def peak(self) -> int:
        """The most requests that ever ran at one instant."""
        return self._words.load(_PEAK)

    @property
    def peak_after_kill(self) -> int:
        """The most that the survivors ran at one instant, once a server had been marked dead."""
        return self._words.load(_PEAK_AFTER_KILL)

    @property
    def full_again_at(self) -> int | None:
        """When the survivors first ran `limit` requests (`time.monotonic_ns`, one for all)."""
        return self._words.load(_FULL_AGAIN_AT) or None

    def _raise(self, word: int, value: int) -> None:
        seen = self._words.load(word)
        while value > seen and not self._words.compare_exchange(word, seen, value):
            seen = self._words.load(word)
