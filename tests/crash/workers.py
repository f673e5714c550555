"""What is killed: workers that reserve and release without end, and tell a kill-proof witness."""

from __future__ import annotations

import os
import random
from typing import Any

from gatecount import AtomicArray, Gate, GateFull, SharedAdmissionStats
from processes.workers import claimed
from witness import KillProofWitness


def work_at_gate(gate: Gate, witness: KillProofWitness, me: int, most: int, stop: AtomicArray) -> None:
    """Reserve and release one cap, holding several permits at a time."""
    claimed(gate.claim)
    chance = random.Random(os.getpid())
    held: list[int] = []
    while not stop.load(0) or held:
        if held and (stop.load(0) or chance.random() < 0.45):
            n = held.pop()
            witness.releasing(me, n)
            gate.release(n)
        elif gate.try_acquire(n := chance.randint(1, most)):
            witness.granted(me, n)
            held.append(n)


def admit_at_gate(
    gate: Gate, requests: KillProofWitness, tokens: KillProofWitness, me: int, stop: AtomicArray
) -> None:
    """Reserve two caps at once, so that a kill can fall between them."""
    claimed(gate.claim)
    chance = random.Random(os.getpid())
    while not stop.load(0):
        wanted = {"requests": chance.randint(1, 3), "tokens": chance.randint(1, 20)}
        try:
            permit = gate.admit(**wanted)
        except GateFull:
            continue
        requests.granted(me, wanted["requests"])
        tokens.granted(me, wanted["tokens"])
        if chance.random() < 0.01:
            os.sched_yield()
        requests.releasing(me, wanted["requests"])
        tokens.releasing(me, wanted["tokens"])
        permit.release()


def serve_requests(
    buffer: Any, clients: int, witness: KillProofWitness, me: int, stop: AtomicArray
) -> None:
    """Reserve, then count, then finish requests, as a server does that admits before it adds."""
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, clients, me)
    claimed(lambda: stats.set_num_requests(0))
    chance = random.Random(os.getpid())
    table = 0
    while not stop.load(0) or table:
        if table and (stop.load(0) or chance.random() < 0.5):
            n = chance.randint(1, table)
            witness.releasing(me, n)
            table -= n
            stats.set_num_requests(table)
        elif stats.try_reserve(n := chance.randint(1, 3)):
            witness.granted(me, n)
            table += n
            stats.set_num_requests(table)
