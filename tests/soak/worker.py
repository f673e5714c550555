"""What the soak kills: processes that use a gate in every way, and note what they were granted."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from gatecount import Gate, GateFull, Permit
from soak.board import (
    ADMIT,
    BETWEEN,
    HURRIED,
    LIMITS,
    LOWER,
    RECLAIM,
    RELEASE,
    REOPEN,
    RESERVE,
    SET_LIMIT,
    START,
    STOP,
    Board,
)

ROLES = {
    "one cap": (60, 0, 38, 1, 1, 0),
    "two caps": (5, 50, 43, 1, 1, 0),
    "anything": (30, 20, 38, 6, 2, 4),
    "reclaims": (5, 3, 7, 85, 0, 0),
    "hurries": (15, 5, 18, 1, 1, 60),
}
"""How often, in percent: reserve, reserve two caps, release, reclaim, close and open again, hurry."""

HURRY = 200
"""Pairs of calls in a row."""

MOST = {"requests": 3, "tokens": 15}
EVERYBODY_SETS_LIMITS = 2
"""The phase in which workers set limits."""

Held = tuple[dict[str, int], Permit | None]


class Worker:
    """One process at one seat."""

    def __init__(self, gate: Gate, board: Board, seat: int, role: str, supervisor: int) -> None:
        self.gate = gate
        self.board = board
        self.seat = seat
        self.weights = ROLES[role]
        self.supervisor = supervisor
        self.chance = random.Random(os.getpid())
        self.held: list[Held] = []
        self.caps = tuple(LIMITS)
        self.actions: tuple[Callable[[], None], ...] = (
            self.reserve,
            self.admit,
            self.release,
            self.reclaim,
            self.reopen,
            self.hurry,
        )

    def run(self) -> None:
        self.board.stage(self.seat, START)
        self.board.take(self.seat, os.getpid())
        while (command := self.board.command) != STOP:
            if command > 0:
                self.pause(command)
                continue
            for action in self.chance.choices(self.actions, self.weights, k=50):
                action()
                self.board.stage(self.seat, BETWEEN)
                self.board.worked(self.seat)
                if self.board.command != command:
                    break
            os.kill(self.supervisor, 0)  # or this process has outlived the soak, and ends here

    def pause(self, command: int) -> None:
        self.board.acknowledge(self.seat, command)
        while self.board.command == command:
            os.kill(self.supervisor, 0)
            time.sleep(0.0005)

    def reserve(self) -> None:
        cap = self.chance.choice(self.caps)
        n = self.chance.randint(1, MOST[cap])
        rule = self.board.rule(cap)
        self.board.stage(self.seat, RESERVE)
        if self.gate.try_acquire(n, cap=cap):
            self.board.granted(self.seat, cap, n, rule)
            self.held.append(({cap: n}, None))
        else:
            self.board.refused(self.seat)

    def admit(self) -> None:
        wanted = {cap: self.chance.randint(1, MOST[cap]) for cap in self.caps}
        rules = {cap: self.board.rule(cap) for cap in self.caps}
        self.board.stage(self.seat, ADMIT)
        try:
            permit = self.gate.admit(**wanted)
        except GateFull:
            self.board.refused(self.seat)
            return
        for cap, n in wanted.items():
            self.board.granted(self.seat, cap, n, rules[cap])
        self.held.append((wanted, permit))

    def release(self) -> None:
        if not self.held:
            return
        amounts, permit = self.held.pop(self.chance.randrange(len(self.held)))
        self.board.stage(self.seat, RELEASE)
        for cap, n in amounts.items():
            self.board.releasing(self.seat, cap, n)
        if permit:
            permit.release()
            return
        for cap, n in amounts.items():
            self.gate.release(n, cap=cap)

    def reclaim(self) -> None:
        self.board.stage(self.seat, RECLAIM)
        self.board.reclaimed(self.seat, self.gate.reclaim())
        if self.board.phase == EVERYBODY_SETS_LIMITS and self.chance.random() < 0.2:
            cap = self.chance.choice(self.caps)
            self.board.stage(self.seat, SET_LIMIT)
            self.gate.set_limit(cap, self.chance.choice(LOWER[cap]))

    def reopen(self) -> None:
        """Give everything back by closing, and open the gate by its name."""
        self.board.stage(self.seat, REOPEN)
        for amounts, _ in self.held:
            for cap, n in amounts.items():
                self.board.releasing(self.seat, cap, n)
        assert self.gate.name
        self.gate.close()
        self.held.clear()
        self.gate = Gate.open(self.gate.name)

    def hurry(self) -> None:
        """Reserve and release and nothing else, so that a kill falls in the midst of one of them.

        Nothing of it is noted. That is allowed: a witness may know of less than what is held.
        """
        self.board.stage(self.seat, HURRIED)
        acquire, release = self.gate.try_acquire, self.gate.release
        for _ in range(HURRY):
            if acquire():
                release()
        self.board.worked(self.seat, HURRY)

    def leave(self) -> None:
        """End with exit code 0: the one gives everything back, the other keeps it."""
        if self.seat % 2:
            os._exit(0)
        while self.held:
            self.release()
        self.gate.close()


def work(
    gate: Gate | str, board: Board, seat: int, role: str, supervisor: int, child_seat: int | None
) -> None:
    """Be a worker until told to stop; with a seat for a child, fork one first that works likewise."""
    opened = Gate.open(gate) if isinstance(gate, str) else gate
    worker = Worker(opened, board, seat, role, supervisor)
    if child_seat is not None:
        worker.reserve()  # so that there is something that the child must not have
        if os.fork() == 0:
            child = Worker(opened, board, child_seat, "one cap", supervisor)
            child.run()
            child.leave()
            os._exit(0)
    worker.run()
    worker.leave()


def hoard(name: str, slots: int) -> None:
    """Own many slots, each through a gate of its own, with a token in each as long as there are any."""
    gates = [Gate.open(name) for _ in range(slots)]
    for gate in gates:
        gate.try_acquire(cap="tokens")
    signal.pause()
