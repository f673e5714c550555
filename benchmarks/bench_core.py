"""What does the hard cap cost in C, how does it grow with the slots, how large is a segment?

`bench_core.c` is compiled together with the package's own cap.c and times all variants in turns, in
rounds of some ten microseconds; the least of all rounds counts. Where valgrind is installed, the
instructions of one reserve are counted too: that figure is the same on every run, however busy the
machine is.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import native
from benchmarks.measure import TURNS, Benchmark

TIME, COUNT, SIZE = "pair in C", "instructions of a reserve in C", "size of a segment"
ROUNDS, PAIRS = 300, 2_000
COUNTED = 2_000

NAMES = {
    "cap": "cap_reserve + cap_release",
    "cap_1023": "cap_reserve + cap_release, 1,023 slots",
    "compare_and_swap": "plain compare-and-swap pair",
    "fetch_add": "fetch_add + fetch_sub",
}
AGAINST: dict[str, dict[str, float | None]] = {
    "cap": {NAMES["compare_and_swap"]: 1.3, NAMES["fetch_add"]: None},
    "cap_1023": {NAMES["cap"]: 1.1},
}
SEGMENTS = ((1, 1), (4, 1), (16, 2), (1023, 1), (1023, 32))


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if native.COMPILER is None:
        pytest.skip("no C compiler")
    return native.compile_core_benchmark(tmp_path_factory.mktemp("core"))


def figure(
    contender: str, unit: str, value: float, against: Mapping[str, float | None]
) -> dict[str, Any]:
    return {"contender": contender, "unit": unit, "value": value, "against": dict(against)}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.mark.parametrize("turn", range(TURNS))
def bench_pair_in_c(benchmark: Benchmark, program: Path, turn: int) -> None:
    command = [str(program), "time", str(ROUNDS), str(PAIRS)]
    benchmark.group = TIME
    rounds = json.loads(benchmark.pedantic(run, args=(command,), rounds=1).stdout)
    benchmark.extra_info["figures"] = [
        figure(NAMES[variant], "ns", min(values), AGAINST.get(variant, {}))
        for variant, values in rounds.items()
    ]


def bench_instructions_of_a_reserve(benchmark: Benchmark, program: Path) -> None:
    if native.VALGRIND is None:
        pytest.skip("no valgrind")

    def instructions(slots: int) -> float:
        """Count those of N and of 2 N reserves: the difference is free of start-up and set-up."""
        once, twice = (_collected(program, slots, n) for n in (COUNTED, 2 * COUNTED))
        return (twice - once) / COUNTED

    benchmark.group = COUNT
    counted = benchmark.pedantic(lambda: [instructions(1), instructions(1023)], rounds=1)
    one = "cap_reserve, 1 slot"
    benchmark.extra_info["figures"] = [
        figure(one, "instructions", counted[0], {}),
        figure("cap_reserve, 1,023 slots", "instructions", counted[1], {one: 1.1}),
    ]


def _collected(program: Path, slots: int, n: int) -> int:
    command = [native.VALGRIND or "", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = run([*command, str(program), "count", str(slots), str(n)])
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


def bench_size_of_a_segment(benchmark: Benchmark, program: Path) -> None:
    def sizes() -> list[int]:
        return [
            int(run([str(program), "size", str(slots), str(caps)]).stdout) for slots, caps in SEGMENTS
        ]

    benchmark.group = SIZE
    figures = benchmark.extra_info["figures"] = []
    for (slots, caps), size in zip(SEGMENTS, benchmark.pedantic(sizes, rounds=1), strict=True):
        label = f"{slots:,} slot{'s' if slots > 1 else ''}, {caps} cap{'s' if caps > 1 else ''}"
        allowed = f"200 B x {slots * caps:,} + 4 KiB"
        figures.append(figure(allowed, "B", 200 * slots * caps + 4096, {}))
        figures.append(figure(label, "B", size, {allowed: 1.0}))
