"""What the tests share: conditions waited for, processes that cannot outlive their test, names."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from gatecount import Gate, GateFull, Permit
from gatecount._core import DIRECTORY

Value = TypeVar("Value")

DEADLINE = 60.0
"""Seconds after which something that should happen will not; never reached by a test that passes."""

START_METHODS = ("fork", "spawn", "forkserver")


def descriptors_and_mappings() -> tuple[int, int]:
    """Return how many descriptors this process has open, and how many mappings of unnamed segments."""
    process = psutil.Process()
    maps = process.memory_maps(grouped=False)
    return process.num_fds(), sum("memfd:gatecount" in one.path for one in maps)


def scaled(count: int) -> int:
    """Return a count of repetitions times GATECOUNT_TEST_SCALE (0.1 under a sanitizer)."""
    return max(1, round(count * float(os.environ.get("GATECOUNT_TEST_SCALE", "1"))))


def wait_until(condition: Callable[[], Value], deadline: float = DEADLINE) -> Value:
    """Return the first true value of a condition; fail if there is none within deadline seconds."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"still {value!r} after {deadline} seconds")
        time.sleep(0.001)
    return value


def path_of(name: str) -> Path:
    """Return the file of a named gate."""
    return Path(DIRECTORY, f"gatecount-{name}")


def gate_files() -> set[Path]:
    return set(Path(DIRECTORY).glob("gatecount-*"))


def mapping_of(address: int) -> str:
    """Return the name under which the kernel lists the mapping that holds an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, _, _, _, _, *name = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return name[0] if name else ""
    raise AssertionError(f"{address:#x} is not mapped")


def python(program: str, *arguments: str) -> list[str]:
    """Return the command line of an interpreter that knows nothing of this one and runs a program."""
    return [sys.executable, "-W", "error", "-c", program, *arguments]


def wait_for_end(process: BaseProcess, deadline: float = DEADLINE) -> None:
    """Wait until a process has ended: not, as `join` does, until its forked children have too."""
    wait_until(lambda: process.exitcode is not None, deadline)


def gone(process: psutil.Process) -> bool:
    """Tell whether a process has ended. It may be reaped between two looks at it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Crew:
    """Processes of one start method; whichever is still there at the end of the block is killed."""

    def __init__(self, method: str = "fork") -> None:
        self.context: BaseContext = multiprocessing.get_context(method)
        self.members: list[BaseProcess] = []

    def start(self, work: Callable[..., object], *arguments: Any) -> BaseProcess:
        process: BaseProcess = self.context.Process(  # type: ignore[attr-defined]
            target=work, args=arguments, daemon=True
        )
        process.start()
        self.members.append(process)
        return process

    def join(self, exit_code: int = 0, deadline: float = DEADLINE) -> None:
        """Wait for all of them, and find that each ended as it should."""
        end = time.monotonic() + deadline
        for process in self.members:
            wait_for_end(process, max(0.0, end - time.monotonic()))
        assert [process.exitcode for process in self.members] == [exit_code] * len(self.members)

    def kill(self, process: BaseProcess) -> None:
        """Kill one with SIGKILL and see it gone."""
        process.kill()
        wait_for_end(process)
        assert process.exitcode == -9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.members:
            if process.is_alive():
                process.kill()
            wait_for_end(process)


class Remote:
    """An object that another process has made, and whose methods that process calls when asked."""

    def __init__(self, crew: Crew, factory: Callable[..., object], *arguments: object) -> None:
        self._connection, there = crew.context.Pipe()
        self.process = crew.start(serve, there, factory, arguments)
        there.close()
        self.crew = crew

    def call(self, method: str, *arguments: object, **keywords: object) -> Any:
        """Return what the method returns there, or raise what it raises."""
        self._connection.send((method, arguments, keywords))
        assert self._connection.poll(DEADLINE), f"{method} did not return"
        succeeded, outcome = self._connection.recv()
        if not succeeded:
            raise outcome
        return outcome

    def end(self) -> None:
        """Let the process end by itself, without giving anything back first."""
        self._connection.send(None)
        wait_for_end(self.process)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.crew.kill(self.process)


def serve(connection: Any, factory: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Make an object and call its methods for a `Remote`."""
    target = factory(*arguments)
    while (request := connection.recv()) is not None:
        method, given, keywords = request
        try:
            attribute = getattr(target, method)
            outcome = True, attribute(*given, **keywords) if callable(attribute) else attribute
        except Exception as error:  # noqa: BLE001 (it is for the test to judge)
            outcome = False, error
        connection.send(outcome)
    os._exit(0)  # as a process ends that forgets to clean up


def same(target: Value) -> Value:
    """Return the argument: the factory of a `Remote` over an object that was handed to it."""
    return target


def names(prefix: str) -> Iterator[str]:
    """Yield names that no other test or test run uses."""
    number = 0
    while True:
        number += 1
        yield f"{prefix}-{os.getpid()}-{number}"


class Holder:
    """A gate, and the permits of the process that made this: none can be sent to another."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.permits: list[Permit] = []

    def admit(self, **amounts: int) -> bool:
        """Tell whether a permit was granted, and keep it."""
        try:
            self.permits.append(self.gate.admit(**amounts))
        except GateFull:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gate, name)
