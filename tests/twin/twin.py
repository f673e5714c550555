"""The package in plain Python: what a gate and a shared buffer promise, with dictionaries for memory.

One thread, nothing shared, no atomics, no recovery protocol: a dead owner is a flag. A twin answers with
the package's own errors, so that its answers can be compared with the real ones field by field.

One thing it must be told. A reserve that is about to be refused looks for the dead first, but not more
often than every so many milliseconds. Whether it has looked is up to the clock, so the caller finds out
(`looked`); what follows from it is again for the twin to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gatecount import GateFull, GateTimeout, NotOwner, SlotsExhausted


@dataclass
class CapTwin:
    limit: int
    peak: int = 0
    admitted: int = 0
    refused: int = 0
    reclaimed: int = 0
    timeouts: int = 0
    too_large: int = 0


@dataclass
class OwnerTwin:
    name: object
    held: dict[str, int]
    alive: bool = True
    counted: int = 0
    """Of a buffer's client: the requests that it last published."""
    reserved: int = 0
    """Of a buffer's client: the permits that no published request has used up."""


@dataclass
class GateTwin:
    """A gate, and the owners of its slots by the names that a test gives them."""

    caps: dict[str, CapTwin]
    slots: int
    owners: dict[int, OwnerTwin] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: Mapping[str, int], slots: int) -> GateTwin:
        return cls({cap: CapTwin(limit) for cap, limit in limits.items()}, slots)

    def in_flight(self, cap: str) -> int:
        return sum(owner.held[cap] for owner in self.owners.values())

    def statistics(self, cap: str) -> dict[str, Any]:
        told: dict[str, Any] = self.raw_statistics(cap)
        timeout, too_large = told.pop("timeouts"), told.pop("too_large")
        full = told["refused"] - timeout - too_large
        return {**told, "refused_by": {"full": full, "timeout": timeout, "too_large": too_large}}

    def raw_statistics(self, cap: str) -> dict[str, int]:
        """Return them as the core tells them. Nobody waits when they are asked for."""
        return {"in_flight": self.in_flight(cap), "repairs": 0, "waiting": 0, **vars(self.caps[cap])}

    def dead(self) -> list[int]:
        return [slot for slot, owner in self.owners.items() if not owner.alive]

    def slot_of(self, name: object) -> int | None:
        """Return the slot of a living owner."""
        for slot, owner in self.owners.items():
            if owner.name == name and owner.alive:
                return slot
        return None

    def held(self, name: object, cap: str) -> int:
        slot = self.slot_of(name)
        return 0 if slot is None else self.owners[slot].held[cap]

    def claim(self, name: object) -> int:
        """Claim the first free slot, looking for the dead before if there is none, else afterwards."""
        slot = self.slot_of(name)
        if slot is not None:
            return slot
        if len(self.owners) == self.slots:
            self.reclaim()
        for slot in range(self.slots):
            if slot not in self.owners:
                self.owners[slot] = OwnerTwin(name, dict.fromkeys(self.caps, 0))
                self.reclaim()
                return slot
        raise SlotsExhausted(self.slots)

    def full(self, amounts: Mapping[str, int], bound: int) -> str | None:
        """Return the first cap, in the gate's order, that has no room."""
        for cap, shared in self.caps.items():
            n = amounts.get(cap, 0)
            if n and self.in_flight(cap) + n > min(shared.limit, bound):
                return cap
        return None

    def charge(self, owner: OwnerTwin, cap: str, n: int) -> None:
        owner.held[cap] += n
        total = self.in_flight(cap)
        assert total <= self.caps[cap].limit
        self.caps[cap].peak = max(self.caps[cap].peak, total)

    def reserve(
        self, name: object, amounts: Mapping[str, int], looked: bool, bound: int = 2**32 - 1
    ) -> bool:
        owner = self.owners[self.claim(name)]
        if self.full(amounts, bound) and looked:
            self.reclaim()
        refused_by = self.full(amounts, bound)
        if refused_by is not None:
            shared = self.caps[refused_by]
            shared.refused += 1
            shared.too_large += amounts[refused_by] > min(shared.limit, bound)
            return False
        self.grant(owner, amounts)
        return True

    def grant(self, owner: OwnerTwin, amounts: Mapping[str, int]) -> None:
        for cap, n in amounts.items():
            self.charge(owner, cap, n)
            self.caps[cap].admitted += 1

    def wait(self, name: object, amounts: Mapping[str, int], timeout: float, looked: bool) -> None:
        """Wait while nobody else does anything: what has no room then, has none when the time is up."""
        owner = self.owners[self.claim(name)]
        if self.full(amounts, 2**32 - 1) and looked:
            self.reclaim()
        cap = next((cap for cap in self.caps if amounts.get(cap, 0) > self.caps[cap].limit), None)
        if cap is not None:
            self.caps[cap].refused += 1
            self.caps[cap].too_large += 1
            raise GateFull(cap, self.caps[cap].limit, self.in_flight(cap), amounts[cap])
        cap = self.full(amounts, 2**32 - 1)
        if cap is not None:
            self.caps[cap].refused += 1
            self.caps[cap].timeouts += 1
            raise GateTimeout(cap, self.caps[cap].limit, self.in_flight(cap), amounts[cap], timeout)
        self.grant(owner, amounts)

    def admit(self, name: object, amounts: Mapping[str, int], timeout: float, looked: bool) -> None:
        if timeout:
            self.wait(name, amounts, timeout, looked)
        elif not self.reserve(name, amounts, looked):
            cap = self.full(amounts, 2**32 - 1)
            assert cap is not None
            raise GateFull(cap, self.caps[cap].limit, self.in_flight(cap), amounts[cap])

    def release(self, name: object, cap: str, n: int) -> None:
        held = self.held(name, cap)
        if n > held:
            raise NotOwner("", requested=n, held=held)
        slot = self.slot_of(name)
        assert slot is not None
        self.owners[slot].held[cap] -= n

    def release_all(self, name: object, amounts: Mapping[str, int]) -> None:
        """Release a permit: under every cap where it is held, then complain of the first other."""
        errors = []
        for cap in (cap for cap in self.caps if cap in amounts):
            try:
                self.release(name, cap, amounts[cap])
            except NotOwner as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self, name: object) -> None:
        slot = self.slot_of(name)
        if slot is not None:
            del self.owners[slot]

    def die(self, name: object) -> None:
        slot = self.slot_of(name)
        if slot is not None:
            self.owners[slot].alive = False

    def reclaim(self) -> int:
        dead = self.dead()
        for slot in dead:
            for cap, n in self.owners.pop(slot).held.items():
                self.caps[cap].reclaimed += n
        return len(dead)


CAP = "requests"


class HardBufferTwin(GateTwin):
    """The cap behind `AdmissionCounters`, where a slot is a client's index, and the words that it shows.

    One process may own several indices, so a name here is that of one client of one process.
    """

    def claim_index(self, name: object, index: int) -> OwnerTwin:
        owner = self.owners.get(index)
        if owner is None or owner.name != name or not owner.alive:
            if owner is not None:
                self.reclaim()
            if index in self.owners:
                raise NotOwner("")
            self.owners[index] = OwnerTwin(name, {CAP: 0})
            self.reclaim()
        return self.owners[index]

    def words(self) -> list[int]:
        """Return what each client shows; a dead one's word stands until it is reclaimed."""
        owners = [self.owners.get(index) for index in range(self.slots)]
        return [owner.counted + owner.reserved if owner else 0 for owner in owners]

    def try_reserve(self, name: object, index: int, n: int, bound: int, looked: bool) -> bool:
        owner = self.claim_index(name, index)
        granted = self.reserve(owner.name, {CAP: n}, looked, bound)
        if granted:
            owner.reserved += n
        return granted

    def counted(self, name: object, index: int) -> int:
        """Return what that client has published last."""
        owner = self.owners.get(index)
        return owner.counted if owner and owner.name == name else 0

    def set_num_requests(self, name: object, index: int, count: int, looked: bool) -> None:
        owner = self.claim_index(name, index)
        owner.reserved -= min(max(count - owner.counted, 0), owner.reserved)
        owner.counted = count
        self.follow(owner, looked)

    def release_index(self, name: object, index: int, n: int, looked: bool) -> None:
        owner = self.owners.get(index)
        mine = owner is not None and owner.name == name and owner.alive
        has = owner.counted + owner.reserved if owner and mine else 0
        if owner is None or n > has:
            raise NotOwner("", requested=n, held=has)
        uncounted = min(n, owner.reserved)
        owner.reserved -= uncounted
        owner.counted -= n - uncounted
        self.follow(owner, looked)

    def follow(self, owner: OwnerTwin, looked: bool) -> None:
        """Bring what is held to what is shown, upwards as far as there is room."""
        shown = owner.counted + owner.reserved
        owner.held[CAP] = min(owner.held[CAP], shown)
        for _ in range(2):
            room = max(self.caps[CAP].limit - self.in_flight(CAP), 0)
            more = min(shown - owner.held[CAP], room)
            if more:
                self.charge(owner, CAP, more)
            if owner.held[CAP] == shown or not looked:
                break
            self.reclaim()


class PlainBufferTwin:
    """A `RawArray`, to which nobody's death means anything, and what each client keeps to itself."""

    def __init__(self, clients: int) -> None:
        self.shown = [0] * clients
        self.own: dict[object, dict[str, int]] = {}

    def words(self) -> list[int]:
        return self.shown

    def _own(self, name: object) -> dict[str, int]:
        return self.own.setdefault(name, {"counted": 0, "reserved": 0})

    def try_reserve(self, name: object, index: int, n: int, bound: int, looked: bool) -> bool:
        if sum(self.shown) + n > bound:
            return False
        self.shown[index] += n
        self._own(name)["reserved"] += n
        return True

    def counted(self, name: object, index: int) -> int:
        return self._own(name)["counted"]

    def set_num_requests(self, name: object, index: int, count: int, looked: bool) -> None:
        own = self._own(name)
        own["reserved"] -= min(max(count - own["counted"], 0), own["reserved"])
        own["counted"] = count
        self.shown[index] = count + own["reserved"]

    def release_index(self, name: object, index: int, n: int, looked: bool) -> None:
        if n > self.shown[index]:
            raise NotOwner("", requested=n, held=self.shown[index])
        own = self._own(name)
        uncounted = min(n, own["reserved"])
        own["reserved"] -= uncounted
        own["counted"] -= n - uncounted
        self.shown[index] -= n


def outcome(call: Any, *arguments: Any, **keywords: Any) -> tuple[object, ...]:
    """Return what a call returns, or its error's type and fields: what two calls can be compared by."""
    try:
        return "returned", call(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 (whatever it is, the other must have raised it too)
        return type(error).__name__, *sorted(vars(error).items())
