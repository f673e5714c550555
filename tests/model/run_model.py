#!/usr/bin/env python3
"""Check the Spin models of the cap and of waiting: search each variant, compare with what is expected.

    python tests/model/run_model.py --set fast      # seconds each; part of the test suite
    python tests/model/run_model.py --set full      # exhaustive for 2 slots x 2 operations; minutes
    python tests/model/run_model.py --set large     # larger bounds, cut when time or memory is up
    python tests/model/run_model.py --only two-slots --trail

Exit code 0: all as expected. 1: something was not. 2: wrong usage. 3: a tool is missing, and how to
get it was said.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CAP = Path(__file__).resolve().with_name("cap.pml")
WAIT = CAP.with_name("wait.pml")
MISSING_TOOLS = 3
HOW_TO_GET = {
    "spin": "Debian and Ubuntu: apt-get install spin; else https://spinroot.com",
    "cc": "Debian and Ubuntu: apt-get install gcc libc6-dev",
}

HOLDS = "holds"  # every state within the bounds was visited, and no property was broken in any
CUT = "cut short"  # not every state was visited: nothing is proved


@dataclass(frozen=True)
class Variant:
    """One search: the model with these macros."""

    name: str
    bounds: str
    """Macros of the model: "OPS=2 KILLS=1 WRAP"."""
    breaks: str = ""
    """The property that must be found broken; none if the model must hold."""
    mutation: str = ""
    """The guard taken away: a macro MUTATE_... of the model."""
    long: bool = False
    """Worth compiling with optimisation, which takes longer than a short search."""
    may_be_cut: bool = False
    model: Path = CAP

    @property
    def macros(self) -> list[str]:
        mutation = [f"MUTATE_{self.mutation}"] if self.mutation else []
        return [f"-D{macro}" for macro in (*self.bounds.split(), *mutation)]

    @property
    def expected(self) -> str:
        if self.breaks:
            return f"breaks {self.breaks}"
        return f"{HOLDS} or {CUT}" if self.may_be_cut else HOLDS


@dataclass(frozen=True)
class Outcome:
    """What a search found: HOLDS, CUT with a reason, "breaks ..." with a property, "no verdict"."""

    name: str
    bounds: str
    mutation: str
    expected: str
    result: str
    states: int
    cpu_seconds: float
    """To build and to search: unlike the time on the clock, the same on a busy machine."""
    ok: bool


ONE_DEATH = "OPS=1 OPS_LATER=0 KILLS=1 RECLAIMER_KILLS=0"
NEW_OWNER = "OPS=1 KILLS=2 RECLAIMER_KILLS=0"
TWO_RECLAIMERS = "RECLAIMERS=2 OPS=1 KILLS=1 RECLAIMER_KILLS=0"
LIMIT_MOVES = "SET_LIMIT=1 OPS=2 KILLS=0 RECLAIMER_KILLS=0"
TWO_RIVALS = f"SLOTS=3 LIMIT=3 {ONE_DEATH.replace('OPS=1', 'OPS=2 OPS_OTHERS=1', 1)} NO_RELEASE NO_AUDIT"
WRAPS = f"WRAP TAG_BITS=1 {ONE_DEATH.replace('OPS=1', 'OPS=3 OPS_OTHERS=1', 1)}"
WRAPS_HARMLESSLY = f"{WRAPS} LIMIT=3 NO_RELEASE"

LOST = "nothing_lost"
DRIFT = "no_drift"
UNDERCOUNT = "never_too_few_counted"

MODELS = (
    Variant("two-slots", "OPS=1 KILLS=2 RECLAIMER_KILLS=1"),
    Variant("two-operations", "OPS=2 OPS_LATER=1 KILLS=1 RECLAIMER_KILLS=0"),
    Variant("three-slots", f"SLOTS=3 {ONE_DEATH}"),
    Variant("audit-any-time", "AUDITS=1 OPS=1 KILLS=1 RECLAIMER_KILLS=0"),
    Variant("one-death", ONE_DEATH),
    Variant("limit-of-1", f"LIMIT=1 {ONE_DEATH}"),
    Variant("new-owner", NEW_OWNER),
    Variant("two-reclaimers", TWO_RECLAIMERS),
    Variant("limit-moves", LIMIT_MOVES),
    Variant("two-rivals", TWO_RIVALS),
    Variant("harmless-wrap", WRAPS_HARMLESSLY),
)
# Each fails in the bounds of a model above.
MUTATIONS = (
    Variant("no-help", ONE_DEATH, LOST, "NO_HELP"),
    Variant("no-recheck", WRAPS_HARMLESSLY, LOST, "NO_RECHECK"),
    Variant("plain-helped", TWO_RIVALS, LOST, "PLAIN_HELPED"),
    Variant("recovery-order", ONE_DEATH, LOST, "RECOVERY_ORDER"),
    Variant("next-after-swap", ONE_DEATH, LOST, "NEXT_AFTER_SWAP"),
    Variant("held-after-idle", ONE_DEATH, LOST, "HELD_AFTER_IDLE"),
    Variant("no-retest", f"LIMIT=1 {ONE_DEATH}", "never_over", "NO_RETEST"),
    Variant("no-reread", LIMIT_MOVES, "never_in_vain", "NO_REREAD"),
    Variant("first-number-0", ONE_DEATH, LOST, "FIRST_NUMBER"),
    Variant("op-reset", NEW_OWNER, LOST, "OP_RESET"),
    Variant("right-by-store", TWO_RECLAIMERS, LOST, "RIGHT_BY_STORE"),
    Variant("same-identity", TWO_RECLAIMERS, LOST, "SAME_IDENTITY"),
    Variant("audit-pending", ONE_DEATH, DRIFT, "AUDIT_PENDING"),
    Variant("audit-held-first", ONE_DEATH, DRIFT, "AUDIT_HELD_FIRST"),
)
# Not a guard: that next is written before op is pending; before the swap is enough.
NEEDLESS = (Variant("next-after-pending", ONE_DEATH, mutation="NEXT_AFTER_PENDING"),)
# What the algorithm does not promise once a tag has wrapped, and that the model can tell.
LIMITS = (
    Variant("wrap-noticed", WRAPS.removeprefix("WRAP "), "no_wrap"),
    Variant("wrap", f"{WRAPS} NO_AUDIT", LOST),
    Variant("wrap-release", f"{WRAPS} DRIFT NO_AUDIT", UNDERCOUNT),
    Variant("wrap-audit", f"{WRAPS} DRIFT", UNDERCOUNT),
    Variant("wrap-reserve", f"{WRAPS_HARMLESSLY.replace('_OTHERS=1', '_OTHERS=2')} DRIFT"),
)
THREE_WAIT = "ROUNDS=1 KILLS=1"
LIMIT_RISES = "LIMIT=0 RAISES WAITERS=2 ROUNDS=1 KILLS=1"
STRANDED = "none_stranded"
WAITING = (
    Variant("three-wait", THREE_WAIT, model=WAIT),
    Variant("two-wait-twice", "WAITERS=2 KILLS=1 RECLAIMER_KILLS=1", model=WAIT),
    Variant("wait-for-two", "LIMIT=2 ROUNDS=1 KILLS=1", model=WAIT),
    Variant("limit-rises", LIMIT_RISES, model=WAIT),
)
WAITING_MUTATIONS = (
    Variant("flag-late", THREE_WAIT, STRANDED, "FLAG_LATE", model=WAIT),
    Variant("turn-late", THREE_WAIT, STRANDED, "TURN_LATE", model=WAIT),
    Variant("wake-early", THREE_WAIT, STRANDED, "WAKE_EARLY", model=WAIT),
    Variant("look-early", THREE_WAIT, STRANDED, "LOOK_EARLY", model=WAIT),
    Variant("clear-late", THREE_WAIT, STRANDED, "CLEAR_LATE", model=WAIT),
    Variant("no-reclaim-wake", THREE_WAIT, STRANDED, "NO_RECLAIM_WAKE", model=WAIT),
    Variant("silent-limit", LIMIT_RISES, STRANDED, "SILENT_LIMIT", model=WAIT),
)
FAST = (*MODELS, *MUTATIONS, *NEEDLESS, *LIMITS, *WAITING, *WAITING_MUTATIONS)
FULL = (
    Variant("2x2", "OPS=2 KILLS=2 RECLAIMER_KILLS=1", long=True),
    Variant("2x2-units", "OPS=2 OPS_LATER=1 MAX_UNITS=2 KILLS=2 RECLAIMER_KILLS=1", long=True),
    Variant("2x2-limit", "OPS=2 SET_LIMIT=2 KILLS=1 RECLAIMER_KILLS=0", long=True),
    Variant("2x1-audit", "OPS=1 AUDITS=1 KILLS=2 RECLAIMER_KILLS=0", long=True),
    Variant("2x1-reclaimers", "OPS=1 RECLAIMERS=2 KILLS=2 RECLAIMER_KILLS=1", long=True),
    Variant("3x1", "SLOTS=3 OPS=1 OPS_LATER=0 KILLS=2 RECLAIMER_KILLS=1", long=True),
    Variant("three-wait-twice", "KILLS=1", long=True, model=WAIT),
    Variant("three-wait-deaths", "ROUNDS=1 KILLS=2 RECLAIMER_KILLS=1", long=True, model=WAIT),
)
# Guards that these bounds cannot tell from none: it takes a wrap, a third slot, a moving limit.
UNSEEN = tuple(
    Variant(f"2x2-{variant.name}", "OPS=2 KILLS=1", mutation=variant.mutation, long=True)
    for variant in (*MUTATIONS, *NEEDLESS)
    if variant.name in ("no-recheck", "plain-helped", "no-reread", "next-after-pending")
)
LARGER = tuple(
    Variant(name, bounds, long=True, may_be_cut=True)
    for name, bounds in (
        ("2x2-units-all", "OPS=2 MAX_UNITS=2 KILLS=2 RECLAIMER_KILLS=1"),
        ("2x2-limit-all", "OPS=2 SET_LIMIT=2 KILLS=2 RECLAIMER_KILLS=1"),
        ("2x2-audit", "OPS=2 AUDITS=1 KILLS=1 RECLAIMER_KILLS=0"),
        ("2x2-reclaimers", "OPS=2 OPS_LATER=1 RECLAIMERS=2 KILLS=2 RECLAIMER_KILLS=1"),
        ("2x3", "OPS=3 OPS_LATER=1 KILLS=2 RECLAIMER_KILLS=1"),
        ("3x1-all", "SLOTS=3 OPS=1 KILLS=2 RECLAIMER_KILLS=1"),
        ("3x2", "SLOTS=3 OPS=2 OPS_LATER=1 KILLS=1 RECLAIMER_KILLS=0"),
        ("3x2-all", "SLOTS=3 OPS=2 KILLS=2 RECLAIMER_KILLS=1"),
    )
)
LARGE = (*UNSEEN, *LARGER)
SETS = {"fast": FAST, "full": (*FAST, *FULL), "large": LARGE}
ALL = {variant.name: variant for variant in (*FAST, *FULL, *LARGE)}


def cpu_seconds() -> float:
    """Return the processor time of all commands that were run so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def missing_tools() -> list[str]:
    """Return a line for each tool that is not installed, saying how to get it."""
    return [
        f"{tool} is needed to check the model and was not found. {how}"
        for tool, how in HOW_TO_GET.items()
        if shutil.which(tool) is None
    ]


def classify(output: str) -> str:
    """Tell from what the search printed what it found.

    Never HOLDS unless Spin says that it saw all: a search can end early without an error.
    """
    violated = re.search(r"pan:\d+: (.+) \(at depth", output)
    if violated:
        text = violated[1]
        named = re.fullmatch(r"assertion violated (\w+)", text)
        return f"breaks {named[1]}" if named else f"breaks: {text}"
    for sign, reason in (
        ("max search depth too small", "depth"),
        ("out of memory", "memory"),
        ("MEMLIM", "memory"),
        ("hashtable full", "memory"),
        ("Interrupted", "time"),
        ("Search not completed", "unknown reason"),
    ):
        if sign in output:
            return f"{CUT} ({reason})"
    return HOLDS if re.search(r"errors: 0\n", output) else "no verdict"


def states_in(output: str) -> int:
    """Return how many different states the search visited."""
    stored = re.findall(r"^ *([0-9.e+]+) states, stored", output, re.MULTILINE)
    return int(float(stored[-1])) if stored else 0


def judge(variant: Variant, result: str) -> bool:
    """Tell whether a result is what the variant is there to show."""
    if variant.may_be_cut and result.startswith(CUT):
        return True
    return result == variant.expected or (variant.may_be_cut and result == HOLDS)


def build(variant: Variant, directory: Path, megabytes: int) -> None:
    """Write the verifier of a variant, and compile it.

    Without partial-order reduction, which gains nothing here: nearly every step touches what others
    read. Long searches store their states in parts (COLLAPSE): slower, smaller, and still exact.
    """
    spin = ["spin", "-a", *variant.macros, str(variant.model)]
    flags = ["-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={megabytes}"]
    flags += ["-O2", "-DCOLLAPSE"] if variant.long else ["-O0"]
    for command in (spin, ["cc", "-w", *flags, "-o", "pan", "pan.c"]):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not (directory / "pan.c").exists():
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def search(directory: Path, options: Sequence[str], seconds: float | None) -> str:
    """Run the verifier and return what it printed; after so many seconds it is asked to stop."""
    with subprocess.Popen(
        ["./pan", "-n", *options],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pan:
        try:
            return pan.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            pan.send_signal(signal.SIGINT)
            return pan.communicate()[0] + "\nInterrupted\n"
        except BaseException:
            pan.kill()
            raise


def replay(variant: Variant, directory: Path) -> str:
    """Return each step on the way to the error that was found."""
    (directory / variant.model.name).write_text(variant.model.read_text())
    command = ["spin", "-t", "-p", "-g", *variant.macros, variant.model.name]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.stdout


def check(
    variant: Variant,
    *,
    seconds: float | None = None,
    megabytes: int = 7000,
    depth: int = 10_000,
    trail: bool = False,
) -> Outcome:
    """Build and search one variant.

    ``depth`` is the longest run of steps that is followed; a search that needs more is cut short.
    """
    begin = cpu_seconds()
    options = [f"-m{depth}", "-w26" if variant.long else "-w20"]
    with tempfile.TemporaryDirectory(prefix="gatecount-model-") as name:
        directory = Path(name)
        build(variant, directory, megabytes)
        output = search(directory, options, seconds)
        if trail and list(directory.glob("*.trail")):
            print(replay(variant, directory))
    result = classify(output)
    return Outcome(
        variant.name,
        variant.bounds,
        variant.mutation,
        variant.expected,
        result,
        states_in(output),
        round(cpu_seconds() - begin, 1),
        judge(variant, result),
    )


def row(cells: Iterable[str]) -> str:
    widths = (19, 12, 7, 36, 0)
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", choices=SETS, default="fast", help="which searches (fast)")
    parser.add_argument("--only", metavar="NAME", choices=ALL, help="one search: " + ", ".join(ALL))
    parser.add_argument("--seconds", type=float, help="cut each search after this (large: 600)")
    parser.add_argument("--megabytes", type=int, default=7000, help="memory for one search (7000)")
    parser.add_argument("--trail", action="store_true", help="print the steps to each error found")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here as well")
    options = parser.parse_args(arguments)
    if options.seconds is None and options.set == "large" and options.only is None:
        options.seconds = 600.0
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a set of searches, print a table, and return the exit code."""
    options = parse(arguments)
    missing = missing_tools()
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return MISSING_TOOLS
    variants = (ALL[options.only],) if options.only else SETS[options.set]
    print(row(("search", "states", "CPU s", "expected", "result")))
    outcomes = []
    for variant in variants:
        outcome = check(
            variant,
            seconds=options.seconds,
            megabytes=options.megabytes,
            trail=options.trail,
        )
        outcomes.append(outcome)
        verdict = outcome.result if outcome.ok else f"{outcome.result}  <-- NOT AS EXPECTED"
        states = f"{outcome.states:,}"
        cells = (outcome.name, states, f"{outcome.cpu_seconds:.1f}", outcome.expected, verdict)
        print(row(cells), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    wrong = [outcome.name for outcome in outcomes if not outcome.ok]
    total = sum(outcome.states for outcome in outcomes)
    print(f"{len(outcomes)} searches, {total:,} states, {len(wrong)} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
