"""What the tests of waiting share: threads that come to wait one by one, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gatecount import Gate
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
