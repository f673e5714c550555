"""The types that the package declares let right programs through and stop wrong ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from gatecount import _core
from support import DEADLINE

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def strict_mypy(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *(f"--cache-dir={cache}", *map(str, files)),
        ],
        cwd=HERE,
        timeout=DEADLINE,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mypy")
    shared = ROOT / ".mypy_cache"
    return shared if shared.is_dir() else tmp_path_factory.mktemp("mypy")


def test_right_programs_pass_and_every_wrong_use_is_found(cache: Path) -> None:
    """Strict mypy calls an ignore that ignores nothing an error, so each wrong use must be found."""
    done = strict_mypy(HERE / "right_uses.py", HERE / "wrong_uses.py", cache=cache)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_without_its_ignores_each_wrong_use_is_an_error_of_its_own(cache: Path, tmp_path: Path) -> None:
    lines = (HERE / "wrong_uses.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# type: ignore" in line}
    bare = tmp_path / "bare_uses.py"
    bare.write_text("\n".join(line.partition("  # type: ignore")[0] for line in lines))
    done = strict_mypy(bare, cache=cache)
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == wrong


def test_the_stub_names_what_the_compiled_classes_have() -> None:
    stub = ast.parse((ROOT / "src/gatecount/_core.pyi").read_text())
    for declared in stub.body:
        if not isinstance(declared, ast.ClassDef):
            continue
        names = {one.name for one in declared.body if isinstance(one, ast.FunctionDef)}
        names |= {one.target.id for one in declared.body if isinstance(one, ast.AnnAssign)}  # type: ignore[union-attr]
        built = vars(getattr(_core, declared.name))
        assert _public(names) == _public(built), declared.name


def _public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}
