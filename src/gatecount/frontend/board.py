"""What each server process shows of itself to the others: open connections, and what it admitted.

    word  0          1         2                3              4         5 … 7
          load       admitted  refused:requests refused:tokens accepted  free

A row is one cache line, written by its own server only; the manager empties `load` when that server
has ended. `load` is the open connections + 1, so memory that nobody has written yet says what is true
of a server that has not started: it does not accept. The totals of all rows are what any server
answers on /metrics; a newcomer goes on with the row of its index, so they never fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from gatecount import AtomicArray

WORDS_PER_ROW: Final = 8
_LOAD, _ADMITTED, _REFUSED_REQUESTS, _REFUSED_TOKENS, _ACCEPTED = range(5)
_REFUSED: Final = {"requests": _REFUSED_REQUESTS, "tokens": _REFUSED_TOKENS}


class _Words(Protocol):
    def load(self, index: int, /) -> int: ...
    def store(self, index: int, value: int, /) -> None: ...
    def fetch_add(self, index: int, n: int, /) -> int: ...
    def __len__(self) -> int: ...


class _LocalWords:
    """Words of this process alone, for a board that nobody shares. Not for several threads."""

    def __init__(self, count: int) -> None:
        self._words = [0] * count

    def load(self, index: int) -> int:
        return self._words[index]

    def store(self, index: int, value: int) -> None:
        self._words[index] = value

    def fetch_add(self, index: int, n: int) -> int:
        before = self._words[index]
        self._words[index] = before + n
        return before

    def __len__(self) -> int:
        return len(self._words)


class Row:
    """The row of one server. That server alone writes it, from one thread; anybody reads it."""

    __slots__ = ("_base", "_words", "index")

    def __init__(self, words: _Words, index: int) -> None:
        self._words = words
        self._base = index * WORDS_PER_ROW
        self.index = index

    @property
    def connections(self) -> int | None:
        """The open connections; None while this server does not accept any.

        So it is None before it serves, and from the moment at which it is told to stop, although
        connections may still be open then. Set by the server itself, and by the manager to None once
        it has ended.
        """
        load = self._words.load(self._base + _LOAD)
        return load - 1 if load else None

    @connections.setter
    def connections(self, count: int | None) -> None:
        self._words.store(self._base + _LOAD, 0 if count is None else count + 1)

    @property
    def accepted(self) -> int:
        """The connections ever accepted under this index."""
        return self._words.load(self._base + _ACCEPTED)

    def count_accepted(self) -> None:
        """Count a connection that was accepted."""
        self._words.fetch_add(self._base + _ACCEPTED, 1)

    @property
    def admitted(self) -> int:
        """The requests ever admitted under this index; one with n samples is one."""
        return self._words.load(self._base + _ADMITTED)

    def count_admitted(self) -> None:
        """Count a request that was admitted, however many samples it has."""
        self._words.fetch_add(self._base + _ADMITTED, 1)

    def refused(self, cap: str) -> int:
        """Return the requests ever refused under this index by cap "requests" or "tokens"."""
        return self._words.load(self._base + _REFUSED[cap])

    def count_refused(self, cap: str) -> None:
        """Count a request that cap "requests" or "tokens" refused, however many samples it has."""
        self._words.fetch_add(self._base + _REFUSED[cap], 1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.index}: connections={self.connections}>"


@dataclass(frozen=True, slots=True)
class Totals:
    """All rows added up; they are read one after another, so not at one instant."""

    admitted: int
    refused_requests: int
    refused_tokens: int
    accepted: int
    connections: tuple[int | None, ...]
    """The open connections of each server; None for one that does not accept."""

    def refused(self, cap: str) -> int:
        """Return what was refused by cap "requests" or "tokens"."""
        return {"requests": self.refused_requests, "tokens": self.refused_tokens}[cap]


class Board:
    """A row for each of `servers` processes, from 1 up.

    With `shared` in anonymous shared memory, which no name leads to; picklable only while a child
    process is being started. Else in this process's own memory: a pickled copy counts for itself.
    """

    def __init__(self, servers: int, *, shared: bool = True) -> None:
        if servers < 1:
            raise ValueError(f"servers must be at least 1, not {servers}")
        count = servers * WORDS_PER_ROW
        self._words: _Words = AtomicArray(count) if shared else _LocalWords(count)

    def __len__(self) -> int:
        return len(self._words) // WORDS_PER_ROW

    @property
    def shared(self) -> bool:
        """Whether the rows of all processes are seen here; else only what this process wrote."""
        return isinstance(self._words, AtomicArray)

    def at(self, index: int) -> Row:
        """Return the row of server `index`, from 0."""
        if not 0 <= index < len(self):
            raise ValueError(f"index must be from 0 to {len(self) - 1}, not {index}")
        return Row(self._words, index)

    def rows(self) -> list[Row]:
        """Return the rows of all servers, in order."""
        return [self.at(index) for index in range(len(self))]

    def totals(self) -> Totals:
        """Return what all servers together have admitted, refused and accepted, and hold open."""
        rows = self.rows()
        return Totals(
            admitted=sum(row.admitted for row in rows),
            refused_requests=sum(row.refused("requests") for row in rows),
            refused_tokens=sum(row.refused("tokens") for row in rows),
            accepted=sum(row.accepted for row in rows),
            connections=tuple(row.connections for row in rows),
        )
