"""What does admission cost a request over HTTP, and how much of it is gatecount?

Three `gatecount serve` stand side by side for the whole run, alike but for `--admission`, each with two
servers in front of an engine that answers at once; the limit is out of reach, so that nothing is
refused and every request walks the whole path. `hey` loads them in turn, for a second each, and in
every round it loads the one without shared admission twice: what those two runs differ by is the
noise, measured as everything else is. The median over all rounds counts.

`bench_reserve_to_release` measures the same path without HTTP, in one process: from before the first
test of admission to after the last release, with all that the host does in between, but the engine.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest

from benchmarks.measure import Benchmark, Contender, Stage, turns_of
from gatecount import AdmissionCounters, SharedAdmissionStats
from gatecount.frontend.admission import Admission
from gatecount.frontend.requests import RequestTable

RATE = "requests per second over HTTP"
TIME, TAIL = "a request over HTTP", "99th percentile of a request over HTTP"
PATH = "admission and table, per request"

MODES = ("off", "approximate", "hard")
RUNS = ("off", "approximate", "hard", "off again")
SERVERS, CONNECTIONS, OUT_OF_REACH = 2, 16, 100_000
ROUNDS, SECONDS = 9, 1.0
START_DEADLINE, STOP_DEADLINE = 60.0, 10.0

HEY = shutil.which("hey")


@dataclass(frozen=True)
class Load:
    """What one run of `hey` saw: wall time per request in µs, and the 99th percentile in ms."""

    per_request: float
    p99: float

    @property
    def per_second(self) -> float:
        return 1e6 / self.per_request


@contextlib.contextmanager
def served(mode: str) -> Iterator[str]:
    """Serve the reference app in one mode, and yield its address."""
    options = {"workers": SERVERS, "limit": OUT_OF_REACH, "mode": mode, "port": 0, "service-time": 0}
    command = [sys.executable, "-m", "gatecount.cli", "serve"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    process = subprocess.Popen([*command, "--accept", "least-loaded"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, f"not a line that says where it serves: {line!r}"
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=STOP_DEADLINE)


def load(address: str) -> Load:
    """Load a server for SECONDS."""
    body = json.dumps({"model": "reference", "prompt": "one two three", "max_tokens": 1})
    command = [HEY or "", "-z", f"{SECONDS}s", "-c", str(CONNECTIONS), "-o", "csv", "-m", "POST"]
    command += ["-T", "application/json", "-d", body, f"{address}/v1/completions"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    elapsed = time.perf_counter() - begin
    answers = list(csv.DictReader(io.StringIO(done.stdout)))
    assert answers, done.stderr
    failed = [answer for answer in answers if answer["status-code"] != "200"]
    assert not failed, f"{len(failed)} of {len(answers)} were not answered 200: {failed[0]}"
    times = [float(answer["response-time"]) for answer in answers]
    return Load(min(elapsed, SECONDS) / len(answers) * 1e6, statistics.quantiles(times, n=100)[98] * 1e3)


def measured() -> dict[str, list[Load]]:
    """Load all of them in turn, in an order that changes with each round."""
    loads: dict[str, list[Load]] = {run: [] for run in RUNS}
    with ExitStack() as stack:
        addresses = {mode: stack.enter_context(served(mode)) for mode in MODES}
        for address in addresses.values():
            load(address)  # warms up
        for turn in range(ROUNDS):
            for run in (*RUNS[turn % len(RUNS) :], *RUNS[: turn % len(RUNS)]):
                loads[run].append(load(addresses[run.removesuffix(" again")]))
    return loads


def figures(loads: dict[str, list[Load]], value: str, unit: str) -> list[dict[str, Any]]:
    """Compare the medians of one value; the goal is not to differ by more than two runs of off do."""
    values = {run: [getattr(one, value) for one in of_run] for run, of_run in loads.items()}
    pairs = zip(values["off"], values["off again"], strict=True)
    noise = statistics.median(abs(one - other) / min(one, other) for one, other in pairs)
    off = statistics.median(values["off"] + values["off again"])
    found = [{"contender": "off", "unit": unit, "value": off, "against": {}}]
    for run in MODES[1:]:
        median = statistics.median(values[run])
        goal = {"off": 1 + noise if run == "hard" else None}
        found.append({"contender": run, "unit": unit, "value": median, "against": goal})
    label = f"two runs of off differ by {noise * 100:.1f} % (the noise): off + that"
    found.append(
        {"contender": label, "unit": unit, "value": off * (1 + noise), "against": {"off": None}}
    )
    return found


def rates(loads: dict[str, list[Load]]) -> list[dict[str, Any]]:
    """Return the requests per second: not judged, for the time per request is."""
    return [
        {
            "question": RATE,
            "contender": run,
            "unit": "/s",
            "value": statistics.median(one.per_second for one in of_run),
            "against": {} if run == "off" else {"off": None},
        }
        for run, of_run in loads.items()
    ]


def bench_http(benchmark: Benchmark) -> None:
    if HEY is None:
        pytest.skip("no hey: apt-get install hey")
    benchmark.group = TIME
    loads = benchmark.pedantic(measured, rounds=1)
    tails = [{**made, "question": TAIL} for made in figures(loads, "p99", "ms")]
    benchmark.extra_info["figures"] = rates(loads) + figures(loads, "per_request", "µs") + tails


def admission(kind: str) -> tuple[Admission, RequestTable]:
    """Return a server's admission over one kind of counters, the first of two."""
    buffers: dict[str, Any] = {
        "hard": lambda: AdmissionCounters(SERVERS, OUT_OF_REACH, OUT_OF_REACH),
        "approximate": lambda: RawArray("q", SharedAdmissionStats.num_counters(SERVERS)),
    }
    config: dict[str, Any] = {"client_count": SERVERS, "client_index": 0}
    if kind in buffers:
        config["mp_admission_counters"] = buffers[kind]()
    caps = {"max_num_queued_reqs": OUT_OF_REACH, "max_num_queued_tokens": OUT_OF_REACH}
    made = Admission(config, **caps)
    return made, RequestTable(made)


# The calls that a completion makes, in its order: two tests, the table, the end of prefill, the end.
REQUEST = """\
a, t = o
a.check_admission(1, "r")
s = t.add_request("r", 1, 3)[0]
t.prefilled(s)
t.finish_request(s)"""

CONTENDERS = [
    Contender("off: this process alone", REQUEST, lambda stack: admission("off")),
    Contender(
        "approximate", REQUEST, lambda stack: admission("approximate"), {"off: this process alone": None}
    ),
    Contender("hard", REQUEST, lambda stack: admission("hard"), {"off: this process alone": 1.5}),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(PATH, CONTENDERS) as stage:
        yield stage


@turns_of(CONTENDERS)
def bench_reserve_to_release(benchmark: Benchmark, stage: Stage, name: str, turn: int) -> None:
    stage.run(benchmark, name)
    benchmark.extra_info["loop"] = None
