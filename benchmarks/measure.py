"""Time one statement against its rivals, so that the ratios survive a busy machine.

How a figure comes about:

- Every contender of a question runs in the same loop, `for _ in repeat(None, n): <statement>`,
  compiled anew for each, so that none shares another's inline caches. The statement looks its
  methods up on the object each time, as a host does. What the loop itself costs is the contender
  `EMPTY_LOOP`; it is measured like the others and subtracted from them.
- pytest-benchmark times the whole loop; n is chosen so that a round takes about a millisecond,
  shorter than the scheduler's slice.
- The least of all rounds counts: whatever else the machine does can only add time, and by different
  amounts to different code, so medians would tell as much about the neighbours as about us.
- The contenders take turns, and so do the files: turn 0 of all, then turn 1 of all, and so on. Each
  contender's rounds are thus spread over the whole run, and each gets its share of quiet moments.
- The garbage collector is off.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import pytest

TURNS = 9
ROUNDS = 15
ROUND_SECONDS = 0.001

EMPTY_LOOP = "empty loop"

Loop = Callable[[int, Any], int]
T = TypeVar("T")


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture `benchmark`, which has no types of its own."""

    group: str | None
    extra_info: dict[str, Any]

    def pedantic(
        self,
        target: Callable[..., T],
        args: tuple[object, ...] = (),
        *,
        teardown: Callable[..., None] | None = None,
        rounds: int,
        warmup_rounds: int = 0,
    ) -> T: ...


_TEMPLATE = """\
def loop(n, o):
    refused = 0
    for _ in repeat(None, n):
{statement}
    return refused
"""


@dataclass(frozen=True)
class Contender:
    """One statement to time on one target.

    `against` names the contenders that this one is compared with and the ratio that it may reach at
    most (None: shown, not judged). `calls` is how many operations the statement makes. `after`
    undoes n runs, untimed.
    """

    name: str
    statement: str
    make: Callable[[ExitStack], object]
    against: Mapping[str, float | None] = field(default_factory=dict)
    calls: int = 1
    after: Callable[[int, Any], None] | None = None


def empty_loop() -> Contender:
    return Contender(EMPTY_LOOP, "pass", lambda stack: None)


def compile_loop(statement: str, names: Mapping[str, str] = MappingProxyType({})) -> Loop:
    """Compile the loop around a statement that may use `o`, the target, and count up `refused`.

    `names` are further ones that it uses, each with the module to import it from.
    """
    body = "\n".join(" " * 8 + line for line in statement.splitlines())
    namespace: dict[str, Any] = {"repeat": repeat}
    for name, module in names.items():
        namespace[name] = getattr(importlib.import_module(module), name)
    exec(_TEMPLATE.format(statement=body), namespace)
    loop: Loop = namespace["loop"]
    return loop


class Stage:
    """The targets and loops of one file: made on first use, kept for all turns, then closed."""

    def __init__(self, question: str, contenders: Iterable[Contender]) -> None:
        self._question = question
        self._contenders = {contender.name: contender for contender in contenders}
        self._ready: dict[str, tuple[Loop, object, int]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ready.clear()
        self._stack.close()

    def run(self, benchmark: Benchmark, name: str) -> None:
        """Measure one turn of one contender."""
        contender = self._contenders[name]
        if name not in self._ready:
            loop = compile_loop(contender.statement)
            target = contender.make(self._stack)
            self._ready[name] = loop, target, _calibrate(contender, loop, target)
        loop, target, n = self._ready[name]
        describe(benchmark, self._question, name, n * contender.calls, contender.against)
        benchmark.pedantic(
            loop,
            args=(n, target),
            teardown=contender.after,
            rounds=ROUNDS,
            warmup_rounds=1,
        )


def describe(
    benchmark: Benchmark,
    question: str,
    name: str,
    operations: int,
    against: Mapping[str, float | None],
) -> None:
    """Write into the benchmark's record what the report needs to know about it."""
    benchmark.group = question
    benchmark.extra_info.update(
        contender=name,
        operations=operations,
        against=dict(against),
        loop=EMPTY_LOOP,
    )


def turns_of(contenders: Iterable[Contender]) -> Callable[[Any], Any]:
    """Parametrize by `name` and `turn`: all contenders of a turn come before the next turn."""
    names = [contender.name for contender in contenders]

    def decorate(function: Any) -> Any:
        inner = pytest.mark.parametrize("turn", range(TURNS))(function)
        return pytest.mark.parametrize("name", names)(inner)

    return decorate


def _calibrate(contender: Contender, loop: Loop, target: object) -> int:
    n = 1
    while True:
        best = min(_once(contender, loop, target, n) for _ in range(3))
        if best >= ROUND_SECONDS / 4:
            return max(1, round(n * ROUND_SECONDS / best))
        n *= 4


def _once(contender: Contender, loop: Loop, target: object, n: int) -> float:
    start = time.perf_counter()
    loop(n, target)
    elapsed = time.perf_counter() - start
    if contender.after is not None:
        contender.after(n, target)
    return elapsed
