"""Permits: released once, by whom they belong to, and never lost."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gatecount import Gate, GateFull, NotOwner
from support import DEADLINE, wait_until

LIMITS = {"requests": 10, "tokens": 1000}


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with Gate.create(limits=LIMITS, slots=4, mode=request.param) as made:
        yield made


def in_flight(gate: Gate) -> tuple[int, int]:
    caps = gate.statistics().caps
    return caps["requests"].in_flight, caps["tokens"].in_flight


def in_child(work: Callable[[], object]) -> int:
    """Run work in a forked child and return its exit code: 0 if work returned, 1 if it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 (nothing may escape into the runner's copy)
            traceback.print_exc()
        finally:
            os._exit(code)
    ended: list[int] = []

    def reaped() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        ended.append(os.waitstatus_to_exitcode(status))
        return found == pid

    wait_until(reaped, DEADLINE)
    return ended[-1]


def test_a_block_releases_at_its_end(gate: Gate) -> None:
    with gate.admit(requests=2, tokens=30) as permit:
        assert in_flight(gate) == (2, 30)
        released = permit.released
    assert (released, permit.released) == (False, True)
    assert in_flight(gate) == (0, 0)


def test_a_block_releases_when_it_is_left_by_an_error(gate: Gate) -> None:
    with pytest.raises(ZeroDivisionError), gate.admit(requests=2):
        raise ZeroDivisionError
    assert in_flight(gate) == (0, 0)


def test_a_second_release_does_nothing(gate: Gate) -> None:
    with gate.admit(requests=3):
        permit = gate.admit(requests=2, tokens=5)
        permit.release()
        permit.release()
        with permit:
            pass
        assert in_flight(gate) == (3, 0)


def test_a_release_inside_the_block_is_enough(gate: Gate) -> None:
    with gate.admit(requests=3), gate.admit(requests=2) as permit:
        permit.release()
        assert in_flight(gate) == (3, 0)


def test_many_threads_releasing_one_permit_release_it_once(gate: Gate) -> None:
    with gate.admit(requests=4):
        permit = gate.admit(requests=5, tokens=7)
        start = threading.Barrier(6)

        def release() -> None:
            start.wait(DEADLINE)
            permit.release()

        threads = [threading.Thread(target=release) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert in_flight(gate) == (4, 0)


def test_a_permit_can_be_released_by_another_thread(gate: Gate) -> None:
    permit = gate.admit(requests=5)
    thread = threading.Thread(target=permit.release)
    thread.start()
    thread.join(DEADLINE)
    assert in_flight(gate) == (0, 0)


def test_a_permit_dropped_without_release_is_released_and_warned_of(gate: Gate) -> None:
    permit = gate.admit(requests=3, tokens=4)
    holder = [permit]
    del permit
    with pytest.warns(ResourceWarning, match=r"Permit .*requests.*3.* was dropped without release"):
        holder.clear()
    assert in_flight(gate) == (0, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dropped_permit_is_released_even_where_warnings_are_errors(gate: Gate) -> None:
    permit = gate.admit(requests=3, tokens=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del permit
        gc.collect()
    assert in_flight(gate) == (0, 0)


def test_a_released_permit_is_dropped_in_silence(gate: Gate) -> None:
    gc.collect()  # what tests before have left says what it has to say now
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        permit = gate.admit()
        permit.release()
        del permit
        gc.collect()
    assert caught == []


def test_a_permit_of_a_closed_gate_does_nothing(gate: Gate) -> None:
    gc.collect()  # what tests before have left says what it has to say now
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = gate.admit(requests=2), gate.admit(tokens=3)
        gate.close()
        first.release()
        first.release()
        del first, second
        gc.collect()
    assert caught == []


def test_after_its_gate_was_closed_a_permit_frees_nothing_of_the_next_owner(
    gate_name: str,
) -> None:
    gate = Gate.create(gate_name, limits=LIMITS, slots=1)
    permit = gate.admit(requests=4)
    gate.close()
    with Gate.open(gate_name) as next_owner:
        assert next_owner.try_acquire(4)
        permit.release()
        assert next_owner.held() == 4


def test_a_permit_keeps_its_gate() -> None:
    permit = Gate.create(limits=LIMITS).admit(requests=2)
    gc.collect()
    gate = permit.gate
    assert isinstance(gate, Gate)
    assert in_flight(gate) == (2, 0)
    permit.release()
    assert in_flight(gate) == (0, 0)


def test_a_forked_child_cannot_release_its_parents_permit(gate: Gate) -> None:
    permit = gate.admit(requests=4)

    def child() -> None:
        for _ in range(2):
            with pytest.raises(NotOwner, match="granted to the parent process, which still holds"):
                permit.release()
        assert not permit.released
        assert in_flight(gate) == (4, 0)

    assert in_child(child) == 0
    assert in_flight(gate) == (4, 0)
    permit.release()
    assert in_flight(gate) == (0, 0)


def test_a_forked_child_that_drops_its_parents_permit_changes_nothing(gate: Gate) -> None:
    holder = [gate.admit(requests=4)]

    def child() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            holder.clear()
            gc.collect()
        assert caught == []
        assert in_flight(gate) == (4, 0)

    assert in_child(child) == 0
    assert in_flight(gate) == (4, 0)
    holder.pop().release()


def test_a_forked_child_that_closes_the_gate_changes_nothing_for_its_parent(gate: Gate) -> None:
    permit = gate.admit(requests=4)
    assert in_child(gate.close) == 0
    assert in_flight(gate) == (4, 0)
    assert gate.reclaim() == 0
    permit.release()


def test_a_forked_child_gets_permits_of_its_own(gate: Gate) -> None:
    permit = gate.admit(requests=4)

    def child() -> None:
        assert gate.held() == 0
        with gate.admit(requests=6) as own:
            assert in_flight(gate) == (10, 0)
            with pytest.raises(GateFull):
                gate.admit()
            assert not own.released
        assert in_flight(gate) == (4, 0)
        assert len(gate.statistics().slots) == 2

    assert in_child(child) == 0
    permit.release()
    wait_until(lambda: len(gate.statistics().slots) == 1)


def test_units_given_back_by_hand_are_not_given_back_twice(gate: Gate) -> None:
    """The permit's own release must not lose the caps that it still can give back."""
    permit = gate.admit(requests=2, tokens=30)
    gate.release(2)
    with pytest.raises(NotOwner):
        permit.release()
    assert in_flight(gate) == (0, 0)


def test_changing_what_amounts_shows_changes_no_release(gate: Gate) -> None:
    with gate.admit(requests=5):
        permit = gate.admit(requests=2)
        with contextlib.suppress(TypeError):
            permit.amounts["requests"] = 7  # type: ignore[index]
        permit.release()
        assert in_flight(gate) == (5, 0)


def test_a_refusal_tells_the_cap_its_limit_and_what_is_in_flight(gate: Gate) -> None:
    with gate.admit(requests=8):
        with pytest.raises(GateFull) as caught:
            gate.admit(requests=3)
        error = caught.value
        assert (error.cap, error.limit, error.in_flight, error.requested) == ("requests", 10, 8, 3)
        assert str(error) == "cap 'requests' is full: 8 of 10 in flight, no room for 3 more"


def test_its_repr_tells_whether_it_is_held(gate: Gate) -> None:
    permit = gate.admit(tokens=3)
    assert "'tokens': 3" in repr(permit)
    assert "held" in repr(permit)
    permit.release()
    assert "released" in repr(permit)


def test_a_fork_inside_a_block_leaves_the_permit_with_the_parent(gate: Gate, tmp_path: Path) -> None:
    with gate.admit(requests=3):
        assert in_child(lambda: (tmp_path / "ran").write_text("yes")) == 0
        assert in_flight(gate) == (3, 0)
    assert (tmp_path / "ran").read_text() == "yes"
    assert in_flight(gate) == (0, 0)
