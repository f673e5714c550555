"""Build the C core's own test programs without Python, and run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("cap", "gate", "owner", "segment")
COMPILER = os.environ.get("CC", "cc")
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O2")

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no compiler {COMPILER!r}")


def build(program: str, where: Path, *, core: Path = ROOT / "ext") -> Path:
    """Compile one test program against a copy of the core, with warnings as errors."""
    binary = where / program
    sources = [str(ROOT / "tests" / "c" / f"{program}.c")]
    sources += [str(core / f"{name}.c") for name in SOURCES]
    command = [COMPILER, *STRICT, f"-I{core}", *sources, "-o", str(binary), "-pthread"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return binary


def run(binary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary), *arguments], capture_output=True, text=True, timeout=110, check=False
    )


def test_every_part_of_the_core_keeps_its_contract(tmp_path: Path) -> None:
    result = run(build("test_core", tmp_path))
    assert result.returncode == 0, result.stderr
    assert ", 0 failed" in result.stdout


def test_nothing_is_lost_when_killed_at_any_instruction(tmp_path: Path) -> None:
    result = run(build("test_single_step", tmp_path))
    assert result.returncode == 0, result.stderr
    assert "single step" in result.stdout
    print(result.stdout)


def test_the_single_step_test_finds_the_leaks_of_a_core_without_help(tmp_path: Path) -> None:
    core = tmp_path / "core"
    shutil.copytree(ROOT / "ext", core, ignore=shutil.ignore_patterns("_core.c"))
    text = (core / "cap.c").read_text()
    call = "help(cap, slot, w);\n"
    assert text.count(call) == 2
    (core / "cap.c").write_text(text.replace(call, "(void)help;\n"))
    result = run(build("test_single_step", tmp_path, core=core), "short")
    assert result.returncode == 1
    assert "killed at instruction" in result.stderr
