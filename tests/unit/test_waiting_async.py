"""Waiting tasks of asyncio: the loop goes on, and a task that is cancelled keeps nothing."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gatecount import Gate, GateFull, GateTimeout, Permit
from support import DEADLINE, scaled, wait_until
from waiters import Outcomes, gate_without_traces, join, line_up, start, tasks_in_line, until, waiting


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with gate_without_traces(request.param) as made:
        yield made


def complaints() -> list[dict[str, Any]]:
    """Collect what the running loop complains of: errors that no task has seen."""
    collected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: collected.append(context))
    return collected


def test_room_is_taken_at_once_and_without_a_thread(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async()
        await gate.acquire_async(3, cap="tokens", timeout=0)
        with await gate.admit_async(requests=1, tokens=90, headroom=1 - 1) as permit:
            assert isinstance(permit, Permit)
            assert dict(permit.amounts) == {"requests": 1, "tokens": 90}
            assert (gate.held(), gate.held(cap="tokens")) == (2, 93)
        assert threading.active_count() <= before

    before = threading.active_count()
    asyncio.run(main())
    assert (gate.held(), gate.held(cap="tokens")) == (1, 3)


def test_tasks_are_served_oldest_first_while_the_loop_goes_on(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        served: list[int] = []

        async def one(number: int) -> None:
            await gate.acquire_async(timeout=DEADLINE)
            served.append(number)

        tasks = await tasks_in_line(gate, *(one(number) for number in range(5)))
        for count in range(5):
            gate.release()
            await until(lambda count=count: len(served) == count + 1)
        await asyncio.gather(*tasks)
        assert served == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_threads_and_tasks_stand_in_one_line(gate: Gate) -> None:
    outcomes = Outcomes()

    async def main() -> None:
        gate.acquire(2)

        async def task(name: str) -> None:
            await gate.acquire_async(timeout=DEADLINE)
            outcomes.list.append(name)

        def thread(name: str) -> threading.Thread:
            return line_up(gate, outcomes, {name: lambda: gate.acquire(timeout=DEADLINE)})[0]

        first = thread("thread 1")
        tasks = await tasks_in_line(gate, task("task 1"), task("task 2"))
        second = thread("thread 2")
        tasks += await tasks_in_line(gate, task("task 3"))
        for count in range(5):
            gate.release()
            await until(lambda count=count: len(outcomes.list) == count + 1)
        await asyncio.gather(*tasks)
        join(first, second)

    asyncio.run(main())
    assert outcomes.list == ["thread 1", "task 1", "task 2", "thread 2", "task 3"]


def test_a_timeout_and_the_other_refusals_are_those_of_acquire(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        with pytest.raises(GateTimeout) as caught:
            await gate.acquire_async(timeout=0.05)
        assert (caught.value.cap, caught.value.timeout) == ("requests", 0.05)
        for refused in (
            gate.acquire_async(timeout=0),
            gate.acquire_async(3),
            gate.admit_async(requests=1, headroom=2),
            gate.admit_async(max_waiting=0),
        ):
            with pytest.raises(GateFull):
                await refused
        (task,) = await tasks_in_line(gate, gate.acquire_async(max_waiting=1))
        with pytest.raises(GateFull):
            await gate.acquire_async(max_waiting=1)
        gate.release()
        await task
        with pytest.raises(TypeError, match="timeout must be a number"):
            await gate.acquire_async(timeout="1")  # type: ignore[arg-type]

    asyncio.run(main())
    told = gate.statistics().caps["requests"]
    assert told.refused_by == {"full": 3, "timeout": 1, "too_large": 2}


def test_a_cancelled_task_leaves_its_place_to_the_next_at_once(gate: Gate) -> None:
    async def main() -> None:
        gate.acquire()
        waits = []
        for _ in range(20):
            greedy, modest = await tasks_in_line(gate, gate.acquire_async(2), gate.acquire_async())
            began = time.monotonic()
            greedy.cancel()
            await modest  # which wants less than the one before
            waits.append(time.monotonic() - began)
            assert (greedy.cancelled(), gate.held(), waiting(gate)) == (True, 2, 0)
            gate.release()
        assert sorted(waits)[6] < 0.005, "the watcher was not woken: it has looked by itself"

    asyncio.run(main())


def test_a_task_that_comes_soon_after_another_is_served_at_once(gate: Gate) -> None:
    """The watcher, which still lingers, has gone to sleep without a task to look at."""

    async def main() -> None:
        gate.acquire(2)
        waits = []
        for _ in range(20):
            (task,) = await tasks_in_line(gate, gate.acquire_async(2))
            await asyncio.sleep(0.002)
            began = time.monotonic()
            gate.release(2)
            await task
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.002)
        assert sorted(waits)[6] < 0.02  # it lingers for 0.05

    asyncio.run(main())


def test_nothing_is_left_of_a_wait_that_was_granted_long_before_its_time_was_up(gate: Gate) -> None:
    async def main() -> None:
        gate.acquire(2)
        (task,) = await tasks_in_line(gate, gate.admit_async(requests=1, timeout=3600))
        gate.release(2)
        permit = await task
        permit.release()
        left = weakref.ref(permit)
        del permit, task
        await asyncio.sleep(0)
        gc.collect()
        assert left() is None

    asyncio.run(main())


def test_a_task_cancelled_as_it_is_granted_gives_the_permit_to_the_next(gate: Gate) -> None:
    async def main() -> None:
        collected = complaints()
        for _ in range(scaled(100)):
            await gate.acquire_async(2)
            first, second = await tasks_in_line(gate, gate.acquire_async(2), gate.acquire_async(2))
            gate.release(2)
            wait_until(
                lambda: waiting(gate) < 2
            )  # the watcher has granted it; the loop does not know yet
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await asyncio.wait_for(second, DEADLINE)
            assert (gate.held(), waiting(gate)) == (2, 0)
            gate.release(2)
        assert collected == []

    asyncio.run(main())


def test_a_task_whose_time_is_up_as_it_is_granted_has_it(gate: Gate) -> None:
    async def was_granted(seconds: float) -> bool:
        await gate.acquire_async(2)
        task = asyncio.ensure_future(gate.acquire_async(timeout=seconds))
        await until(lambda: waiting(gate) == 1 or task.done())
        gate.release()
        if task.done():  # its time was up before anybody saw it wait
            assert isinstance(task.exception(), GateTimeout)
            gate.release()
            return False
        wait_until(lambda: waiting(gate) == 0)
        time.sleep(2 * seconds)  # the loop stands still until the time is up
        await task
        return True

    # A busy machine may let the time go by, but hardly as much as that.
    late = 0
    while not asyncio.run(was_granted(0.05 * 10**late)):
        late += 1
        assert late < 3
    assert gate.held() == 2
    assert gate.statistics().caps["requests"].refused == late


def test_a_storm_of_cancels_and_timeouts_keeps_every_count(gate: Gate) -> None:
    chance = random.Random(3)
    tally = {"granted": 0, "timed out": 0, "cancelled": 0}

    async def one() -> None:
        try:
            async with asyncio.timeout(chance.choice([None, 0.001, 0.003])):
                with await gate.admit_async(
                    requests=chance.randint(1, 2), tokens=10, timeout=chance.choice([None, 0.002, 0.01])
                ):
                    tally["granted"] += 1
                    assert gate.statistics().caps["requests"].in_flight <= 2
                    await asyncio.sleep(chance.choice([0, 0, 0.001]))
        except GateTimeout:
            tally["timed out"] += 1
        except TimeoutError:
            tally["cancelled"] += 1

    async def main() -> None:
        for _ in range(scaled(10)):
            await asyncio.gather(*(one() for _ in range(100)))

    asyncio.run(main())
    assert min(tally.values()) > 0
    assert (gate.held(), gate.held(cap="tokens"), waiting(gate)) == (0, 0, 0)
    told = gate.statistics().caps["requests"]
    assert (told.in_flight, told.repairs) == (0, 0)
    assert tally["timed out"] == told.refused_by["timeout"]


def test_a_task_is_woken_by_a_thread_and_a_thread_by_a_task(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        rounds = scaled(200)

        def follow() -> None:
            for _ in range(rounds):
                gate.acquire(2, timeout=DEADLINE)
                gate.release(2)

        thread = start(follow)
        for _ in range(rounds):
            gate.release(2)
            await gate.acquire_async(2, timeout=DEADLINE)
        gate.release(2)
        await until(lambda: not thread.is_alive())

    asyncio.run(main())
