"""Build the C core's own test programs without Python, and run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from c.build import ADDRESS, COMPILER, CONTRACTS, OPTIMISED, ROOT, THREAD, build

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no compiler {COMPILER!r}")


def run(binary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary), *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def passes(binary: Path, *arguments: str) -> str:
    """Run a test program that must pass, and return what it printed."""
    result = run(binary, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 failed" in result.stdout
    return result.stdout


def sanitized(program: str, where: Path, flags: tuple[str, ...], core: Path = ROOT / "ext") -> Path:
    try:
        return build(program, where, core=core, flags=flags)
    except subprocess.CalledProcessError as error:
        if "cannot find" in error.stderr:
            pytest.skip(f"{COMPILER} has no library for {flags[-1]}")
        raise


contracts = pytest.mark.parametrize("program", CONTRACTS)


@contracts
def test_every_part_of_the_core_keeps_its_contract(tmp_path: Path, program: str) -> None:
    passes(build(program, tmp_path))


@contracts
def test_no_part_of_the_core_breaks_a_rule_of_c(tmp_path: Path, program: str) -> None:
    passes(sanitized(program, tmp_path, ADDRESS))


def test_threads_never_pass_a_limit_between_them(tmp_path: Path) -> None:
    passes(build("test_threads", tmp_path))


def test_threads_have_no_data_race(tmp_path: Path) -> None:
    passes(sanitized("test_threads", tmp_path, THREAD), "20000")


def test_a_damaged_segment_is_refused_or_safe_to_use(tmp_path: Path) -> None:
    passes(sanitized("fuzz_segment", tmp_path, ADDRESS), "20000")


def test_nothing_is_lost_when_killed_at_any_instruction(tmp_path: Path) -> None:
    print(passes(build("test_single_step", tmp_path)))


def broken(where: Path, file: str, old: str, new: str, times: int = 1) -> Path:
    """Return a copy of the core with something replaced in one file."""
    core = where / "core"
    shutil.copytree(ROOT / "ext", core, ignore=shutil.ignore_patterns("_core.c"))
    text = (core / file).read_text()
    assert text.count(old) == times
    (core / file).write_text(text.replace(old, new))
    return core


NOTED = "cap_note_peak(mine, approximate_proven_total(cap, counters))"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(cap) == admissions ?", "(cap) >= admissions ?"),
        (NOTED, "(void)cap, (void)counters, cap_note_peak(mine, 2)"),
        (NOTED, "(void)cap, (void)counters, (void)mine"),
    ],
    ids=["proven by nothing", "noted as first found", "not noted"],
)
def test_the_approximate_test_finds_a_wrong_peak(tmp_path: Path, old: str, new: str) -> None:
    core = broken(tmp_path, "approximate.h", old, new)
    assert run(build("test_approximate", tmp_path, core=core)).returncode == 1


def test_the_single_step_test_finds_the_leaks_of_a_core_without_help(tmp_path: Path) -> None:
    core = broken(tmp_path, "cap.c", "help(cap, slot, w);\n", "(void)help;\n", 2)
    result = run(build("test_single_step", tmp_path, core=core), "short")
    assert result.returncode == 1
    assert "killed at instruction" in result.stderr


def test_it_finds_the_sleepers_of_a_core_that_does_not_wake_when_it_reclaims(tmp_path: Path) -> None:
    core = broken(tmp_path, "gate.c", "    wait_wake(shared);\n", "")
    result = run(build("test_single_step", tmp_path, core=core), "sleep")
    assert result.returncode == 1
    assert "of release to a sleeper" in result.stderr


ANNOUNCE = """    for (uint32_t cap = 0; cap < gate->segment->shape.caps; cap++)
        if (turns && asks[cap].n)
            turns[cap] = wait_announce(gate->caps[cap].shared);
"""
TRY = "    return try_all(gate, asks, refused_by);\n"
LATE_TRY = (
    f"    enum cap_result result = try_all(gate, asks, refused_by);\n{ANNOUNCE}    return result;\n"
)
WAKING = "release);\n#if WAIT_FUTEX\n"
LATE = {
    "announce": ("gate.c", f"{ANNOUNCE}{TRY}", LATE_TRY),
    "turn": ("wait.c", "    return seen;\n", "    seen = atomic_load(&cap->turn);\n    return seen;\n"),
    "clear": ("wait.c", WAKING, WAKING.replace("\n", "\n    atomic_store(&cap->waiters, 0);\n", 1)),
}


@pytest.mark.parametrize("step", LATE)
def test_it_finds_the_instruction_at_which_a_step_too_late_loses_a_wake_up(
    tmp_path: Path, step: str
) -> None:
    core = broken(tmp_path, *LATE[step])
    result = run(build("test_single_step", tmp_path, core=core), "meet")
    assert result.returncode == 1
    assert "was met" in result.stderr


POLLING = ("-O2", "-DWAIT_POLLS")
"""As where the kernel has no futex."""


@pytest.mark.parametrize("flags", [OPTIMISED, POLLING], ids=["futex", "polling"])
def test_nobody_oversleeps(tmp_path: Path, flags: tuple[str, ...]) -> None:
    passes(build("test_wait", tmp_path, flags=flags), "20000" if flags == OPTIMISED else "4000")


@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["address", "thread"])
def test_sleepers_and_wakers_break_no_rule_of_c(tmp_path: Path, flags: tuple[str, ...]) -> None:
    passes(sanitized("test_wait", tmp_path, flags), "3000")


ADDITION = "    atomic_fetch_add_explicit(&cap->state, 0, memory_order_acq_rel);\n"
UNORDERED = {
    "announce": (f"{ADDITION}    return seen;\n", "    return seen;\n"),
    "change": (f"{ADDITION}    wait_notify(cap);\n", "    wait_notify(cap);\n"),
    "turn": ("(&cap->turn, 1, memory_order_release)", "(&cap->turn, 1, memory_order_relaxed)"),
    "seen": ("(&cap->turn, memory_order_acquire)", "(&cap->turn, memory_order_relaxed)"),
}


@pytest.mark.parametrize("access", UNORDERED)
def test_no_access_that_orders_a_waiter_and_a_waker_can_be_spared(tmp_path: Path, access: str) -> None:
    """Most processors would hide it."""
    core = broken(tmp_path, "wait.c", *UNORDERED[access])
    result = run(sanitized("test_wait", tmp_path, THREAD, core), "100")
    assert result.returncode != 0
    assert "data race" in result.stderr
