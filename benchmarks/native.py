"""Compile what the benchmarks need in C, into a directory that is gone when they end."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORE = HERE.parent / "ext"

_command = shlex.split(os.environ.get("CC", "cc"))
COMPILER: list[str] | None = _command if shutil.which(_command[0]) else None
VALGRIND: str | None = shutil.which("valgrind")

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra"]


def compile_core_benchmark(directory: Path) -> Path:
    """Build bench_core.c with the package's own cap.c and what that needs; needs a compiler."""
    program = directory / "bench_core"
    sources = [HERE / "bench_core.c", CORE / "cap.c", CORE / "wait.c"]
    _compile([f"-I{CORE}", *map(str, sources)], program)
    return program


def empty_type(directory: Path) -> Any:
    """Build and import the type of empty.c; needs a compiler and Python's headers."""
    library = directory / f"empty{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    _compile(["-shared", "-fPIC", f"-I{include}", str(HERE / "empty.c")], library)
    spec = importlib.util.spec_from_file_location("empty", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Empty


def _compile(arguments: list[str], output: Path) -> None:
    assert COMPILER is not None
    command = [*COMPILER, *FLAGS, *arguments, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
