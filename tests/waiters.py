"""What the tests of waiting share: threads and tasks that come to wait, and what becomes of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gatecount import Gate, GateTimeout
from support import DEADLINE, wait_until


def waiting(gate: Gate, cap: str = "requests") -> int:
    return gate.statistics().caps[cap].waiting


def start(work: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


class Outcomes:
    """What the calls of several threads came to, in the order in which they ended."""

    def __init__(self) -> None:
        self.list: list[Any] = []

    def of(self, name: object, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (it is for the test to judge)
            self.list.append((name, type(error)))
        else:
            self.list.append(name)


def line_up(gate: Gate, outcomes: Outcomes, calls: dict[Any, Callable[[], object]]) -> Any:
    """Start a thread for each call, one after the other has come to wait."""
    threads = []
    for name, call in calls.items():
        before = waiting(gate)
        threads.append(start(outcomes.of, name, call))
        wait_until(lambda before=before: waiting(gate) == before + 1)
    return threads


def code_of_a_child_that_waits(gate: Gate, others: int) -> int:
    """Fork, and let the child wait in vain; 7 if it holds nothing then and so many others wait."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(GateTimeout):
                gate.acquire(timeout=0.05)
            code = 7 if gate.held() == 0 and waiting(gate) == others else 2
            gate.close()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def gate_without_traces(mode: Any) -> Iterator[Gate]:
    """A gate of 2 requests and 100 tokens; at its end nobody may wait, and its threads have to end."""
    # The test runner may have some that Python does not count.
    threads = len(os.listdir("/proc/self/task"))
    with Gate.create(limits={"requests": 2, "tokens": 100}, slots=4, mode=mode) as made:
        yield made
        assert (waiting(made) if not made.closed else 0) == 0
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= threads)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def tasks_in_line(gate: Gate, *calls: Awaitable[Any]) -> list[asyncio.Task[Any]]:
    """Start a task for each call, one after the other has come to wait."""
    tasks = []
    for call in calls:
        before = waiting(gate)
        tasks.append(asyncio.ensure_future(call))
        await until(lambda before=before: waiting(gate) == before + 1)
    return tasks  # type: ignore[return-value]
