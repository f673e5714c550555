"""Files that change while they are looked at: being made, being replaced, coming and going."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from files.gatefile import LIMITS, SLOTS, adopt, create, good_bytes, identity
from gatecount import AtomicArray, Gate, GateNotFound, LayoutMismatch
from support import DEADLINE, Crew, path_of, scaled, wait_until


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who waits for a file wait for longer than any test takes; a forked one does so, too."""
    monkeypatch.setattr("gatecount.gate._CREATION_TIMEOUT_MS", int(2000 * DEADLINE))


# Being made


def _answer(call: Callable[[str], Gate], name: str, answer: object) -> None:
    """Tell when the call begins, and what came of it."""
    answer.send("begins")  # type: ignore[attr-defined]
    try:
        gate = call(name)
        answer.send(gate.try_acquire(LIMITS["requests"]))  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 (it is for the test to judge)
        answer.send(error)  # type: ignore[attr-defined]


STAGES: dict[str, Callable[[bytes], bytes]] = {
    "still empty": lambda good: b"",
    "as large as it will be and empty": lambda good: bytes(len(good)),
    "complete but for its magic": lambda good: bytes(8) + good[8:],
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("call", [Gate.open, adopt])
def test_a_file_that_is_being_made_is_waited_for(
    call: Callable[[str], Gate], stage: str, gate_name: str, crew: Crew
) -> None:
    good = good_bytes(gate_name)
    file = path_of(gate_name)
    file.write_bytes(STAGES[stage](good))
    here, there = crew.context.Pipe()
    crew.start(_answer, call, gate_name, there)
    assert here.poll(DEADLINE)
    assert here.recv() == "begins"
    assert not here.poll(0.05), "it did not wait"
    with file.open("r+b") as maker:  # another process than the one that waits
        os.truncate(maker.fileno(), len(good))
        os.pwrite(maker.fileno(), good[8:], 8)
        os.pwrite(maker.fileno(), good[:8], 0)
    assert here.poll(DEADLINE)
    assert here.recv() is True


@pytest.mark.usefixtures("patient")
def test_a_file_whose_maker_gives_up_while_it_is_waited_for_is_not_found(
    gate_name: str, crew: Crew
) -> None:
    path_of(gate_name).write_bytes(b"")
    here, there = crew.context.Pipe()
    crew.start(_answer, Gate.open, gate_name, there)
    assert here.poll(DEADLINE)
    assert here.recv() == "begins"
    assert not here.poll(0.05), "it did not wait"
    path_of(gate_name).unlink()
    assert here.poll(DEADLINE)
    assert isinstance(here.recv(), GateNotFound)


@pytest.mark.usefixtures("patient")
def test_a_file_replaced_by_a_finished_one_while_it_is_waited_for_is_opened(
    gate_name: str, crew: Crew
) -> None:
    path_of(gate_name).write_bytes(b"")
    here, there = crew.context.Pipe()
    crew.start(_answer, Gate.open, gate_name, there)
    assert here.poll(DEADLINE)
    assert here.recv() == "begins"
    assert not here.poll(0.05), "it did not wait"
    with create(f"{gate_name}-other"):
        path_of(f"{gate_name}-other").rename(path_of(gate_name))
        assert here.poll(DEADLINE)
        assert here.recv() is True


def test_adopting_a_file_that_nobody_finishes_ends_in_an_error(gate_name: str) -> None:
    path_of(gate_name).write_bytes(bytes(100))
    before = identity(path_of(gate_name))
    began = time.monotonic()
    with pytest.raises(LayoutMismatch):
        adopt(gate_name)
    assert time.monotonic() - began < 30
    assert identity(path_of(gate_name)) == before


# Being replaced


def replacing(monkeypatch: pytest.MonkeyPatch, replace: Callable[[str], None]) -> None:
    """Let something happen to the file after it was opened to be removed."""
    original = Gate.open

    def open_and_replace(name: str) -> Gate:
        gate = original(name)
        monkeypatch.setattr(Gate, "open", original)
        replace(name)
        return gate

    monkeypatch.setattr(Gate, "open", open_and_replace)


def test_removing_leaves_a_newer_gate_of_the_same_name(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer: list[Gate] = []

    def replace(name: str) -> None:
        Gate.remove(name)
        newer.append(create(name))

    create(gate_name).close()
    replacing(monkeypatch, replace)
    with pytest.raises(GateNotFound, match="was just removed by another process"):
        Gate.remove(gate_name)
    with newer[0], Gate.open(gate_name) as gate:
        assert gate.try_acquire(10)
        assert not newer[0].try_acquire()


def test_removing_leaves_another_programs_file_that_took_the_name(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(name: str) -> None:
        path_of(name).unlink()
        path_of(name).write_bytes(b"not yours")

    create(gate_name).close()
    replacing(monkeypatch, replace)
    with pytest.raises(GateNotFound):
        Gate.remove(gate_name)
    assert path_of(gate_name).read_bytes() == b"not yours"


def test_removing_what_was_just_removed_says_so(gate_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(gate_name).close()
    replacing(monkeypatch, lambda name: path_of(name).unlink())
    with pytest.raises(GateNotFound, match="was just removed by another process"):
        Gate.remove(gate_name)


def test_a_gate_renamed_over_another_is_the_one_that_is_removed(gate_name: str) -> None:
    """What counts is the file that stands under the name now."""
    other = f"{gate_name}-other"
    with create(gate_name) as old, create(other) as new:
        path_of(other).rename(path_of(gate_name))
        with pytest.raises(FileNotFoundError):
            old.segment.unlink(os.fsencode(path_of(gate_name)))
        assert path_of(gate_name).stat().st_ino == os.fstat(new.segment.fd).st_ino
        Gate.remove(gate_name)
        assert not path_of(gate_name).exists()


def test_adopting_a_gate_that_vanishes_meanwhile_creates_it(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(gate_name).close()
    original = Gate.open

    def vanished(name: str) -> Gate:
        monkeypatch.setattr(Gate, "open", original)
        Gate.remove(name)
        return Gate.open(name)

    monkeypatch.setattr(Gate, "open", vanished)
    with adopt(gate_name) as gate:
        assert gate.try_acquire(10)
    assert path_of(gate_name).exists()


# Made and removed all the time


def _make_and_remove(name: str, rounds: int, words: AtomicArray) -> None:
    """Do so as often, and on until somebody has both found one and found none."""
    while rounds > 0 or not words.load(8):
        rounds -= 1
        gate = create(name)
        assert gate.try_acquire(3)
        Gate.remove(name)
        gate.close()
    words.store(0, 1)


def test_whoever_opens_a_gate_that_comes_and_goes_gets_a_whole_one_or_none(
    gate_name: str, crew: Crew
) -> None:
    """Not a moment of its making can be seen: nothing is waited for, and nothing is found damaged."""
    words = AtomicArray(16)
    crew.start(_make_and_remove, gate_name, scaled(3000), words)
    opened = missed = 0
    deadline = time.monotonic() + DEADLINE
    while not words.load(0):
        if (opened and missed) or time.monotonic() > deadline:
            words.store(8, 1)
        try:
            gate = Gate.open(gate_name)
        except GateNotFound:
            missed += 1
            continue
        with gate:
            told = gate.statistics()
            assert {cap: one.limit for cap, one in told.caps.items()} == LIMITS
            assert told.slot_count == SLOTS
        opened += 1
    crew.join()
    assert opened
    assert missed


def test_whoever_adopts_a_gate_that_comes_and_goes_always_gets_one(gate_name: str, crew: Crew) -> None:
    words = AtomicArray(1)
    crew.start(_remove_always, gate_name, words)
    for _ in range(scaled(1000)):
        with adopt(gate_name) as gate:
            assert gate.try_acquire(10)
    words.store(0, 1)
    wait_until(lambda: crew.members[0].exitcode is not None)
    crew.join()


def _remove_always(name: str, stop: AtomicArray) -> None:
    while not stop.load(0):
        try:
            Gate.remove(name)
        except GateNotFound:
            os.sched_yield()
