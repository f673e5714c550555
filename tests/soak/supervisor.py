"""The soak's supervisor: starts workers, kills them, and compares the books while all are paused."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import select
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from gatecount import Gate
from soak.board import LIMITS, LOWER, RECLAIM, RUN, SEATS, STAGES, STOP, Board
from soak.worker import ROLES, hoard, work
from support import DEADLINE, Crew, names, wait_for_end, wait_until

CHILD_SEATS = (6, 7)
WORKER_SEATS = range(6)
PHASES = {"limits stand": 0.6, "one changes limits": 0.2, "everybody sets limits": 0.2}
"""Shares of the kills."""

CHECKPOINT_EVERY = 40
PATIENCE = 0.03
"""Seconds that a victim goes on for at most once it was chosen."""

HOARD = 100
"""Slots of a process that owns many; with many caps it takes long to clean up after it."""

SPARE_CAPS = 30

HEADER, LINE = 128, 64
LIVE, RECLAIMING = 2, 3
KINDS = {
    "one": 60,
    "two at once": 15,
    "parent without its child": 12,
    "child": 5,
    "while reclaiming": 15,
    "while stopped": 5,
}


class Ended(Exception):
    """A worker has ended that nobody had killed: what it wrote to its standard error tells why."""


@dataclass
class Member:
    """A living worker."""

    seat: int
    pid: int
    process: BaseProcess | None
    """None for a forked child's child: nobody here can wait for it but by its descriptor."""
    child_seat: int | None
    began: int
    """Operations of its seat when it began."""
    descriptor: int = -1

    def __post_init__(self) -> None:
        self.descriptor = os.pidfd_open(self.pid)

    def dead(self, deadline: float = DEADLINE) -> bool:
        return bool(select.select([self.descriptor], [], [], deadline)[0])


@dataclass
class Soak:
    """The supervisor: starts, kills, compares. Never holds a permit."""

    kills: int
    seed: int
    spawned: float = 0.2
    """Share of workers that are spawned rather than forked."""
    done: int = 0
    checkpoints: int = 0
    wrong: list[str] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    by_stage: Counter[str] = field(default_factory=Counter)
    half_reclaimed: int = 0
    members: dict[int, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.board = Board()
        self.name = next(names("soak"))
        limits = {**LIMITS, **{f"spare-{i}": 1 for i in range(SPARE_CAPS)}}
        self.gate = Gate.create(self.name, limits=limits, slots=SEATS + HOARD)
        whole = mmap.mmap(self.gate.segment.fd, self.gate.segment.size, prot=mmap.PROT_READ)
        self.owners = memoryview(whole)[HEADER : HEADER + LINE * (SEATS + HOARD)].cast("Q")
        self.crews = {method: Crew(method) for method in ("fork", "spawn")}

    def expect(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(f"after {self.done} kills: {what}")

    # Starting

    def start(self, seat: int) -> None:
        role = self.chance.choice(list(ROLES))
        method = "spawn" if self.chance.random() < self.spawned else "fork"
        free = [one for one in CHILD_SEATS if not self.is_taken(one)]
        child_seat = free[0] if free and self.chance.random() < 0.5 else None
        gate = self.gate if self.chance.random() < 0.5 else self.name
        process = self.crews[method].start(work, gate, self.board, seat, role, os.getpid(), child_seat)
        assert process.pid
        began = self.board.operations(seat)
        self.members[seat] = Member(seat, process.pid, process, child_seat, began)

    def is_taken(self, seat: int) -> bool:
        return seat in self.members or any(one.child_seat == seat for one in self.members.values())

    def adopt_children(self) -> None:
        """Get to know forked children that have sat down since."""
        for parent in list(self.members.values()):
            seat = parent.child_seat
            if seat is not None and seat not in self.members and (pid := self.board.pid(seat)):
                began = self.board.operations(seat)
                self.members[seat] = Member(seat, pid, None, None, began)

    def at_work(self) -> list[Member]:
        """Return whom a kill would hit at work: and no parent whose child is not known yet."""
        self.adopt_children()
        return [
            one
            for one in self.members.values()
            if self.board.operations(one.seat) > one.began
            and (one.child_seat is None or one.child_seat in self.members)
        ]

    # Killing

    def victims(self, kind: str) -> list[Member]:
        """Return whom a kill of that kind hits now, in order, or nobody."""
        able = self.at_work()
        self.chance.shuffle(able)
        if kind == "two at once":
            return able[:2] if len(able) > 1 else []
        if kind == "parent without its child":
            able = [one for one in able if one.child_seat is not None]
        elif kind == "child":
            able = [one for one in able if one.seat in CHILD_SEATS]
        elif kind == "while reclaiming":
            able = [one for one in able if self.board.stage_of(one.seat) == RECLAIM]
        return able[:1]

    def kill(self, kind: str) -> bool:
        victims = self.victims(kind)
        if not victims:
            return False
        time.sleep(self.chance.uniform(0, PATIENCE))  # anywhere in its next thousands of steps
        if kind == "while stopped":
            os.kill(victims[0].pid, signal.SIGSTOP)
            self.see_others_go_on(victims[0])
        for victim in victims:
            self.board.condemn(victim.seat)
        if kind == "while reclaiming":
            self.let_reclaim(victims[0])
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):  # an orphan that was killed, and reaped
                os.kill(victim.pid, signal.SIGKILL)
        for victim in victims:
            self.bury(victim, kind)
        if kind == "while reclaiming":
            for one in self.members.values():
                os.kill(one.pid, signal.SIGCONT)
        for victim in victims:
            if victim.seat in WORKER_SEATS:
                self.start(victim.seat)
        return True

    def let_reclaim(self, member: Member) -> None:
        """Stop everybody, kill one who owns many slots, and let this one go on until it cleans up."""
        hoarder = self.crews["fork"].start(hoard, self.name, HOARD)
        assert hoarder.pid
        wait_until(lambda: self.slots_of(hoarder.pid or 0) == HOARD or hoarder.exitcode is not None)
        if hoarder.exitcode is not None:
            raise Ended(f"not all of {HOARD} slots could be had, and {SEATS} workers at most have one")
        for one in self.members.values():
            os.kill(one.pid, signal.SIGSTOP)
        self.crews["fork"].kill(hoarder)
        self.by_kind["owner of many slots"] += 1
        self.done += 1
        os.kill(member.pid, signal.SIGCONT)
        end = time.monotonic() + 0.02
        while self.slots_of(hoarder.pid) == HOARD and time.monotonic() < end:
            pass

    def slots_of(self, pid: int, role: int = LIVE) -> int:
        """Return how many slots a process owns, or is reclaiming, by the owner words."""
        words = self.owners[:: LINE // 8]
        return sum(word >> 62 == role and word >> 39 & 0x3FFFFF == pid for word in words)

    def see_others_go_on(self, stopped: Member) -> None:
        others = [one for one in self.at_work() if one is not stopped]
        before = {one.seat: self.board.operations(one.seat) for one in others}
        wait_until(lambda: all(self.board.operations(seat) > n for seat, n in before.items()))

    def bury(self, victim: Member, kind: str) -> None:
        self.expect(victim.dead(), f"pid {victim.pid} did not die")
        self.half_reclaimed += self.slots_of(victim.pid, RECLAIMING) > 0
        self.by_kind[kind] += 1
        self.by_stage[STAGES[self.board.stage_of(victim.seat)]] += 1
        self.forget(victim, -signal.SIGKILL)
        self.board.bury(victim.seat)
        self.done += 1

    def forget(self, member: Member, exit_code: int) -> None:
        os.close(member.descriptor)
        del self.members[member.seat]
        for one in self.members.values():
            if one.child_seat == member.seat:
                one.child_seat = None
        if member.process:
            wait_for_end(member.process)
            code = member.process.exitcode
            self.expect(code == exit_code, f"pid {member.pid} ended with exit code {code}")
            for crew in self.crews.values():
                crew.members = [one for one in crew.members if one is not member.process]

    # Comparing

    def pause(self) -> None:
        self.checkpoints += 1
        self.board.command = self.checkpoints

        def all_paused() -> bool:
            self.adopt_children()
            self.find_dead()
            known = all(
                one.child_seat is None or one.child_seat in self.members for one in self.members.values()
            )
            return known and all(
                self.board.acknowledged(seat) == self.checkpoints for seat in self.members
            )

        wait_until(all_paused)

    def find_dead(self) -> None:
        for member in list(self.members.values()):
            if member.dead(0):
                raise Ended(f"pid {member.pid} at seat {member.seat} ended by itself")

    def compare(self) -> None:
        """Compare, to the unit, what the gate says, what each slot says, and what all have noted."""
        self.gate.reclaim()
        told = self.gate.statistics()
        owners = self.gate.owners()
        self.expect(all(alive for _, _, alive, *_ in owners), "a dead owner was left")
        pids = {member.pid: seat for seat, member in self.members.items()}
        self.expect({pid for _, pid, *_ in owners} <= set(pids), "a slot belongs to no living worker")
        for index, cap in enumerate(LIMITS):
            one = told.caps[cap]
            noted = self.board.witnesses[cap].running
            self.expect(one.in_flight == noted, f"{cap}: {one.in_flight} in flight, {noted} held")
            self.expect(one.repairs == 0, f"{cap}: {one.repairs} repairs")
            self.expect(one.peak <= LIMITS[cap], f"{cap}: a peak of {one.peak}")
            shown = self.gate.counters(cap=cap)
            for slot, pid, _, _, held in owners:
                mine = self.board.noted(pids[pid], cap) if pid in pids else 0
                self.expect(held[index] == mine, f"{cap}: slot {slot} has {held[index]}, not {mine}")
                self.expect(shown[8 * slot] == mine, f"{cap}: slot {slot} shows {shown[8 * slot]}")
            empty = set(range(SEATS + HOARD)) - {slot for slot, *_ in owners}
            self.expect(not any(shown[8 * slot] for slot in empty), f"{cap}: an empty slot shows some")

    def checkpoint(self, phase: int) -> None:
        self.pause()
        self.compare()
        if phase != self.board.phase:
            for cap, limit in LIMITS.items():
                self.set_limit(cap, limit)
            self.board.phase = phase
        self.board.command = RUN

    def set_limit(self, cap: str, limit: int) -> None:
        """Change a limit so that everybody knows which one is in force (see `soak.board`)."""
        now = self.gate.statistics().caps[cap].limit
        self.board.announce(cap, max(now, limit))
        self.gate.set_limit(cap, limit)
        self.board.announce(cap, limit)

    def end(self) -> None:
        """Let everybody go, half of them with what they hold, and find the gate as new."""
        self.pause()
        self.compare()
        self.board.command = STOP
        for member in list(self.members.values()):
            self.expect(member.dead(), f"pid {member.pid} did not end")
            self.board.condemn(member.seat)
            self.board.bury(member.seat)
        for member in list(self.members.values()):
            self.forget(member, 0)
        self.gate.reclaim()
        for cap, one in self.gate.statistics().caps.items():
            self.expect(one.in_flight == 0, f"{cap}: {one.in_flight} in flight and nobody there")
            self.expect(one.repairs == 0, f"{cap}: {one.repairs} repairs")
            self.expect(not any(self.gate.counters(cap=cap)), f"{cap}: counters are left")
        self.expect(self.gate.owners() == [], "owners are left")
        for cap, limit in LIMITS.items():
            self.gate.set_limit(cap, limit)
        gates = [Gate.open(self.name) for _ in range(SEATS + HOARD)]
        self.expect(len({gate.claim() for gate in gates}) == len(gates), "a slot is lost")
        for cap, limit in LIMITS.items():
            self.expect(gates[0].try_acquire(limit, cap=cap), f"{cap}: a permit is lost")
            self.expect(not gates[1].try_acquire(1, cap=cap), f"{cap}: a permit too many")
        for gate in gates:
            gate.close()

    # All of it

    def run(self) -> None:
        try:
            for seat in WORKER_SEATS:
                self.start(seat)
            bounds = [self.kills * share for share in itertools.accumulate(PHASES.values())]
            next_checkpoint = CHECKPOINT_EVERY
            while self.done < self.kills and not self.violations:
                phase = sum(self.done >= bound for bound in bounds[:-1])
                if phase != self.board.phase or self.done >= next_checkpoint:
                    self.checkpoint(phase)
                    next_checkpoint = self.done + CHECKPOINT_EVERY
                if phase == 1:
                    cap = self.chance.choice(list(LIMITS))
                    self.set_limit(cap, self.chance.choice(LOWER[cap]))
                kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
                self.find_dead()
                if not self.kill(kind):
                    time.sleep(0.001)  # nobody of that kind is at work yet
            self.end()
        except (Ended, AssertionError) as error:  # or a condition that did not come about in time
            self.expect(False, str(error) or repr(error))
        finally:
            self.board.command = STOP
            for member in self.members.values():
                os.kill(member.pid, signal.SIGKILL)
            for crew in self.crews.values():
                crew.__exit__()
            self.gate.close()
            Gate.remove(self.name)

    @property
    def violations(self) -> int:
        return self.board.violations + len(self.wrong)
