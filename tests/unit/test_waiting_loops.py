"""Event loops whose tasks wait: several, those that end or fork meanwhile, and what they cost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gatecount import Gate, GateClosed
from support import DEADLINE, wait_until
from waiters import (
    Outcomes,
    code_of_a_child_that_waits,
    gate_without_traces,
    join,
    line_up,
    tasks_in_line,
    until,
    waiting,
)


@pytest.fixture(params=["hard", "approximate"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    with gate_without_traces(request.param) as made:
        yield made


def test_loops_of_several_threads_share_a_line(gate: Gate) -> None:
    outcomes = Outcomes()
    gate.acquire(2)

    def run(name: str) -> Callable[[], None]:
        return lambda: asyncio.run(gate.acquire_async(timeout=DEADLINE))

    threads = line_up(gate, outcomes, {name: run(name) for name in ("a", "b", "c")})
    for count in range(3):
        gate.release()
        wait_until(lambda count=count: len(outcomes.list) == count + 1)
    join(*threads)
    assert outcomes.list == ["a", "b", "c"]


def test_closing_the_gate_ends_every_wait(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        tasks = await tasks_in_line(gate, *(gate.acquire_async() for _ in range(3)))
        gate.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), DEADLINE)
        assert [type(outcome) for outcome in outcomes] == [GateClosed] * 3

    asyncio.run(main())


def test_a_loop_that_ends_takes_its_waiters_with_it(gate: Gate) -> None:
    gate.acquire(2)

    async def leave_some() -> None:
        await tasks_in_line(gate, gate.acquire_async(), gate.acquire_async())

    asyncio.run(leave_some())  # cancels them
    assert waiting(gate) == 0


def test_a_loop_closed_over_its_waiters_keeps_no_permit_from_others(gate: Gate) -> None:
    gate.acquire(2)
    loop = asyncio.new_event_loop()
    task = loop.create_task(gate.acquire_async(2))
    loop.run_until_complete(until(lambda: waiting(gate) == 1))
    loop.close()
    gate.release()  # one, when it wanted two
    gate.acquire(timeout=DEADLINE)
    assert waiting(gate) == 0
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    assert gate.held() == 2


class LooksOpen(asyncio.SelectorEventLoop):
    """A loop that the watcher takes for open: it is closed right after the look."""

    def is_closed(self) -> bool:
        return super().is_closed() and threading.current_thread() is threading.main_thread()


def test_a_loop_closed_as_its_waiter_is_granted_gives_the_permit_back(gate: Gate) -> None:
    gate.acquire(2)
    loop = LooksOpen()
    task = loop.create_task(gate.acquire_async(2))
    loop.run_until_complete(until(lambda: waiting(gate) == 1))
    loop.close()
    gate.release(2)
    gate.acquire(2, timeout=DEADLINE)
    assert (gate.held(), waiting(gate)) == (2, 0)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_refusal_that_a_dropped_task_has_not_seen_is_not_complained_of(gate: Gate) -> None:
    gate.acquire(2)
    loop = asyncio.new_event_loop()
    collected: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: collected.append(context))
    task: Any = loop.create_task(gate.acquire_async(2))
    loop.run_until_complete(until(lambda: waiting(gate) == 1))
    gate.set_limit("requests", 1)

    def told() -> bool:
        """Let the loop turn once: it is told in the turn before the one that would wake the task."""
        loop.call_soon(loop.stop)
        loop.run_forever()
        return bool(task._fut_waiter.done())

    wait_until(told)
    loop.close()
    task._log_destroy_pending = False
    task = None
    gc.collect()
    assert collected == []


def test_a_child_forked_from_a_waiting_loop_waits_for_itself(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        (task,) = await tasks_in_line(gate, gate.acquire_async(timeout=DEADLINE))
        assert code_of_a_child_that_waits(gate, 1) == 7
        gate.release(2)
        await task
        assert gate.held() == 1

    asyncio.run(main())


def test_a_waiting_loop_takes_next_to_no_processor_time(gate: Gate) -> None:
    async def main() -> None:
        await gate.acquire_async(2)
        tasks = await tasks_in_line(gate, *(gate.acquire_async(timeout=DEADLINE) for _ in range(20)))
        before = time.process_time()
        await asyncio.sleep(1)
        assert time.process_time() - before < 0.1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
