"""A shared buffer beside its twin: whatever servers do to both, in any order, both say the same.

The buffer has a hard cap behind it or is a plain `RawArray`. Servers are objects of this process and
forked processes, which are killed; each uses an index of its own or tries to use another's.
"""

from __future__ import annotations

from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gatecount import AdmissionCounters
from gatecount._core import GateCore
from support import same
from twin.clients import BufferClient, Client, Here, PlainBufferClient, There
from twin.machine import (
    SETTINGS,
    Machine,
    Steps,
    endings,
    how_many,
    limit_values,
    shares,
    sizes,
    steps,
    units,
)
from twin.twin import CAP, CapTwin, HardBufferTwin, PlainBufferTwin, outcome

indices = st.sampled_from([None] * 15 + [0, 1, 2, 3])

counts = st.sampled_from([1, -1, 2, -2, 0, 5, -9])
"""By how much the requests of a server have become more or fewer."""

plain_steps = {
    "try_reserve": st.tuples(indices, units, st.none() | limit_values),
    "release": st.tuples(indices, shares),
    "set_num_requests": st.tuples(indices, counts),
}
buffer_steps = steps(**plain_steps, reclaim=st.tuples(), set_limit=st.tuples(limit_values))


class BufferBesideItsTwin(Machine):
    """A buffer, with a hard cap behind it or plain, used by servers under their indices."""

    @initialize(target=Machine.clients, size=sizes, limit=st.one_of(limit_values, st.none()))
    def create(self, size: int, limit: int | None) -> Any:
        self.size = size
        self.hard = limit is not None
        self.twin: Any
        if limit is None:
            self.buffer: Any = RawArray("q", 8 * size)
            self.twin = PlainBufferTwin(size)
        else:
            self.buffer = AdmissionCounters(client_count=size, limit=limit)
            self.twin = HardBufferTwin({CAP: CapTwin(limit)}, size)
            self.observer = GateCore(self.buffer.segment)
        self.taken: dict[int, Client] = {}
        return multiple(self.start(here=True), self.start(here=False))

    def index_of(self, client: Client, index: int | None) -> int | None:
        """Return which index a client is to use: its own or any, over a plain array no other's."""
        if index is None:
            own = [at for at, owner in self.taken.items() if owner is client]
            free = [at for at in range(self.size) if at not in self.taken]
            if not own and not free:
                return None
            index = (own or free)[0]
        index %= self.size
        owner = self.taken.setdefault(index, client)
        return index if self.hard or owner is client else None

    def looked(self) -> bool:
        return self.hard and all(alive for _, _, alive, *_ in self.observer.owners())

    @precondition(Machine.has_room)
    @rule(target=Machine.clients, here=st.booleans())
    def another(self, here: bool) -> Client:
        return self.start(here)

    def start(self, here: bool) -> Client:
        kind = BufferClient if self.hard else PlainBufferClient
        if not here:
            return self.join(There(self.crew, kind, self.buffer, self.size))
        if any(isinstance(member, Here) for member in self.members):
            return self.join(There(self.crew, same, kind(self.buffer, self.size)))
        return self.join(Here(kind(self.buffer, self.size)))

    @rule(client=Machine.clients, steps=buffer_steps)
    def use(self, client: Client, steps: Steps) -> None:
        for step, arguments in steps:
            if step in plain_steps:
                at = self.index_of(client, arguments[0])
                if at is not None:
                    getattr(self, step)(client, at, *arguments[1:])
            elif self.hard:
                getattr(self, step)(client, *arguments)

    def try_reserve(self, client: Client, at: int, n: int, bound: int | None) -> None:
        if not self.hard and bound is None:
            bound = 6
        real = outcome(client.call, "try_reserve", at, n, bound)
        within = 2**32 - 1 if bound is None else bound
        assert real == outcome(self.twin.try_reserve, (client, at), at, n, within, self.looked())

    def release(self, client: Client, at: int, how_much: str) -> None:
        n = how_many(how_much, self.twin.words()[at])
        real = outcome(client.call, "release", at, n)
        assert real == outcome(self.twin.release_index, (client, at), at, n, self.looked())

    def set_num_requests(self, client: Client, at: int, more: int) -> None:
        count = max(self.twin.counted((client, at), at) + more, 0)
        real = outcome(client.call, "set_num_requests", at, count)
        twin = self.twin.set_num_requests
        assert real == outcome(twin, (client, at), at, count, self.looked())

    def set_limit(self, client: Client, limit: int) -> None:
        client.call("set_limit", limit)
        self.twin.caps[CAP].limit = limit

    def reclaim(self, client: Client) -> None:
        assert client.call("reclaim") == self.twin.reclaim()

    @rule(client=consumes(Machine.clients), steps=buffer_steps, how=endings)
    def leave(self, client: Client, steps: Steps, how: str) -> None:
        """Die with all that is held. A client of this process stays: its claims are the buffer's."""
        self.use(client, steps)
        if isinstance(client, Here):
            return
        self.die(client, how)
        self.taken = {index: owner for index, owner in self.taken.items() if owner is not client}
        if self.hard:
            for owner in self.twin.owners.values():
                owner.alive = owner.alive and owner.name[0] is not client

    @invariant()
    def the_buffer_is_as_its_twin_says(self) -> None:
        assert [int(word) for word in self.buffer[0::8]] == self.twin.words()
        others = [word for at, word in enumerate(self.buffer) if at % 8]
        assert others == [0] * (7 * self.size)
        for client in self.members:
            assert client.call("get_num_requests") == sum(self.twin.words())
        if self.hard:
            statistics = self.observer.cap_statistics(0)
            names = ("in_flight", "limit", "peak", "admitted", "refused", "reclaimed", "repairs")
            names += ("waiting", "timeouts", "too_large")
            assert dict(zip(names, statistics, strict=True)) == self.twin.raw_statistics(CAP)
            assert (self.buffer.in_flight, self.buffer.limit) == statistics[:2]
            assert {slot: (alive, held) for slot, _, alive, _, (held,) in self.observer.owners()} == {
                index: (owner.alive, owner.held[CAP]) for index, owner in self.twin.owners.items()
            }


@pytest.mark.timeout(1000)
def test_a_buffer_does_what_its_twin_does() -> None:
    run_state_machine_as_test(BufferBesideItsTwin, settings=SETTINGS)
