"""Run the whole proof and print what was tried: `make verify`.

Each check tells how much it tried and how many failures it found; one that lacks a tool says which, and
how to get it. The exit code is 1 if anything failed, 0 otherwise; with --strict a skipped check counts
as a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from c.build import ADDRESS, CONTRACTS, OPTIMISED, ROOT, THREAD, build

DEADLINE_S = 1200
"""For one check; the whole is meant to take under 25 minutes on 2 cores."""


@dataclass(frozen=True)
class Outcome:
    """What one check did."""

    name: str
    result: str
    """"ok", "FAILED", or "skipped: …" with what is missing."""
    tried: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.result == "FAILED"


class Skipped(Exception):
    """A tool is missing; the message says which and how to get it."""


class Failed(Exception):
    """A check found something; the message is its output."""


Check = Callable[[Path], str]
CHECKS: dict[str, Check] = {}
ALONE: set[str] = set()


def check(name: str, *, alone: bool = False) -> Callable[[Check], Check]:
    """Register a function that gets an empty folder and returns how much it tried.

    alone is for one that needs the whole machine: no other runs beside it.
    """

    def register(function: Check) -> Check:
        CHECKS[name] = function
        if alone:
            ALONE.add(name)
        return function

    return register


def need(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        raise Skipped(f"{tool} is missing: apt-get install {package}")


def run(command: list[str], where: Path = ROOT, **environment: str) -> str:
    """Run a command in a folder and return its output; raise Failed if it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} did not end within {DEADLINE_S} s") from error
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def number(words: str, output: str) -> int:
    """Return the number that stands in an output where `#` stands in these words."""
    found = re.search(re.escape(words).replace(r"\#", r"(\d+)"), output)
    if found is None:
        raise Failed(f"no {words!r} in the output:\n{output[-2000:]}")
    return int(found[1])


def figure(words: str, output: str) -> str:
    """Return that number with its thousands marked."""
    return f"{number(words, output):,}"


def compiled(program: str, where: Path, compiler: str, flags: tuple[str, ...]) -> str:
    try:
        return str(build(program, where, compiler=compiler, flags=flags))
    except subprocess.CalledProcessError as error:
        raise Failed(error.stderr) from error


def contracts(where: Path, compiler: str, flags: tuple[str, ...], *under: str) -> list[str]:
    """Run the test programs of what the core promises without threads; return what they printed."""
    return [run([*under, compiled(program, where, compiler, flags)]) for program in CONTRACTS]


def checks_of(output: str) -> str:
    return f"{figure('# checks', output)} checks"


@check("every instruction: killed there, rivals idle, active, reclaiming")
def every_instruction(where: Path) -> str:
    output = run([compiled("test_single_step", where, "cc", OPTIMISED), "every"])
    kills, steps = figure("killed # victims", output), figure("after # steps", output)
    return f"{kills} kills, {steps} steps"


@check("every instruction: rivals act at one, killed at a later one")
def every_pair_of_instructions(where: Path) -> str:
    output = run([compiled("test_single_step", where, "cc", OPTIMISED), "grid"])
    kills, steps = figure("killed # victims", output), figure("after # steps", output)
    return f"{kills} kills, {steps} steps"


@check("every interleaving: Spin model and its mutations")
def every_interleaving(where: Path) -> str:
    need("spin", "spin")
    report = where / "model.json"
    run([sys.executable, "tests/model/run_model.py", "--set", "full", "--json", str(report)])
    rows = json.loads(report.read_text())
    rows = rows if isinstance(rows, list) else rows["runs"]
    states = sum(int(row["states"] or 0) for row in rows)
    return f"{len(rows)} models, {states:,} states"


def sanitized(where: Path, compiler: str) -> str:
    outputs = [
        *contracts(where, compiler, ADDRESS),
        run([compiled("test_threads", where, compiler, ADDRESS), "100000"]),
        run([compiled("test_wait", where, compiler, ADDRESS), "10000"]),
    ]
    return f"{sum(number('# checks', output) for output in outputs):,} checks"


@check("address and undefined-behaviour sanitizers, gcc")
def address_gcc(where: Path) -> str:
    return sanitized(where, "gcc")


@check("address and undefined-behaviour sanitizers, clang")
def address_clang(where: Path) -> str:
    need("clang", "clang")
    return sanitized(where, "clang")


def raced(where: Path, compiler: str) -> str:
    output = run([compiled("test_threads", where, compiler, THREAD), "300000"])
    waits = run([compiled("test_wait", where, compiler, THREAD), "20000"])
    return f"4 threads x 300,000 operations, twice; {checks_of(output)}; of waiting, {checks_of(waits)}"


@check("thread sanitizer, gcc")
def thread_gcc(where: Path) -> str:
    return raced(where, "gcc")


@check("thread sanitizer, clang")
def thread_clang(where: Path) -> str:
    need("clang", "clang")
    return raced(where, "clang")


@check("sleepers and wakers: nobody oversleeps")
def sleepers(where: Path) -> str:
    output = run([compiled("test_wait", where, "cc", OPTIMISED), "300000"])
    polling = run([compiled("test_wait", where, "cc", (*OPTIMISED, "-DWAIT_POLLS")), "10000"])
    return f"3,600,000 waits; {checks_of(output)}; by polling, {checks_of(polling)}"


@check("valgrind: memory, leaks, descriptors")
def memcheck(where: Path) -> str:
    need("valgrind", "valgrind")
    judge = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full")
    return ", ".join(map(checks_of, contracts(where, "cc", ("-O1", "-g"), *judge)))


@check("damaged segments")
def damaged_segments(where: Path) -> str:
    output = run([compiled("fuzz_segment", where, "cc", ADDRESS), "300000", str(os.getpid())])
    return f"{figure('opened # damaged', output)} mutated segments; " + checks_of(output)


@check("memory order: aarch64 under qemu-user")
def aarch64(where: Path) -> str:
    need("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    need("qemu-aarch64", "qemu-user")
    flags = (*OPTIMISED, "-static")
    outputs = [
        *contracts(where, "aarch64-linux-gnu-gcc", flags, "qemu-aarch64"),
        run(["qemu-aarch64", compiled("test_threads", where, "aarch64-linux-gnu-gcc", flags), "100000"]),
        run(["qemu-aarch64", compiled("test_wait", where, "aarch64-linux-gnu-gcc", flags), "5000"]),
    ]
    return ", ".join(checks_of(output) for output in outputs)


@check("the Python suite under the address sanitizer", alone=True)
def python_under_asan(where: Path) -> str:
    library = run(["gcc", "-print-file-name=libasan.so"]).strip()
    if not Path(library).is_file():
        raise Skipped("libasan is missing: apt-get install libasan8 (gcc's)")
    target = where / "package"
    shutil.copytree(
        ROOT / "src", target / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    )
    for name in ("ext", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / name)
    site = where / "site"
    run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(target)],
        target,
        CFLAGS="-O1 -g -fsanitize=address -fno-omit-frame-pointer",
        LDFLAGS="-fsanitize=address",
    )
    shutil.rmtree(target / "src")  # what is tested is what was built
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "not demo and not bench",
    ]
    output = run(
        [*pytest, "tests/unit", "tests/processes"],
        target,
        LD_PRELOAD=library,
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONPATH=str(site),
        PYTHONMALLOC="malloc",
        GATECOUNT_TEST_SCALE="0.1",
    )
    return f"{figure('# passed', output)} tests"


@check("a twin in plain Python, driven by Hypothesis")
def twin(where: Path) -> str:
    output = run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/twin"],
        HYPOTHESIS_PROFILE="verify",
    )
    return f"{figure('# passed', output)} machines"


@check("soak: processes killed at random", alone=True)
def soak(where: Path) -> str:
    output = run([sys.executable, "tests/soak/soak.py", "--kills", "1000", "--json"])
    figures = json.loads(output[output.index("{") :])
    if figures["violations"]:
        raise Failed(output)
    return f"{figures['kills']:,} kills, {figures['operations']:,} operations"


@check("the host: 80 connections of hey, and 200 starts beside a warm-up", alone=True)
def host(where: Path) -> str:
    need("hey", "hey")
    files = ["tests/host/test_serve_starts.py", "tests/host/test_fork_order.py"]
    output = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", *files],
        GATECOUNT_HEAVY="1",
        GATECOUNT_TEST_STARTS="200",
    )
    return f"{figure('# passed', output)} tests"


def perform(name: str) -> Outcome:
    print(f"… {name}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gatecount-verify-") as folder:
        try:
            result, tried = "ok", CHECKS[name](Path(folder))
        except Skipped as reason:
            result, tried = f"skipped: {reason}", ""
        except Failed as reason:
            result, tried = "FAILED", ""
            print(f"\n{name}:\n{reason}\n", file=sys.stderr)
    return Outcome(name, result, tried, time.monotonic() - begin)


def table_of(outcomes: list[Outcome]) -> Table:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}"
    table = Table(title=machine, title_justify="left")
    for column in ("what", "tried", "failures"):
        table.add_column(column, overflow="fold")
    table.add_column("s", justify="right")
    for one in outcomes:
        failures = {"ok": "0", "FAILED": "[bold red]FAILED"}.get(one.result, f"[yellow]{one.result}")
        table.add_row(one.name, one.tried, failures, f"{one.seconds:.0f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="run the checks whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the checks and end")
    parser.add_argument("--strict", action="store_true", help="count a skipped check as a failure")
    parser.add_argument("--json", metavar="FILE", help="write the outcomes to a file as well")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="run N checks at a time (%(default)s)"
    )
    chosen = parser.parse_args()
    names = [name for name in CHECKS if (chosen.only or "") in name]
    if chosen.list or not names:
        print("\n".join(CHECKS))
        return 0 if chosen.list else 2
    console = Console(width=None if sys.stdout.isatty() else 140)
    with ThreadPoolExecutor(max(1, chosen.jobs)) as pool:
        outcomes = list(pool.map(perform, [name for name in names if name not in ALONE]))
    outcomes += [perform(name) for name in names if name in ALONE]
    console.print(table_of(outcomes))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([asdict(one) for one in outcomes], indent=2) + "\n")
    bad = [one for one in outcomes if one.failed or (chosen.strict and one.result != "ok")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
