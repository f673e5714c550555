"""A gate beside its twin: whatever many clients do to both, in any order, both say the same.

Clients are gates of this process, each of which has a slot of its own, and forked processes, which are
killed. Nothing is told in between: after every rule results, counts, statistics and slots are compared.
"""

from __future__ import annotations

import os
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

from gatecount import Gate, GateClosed, GateExists, LayoutMismatch
from support import names, path_of
from twin.clients import Client, GateClient, Here, There, end_together, opened
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
    timeouts,
    units,
)
from twin.twin import GateTwin, outcome

NAMES = names("twin")

caps = st.sampled_from(["requests", "tokens"])
gate_steps = steps(
    reserve=st.tuples(caps, units),
    admit=st.tuples(st.dictionaries(caps, units, min_size=1), timeouts),
    acquire=st.tuples(caps, units, timeouts, st.booleans()),
    release=st.tuples(caps, shares),
    release_permit=st.tuples(),
    claim=st.tuples(),
    reclaim=st.tuples(),
    set_limit=st.tuples(caps, limit_values),
)


class GateBesideItsTwin(Machine):
    """A gate of one or two caps in either mode, opened, used, closed, adopted and left by many."""

    @initialize(
        target=Machine.clients,
        limits=st.one_of(
            st.fixed_dictionaries({"requests": limit_values}),
            st.fixed_dictionaries({"tokens": limit_values, "requests": limit_values}),
        ),
        slots=sizes,
        mode=st.sampled_from(["hard", "hard", "approximate"]),
    )
    def create(self, limits: dict[str, int], slots: int, mode: str) -> Any:
        self.name = next(NAMES)
        self.slots, self.mode = slots, mode
        self.observer = Gate.create(self.name, limits=limits, slots=slots, mode=mode)
        self.twin = GateTwin.of(limits, slots)
        self.permits: dict[Client, list[dict[str, int]]] = {}
        return multiple(self.open("here"), self.open("there"))

    def bytes(self) -> bytes:
        return path_of(self.name).read_bytes()

    def has(self, cap: str) -> str:
        return cap if cap in self.twin.caps else "requests"

    def looked(self) -> bool:
        """Tell whether the dead were looked for: none is left."""
        return all(alive for _, _, alive, *_ in self.observer.owners())

    @precondition(Machine.has_room)
    @rule(target=Machine.clients, where=st.sampled_from(["here", "there", "there by fork"]))
    def another(self, where: str) -> Client:
        return self.open(where)

    def open(self, where: str) -> Client:
        if where == "here":
            client: Client = Here(opened(self.name))
        elif where == "there":
            client = There(self.crew, opened, self.name)
        else:  # the gate of somebody who may hold something: the child has none of it
            mine = [member.client.gate for member in self.members if isinstance(member, Here)]
            client = There(self.crew, GateClient, (mine or [self.observer])[0])
        self.permits[client] = []
        return self.join(client)

    @precondition(Machine.has_room)
    @rule(target=Machine.clients, values=st.tuples(limit_values, limit_values))
    def adopt(self, values: tuple[int, int]) -> Client:
        """Restart: create what stands already, with new limits."""
        limits = dict(zip(self.twin.caps, values, strict=False))
        gate = Gate.create(self.name, limits=limits, slots=self.slots, mode=self.mode, exist_ok=True)
        for cap, limit in limits.items():
            self.twin.caps[cap].limit = limit
        self.twin.reclaim()
        client = Here(GateClient(gate))
        self.permits[client] = []
        return self.join(client)

    @rule(exist_ok=st.booleans())
    def create_again(self, exist_ok: bool) -> None:
        before = self.bytes()
        with pytest.raises(LayoutMismatch if exist_ok else GateExists):
            Gate.create(self.name, limits={"requests": 9}, slots=9, mode=self.mode, exist_ok=exist_ok)
        assert self.bytes() == before

    def claim(self, client: Client) -> None:
        assert outcome(client.call, "claim") == outcome(self.twin.claim, client)

    @rule(client=Machine.clients, steps=gate_steps)
    def use(self, client: Client, steps: Steps) -> None:
        for step, arguments in steps:
            getattr(self, step)(client, *arguments)

    def reserve(self, client: Client, cap: str, n: int) -> None:
        cap = self.has(cap)
        real = outcome(client.call, "reserve", cap, n)
        assert real == outcome(self.twin.reserve, client, {cap: n}, self.looked())

    def acquire(self, client: Client, cap: str, n: int, timeout: float, is_task: bool) -> None:
        cap = self.has(cap)
        real = outcome(client.call, "acquire", cap, n, timeout, is_task)
        assert real == outcome(self.twin.admit, client, {cap: n}, timeout, self.looked())

    def admit(self, client: Client, amounts: dict[str, int], timeout: float) -> None:
        amounts = {self.has(cap): n for cap, n in amounts.items()}
        real = outcome(client.call, "admit", amounts, timeout)
        assert real == outcome(self.twin.admit, client, amounts, timeout, self.looked())
        if real[0] == "returned":
            self.permits[client].append(amounts)

    def release_permit(self, client: Client) -> None:
        """A permit's units may have been given back by number before: then this is an error."""
        if not self.permits[client]:
            return
        amounts = self.permits[client].pop()

        assert outcome(client.call, "release_permit") == outcome(self.twin.release_all, client, amounts)

    def release(self, client: Client, cap: str, how_much: str) -> None:
        """Give back a part, all, or more than is held, which is an error and changes nothing."""
        cap = self.has(cap)
        n = how_many(how_much, self.twin.held(client, cap))
        before = self.bytes()
        real = outcome(client.call, "release", cap, n)
        assert real == outcome(self.twin.release, client, cap, n)
        assert (self.bytes() == before) is (real[0] == "NotOwner")

    def set_limit(self, client: Client, cap: str, limit: int) -> None:
        client.call("set_limit", self.has(cap), limit)
        self.twin.caps[self.has(cap)].limit = limit

    def reclaim(self, client: Client) -> None:
        assert client.call("reclaim") == self.twin.reclaim()

    @rule(client=consumes(Machine.clients))
    def close(self, client: Client) -> None:
        client.call("close")
        client.call("close")
        self.twin.close(client)
        for call in (("reserve", "requests", 1), ("release", "requests", 1), ("claim",), ("reclaim",)):
            with pytest.raises(GateClosed):
                client.call(*call)
        self.die(client, "ends")

    @rule(client=consumes(Machine.clients), steps=gate_steps, how=endings)
    def leave(self, client: Client, steps: Steps, how: str) -> None:
        """Die with all that is held, or, in this process, be dropped, which gives it back."""
        self.use(client, steps)
        self.die(client, how)
        if isinstance(client, Here):
            self.twin.close(client)
        else:
            self.twin.die(client)

    @precondition(lambda self: len(self.members) > 1)
    @rule(
        target=Machine.clients,
        first=consumes(Machine.clients),
        second=consumes(Machine.clients),
        steps=gate_steps,
    )
    def two_are_killed_at_once(self, first: Client, second: Client, steps: Steps) -> Any:
        self.use(first, steps)
        self.use(second, steps)
        victims = [client for client in (first, second) if isinstance(client, There)]
        end_together(self.crew, victims)
        for victim in victims:
            self.members.remove(victim)
            self.twin.die(victim)
        return multiple(*(client for client in (first, second) if client not in victims))

    @invariant()
    def the_gate_is_as_its_twin_says(self) -> None:
        before = self.bytes()
        told = self.observer.statistics()
        assert {cap: vars(one) for cap, one in told.caps.items()} == {
            cap: self.twin.statistics(cap) for cap in self.twin.caps
        }
        owners = {slot: (alive, held) for slot, _, alive, _, held in self.observer.owners()}
        assert owners == {
            slot: (owner.alive, tuple(owner.held.values())) for slot, owner in self.twin.owners.items()
        }
        assert {one.slot: one.pid for one in told.slots} == {
            slot: owner.name.pid or os.getpid()  # type: ignore[attr-defined]
            for slot, owner in self.twin.owners.items()
            if owner.alive
        }
        for cap in self.twin.caps:
            shown = self.observer.counters(cap=cap)[::8]
            assert list(shown) == [
                self.twin.owners[slot].held[cap] if slot in self.twin.owners else 0
                for slot in range(self.slots)
            ]
        for client in self.members:
            assert client.call("held") == [self.twin.held(client, cap) for cap in self.twin.caps]
        assert self.bytes() == before, "reading has written"

    @invariant()
    def every_process_is_told_the_same(self) -> None:
        everybody = [client.call("statistics") for client in self.members[:2]]
        mine = {cap: vars(told) for cap, told in self.observer.statistics().caps.items()}
        assert everybody == [mine] * len(everybody)

    def teardown(self) -> None:
        super().teardown()
        self.observer.reclaim()
        assert self.observer.owners() == []
        assert [cap.in_flight for cap in self.observer.statistics().caps.values()] == [0] * len(
            self.twin.caps
        )
        self.observer.close()
        Gate.remove(self.name)


@pytest.mark.timeout(1000)
def test_a_gate_does_what_its_twin_does() -> None:
    run_state_machine_as_test(GateBesideItsTwin, settings=SETTINGS)
