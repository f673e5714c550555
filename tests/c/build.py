"""Build the C core's own test programs, with whatever compiler and flags a check asks for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("cap", "gate", "owner", "segment", "wait")
CONTRACTS = ("test_core", "test_approximate")
"""The test programs of what the core promises without threads."""
COMPILER = os.environ.get("CC", "cc")
OPTIMISED = ("-O2",)
ADDRESS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-g", "-fsanitize=thread")


def build(
    program: str,
    where: Path,
    *,
    core: Path = ROOT / "ext",
    compiler: str = COMPILER,
    flags: tuple[str, ...] = OPTIMISED,
) -> Path:
    """Compile a test program against a copy of the core, warnings being errors; return the binary.

    Raises CalledProcessError, with what the compiler said in its stderr.
    """
    binary = where / f"{program}-{compiler}-{abs(hash(flags))}"
    files = [ROOT / "tests" / "c" / f"{program}.c", *(core / f"{name}.c" for name in SOURCES)]
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{core}", "-pthread"]
    command = [compiler, *strict, *flags, *map(str, files), "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return binary
