"""The benchmark's table says plainly what was measured, against what, and which goal was missed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("benchmarks.report", None)
    return importlib.import_module("benchmarks.report")


def timed(
    name: str,
    seconds: float,
    *,
    against: dict[str, float | None] | None = None,
    operations: int = 1_000,
    loop: str | None = "empty loop",
) -> dict[str, Any]:
    """Make a record such as pytest-benchmark writes for one turn of one contender."""
    info = {
        "contender": name,
        "operations": operations,
        "against": against or {},
        "loop": loop,
    }
    stats = {"min": seconds, "median": seconds * 2}
    return {"group": "pair", "extra_info": info, "stats": stats}


def run_of(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmarks": benchmarks,
        "datetime": "2026-01-02T03:04:05+00:00",
        "machine_info": {
            "cpu": {"brand_raw": "A CPU", "count": 2},
            "machine": "x86_64",
            "python_implementation": "CPython",
            "python_version": "3.11.7",
            "system": "Linux",
            "release": "6.1",
            "load": 1.25,
        },
    }


LOOP = timed("empty loop", 10e-6)


def test_the_least_of_all_turns_counts_and_the_empty_loop_is_subtracted(report: ModuleType) -> None:
    run = run_of(
        LOOP,
        timed("base", 90e-6),
        timed("ours", 60e-6, against={"base": 1.0}),
        timed("base", 50e-6),
        timed("ours", 30e-6, against={"base": 1.0}),
    )
    [row] = report.rows(report.read(run))
    assert (row.what, row.against) == ("ours", "base")
    assert row.value == pytest.approx(20)
    assert row.against_value == pytest.approx(40)
    assert row.ratio == pytest.approx(0.5)
    assert row.verdict == "yes"


def test_a_missed_goal_says_by_how_much(report: ModuleType) -> None:
    run = run_of(LOOP, timed("base", 60e-6), timed("ours", 66e-6, against={"base": 1.0}))
    [row] = report.rows(report.read(run))
    assert row.missed
    assert row.verdict == "missed by 12 %"
    assert report.summary([row]) == "0 of 1 goals reached, 1 missed."


def test_a_goal_missed_by_less_than_a_percent_is_missed(report: ModuleType) -> None:
    run = run_of(timed("base", 1.0, loop=None), timed("ours", 1.004, against={"base": 1.0}, loop=None))
    [row] = report.rows(report.read(run))
    assert row.verdict == "missed by 0.4 %"


def test_a_ratio_without_a_goal_is_shown_and_not_judged(report: ModuleType) -> None:
    run = run_of(LOOP, timed("base", 20e-6), timed("ours", 90e-6, against={"base": None}))
    table = report.rows(report.read(run))
    assert [row.verdict for row in table] == [""]
    assert report.summary(table) == "No goal was measured."


def test_a_competitor_that_is_not_installed_leaves_no_row(report: ModuleType) -> None:
    run = run_of(LOOP, timed("ours", 90e-6, against={"absent": 1.0}))
    assert report.rows(report.read(run)) == []


def test_operations_divide_the_time(report: ModuleType) -> None:
    base = timed("base", 1e-3, operations=10_000, loop=None)
    ours = timed("ours", 1e-3, operations=20_000, against={"base": 1.0}, loop=None)
    [row] = report.rows(report.read(run_of(base, ours)))
    assert (row.value, row.against_value) == (pytest.approx(50), pytest.approx(100))


def contest(*rounds: tuple[float, float]) -> dict[str, Any]:
    made = [{"value": value, "disturbed": how, "refused": 0.3} for value, how in rounds]
    figure = {"contender": "ours", "unit": "ns", "against": {}, "rounds": made}
    return {"group": "two", "extra_info": {"figures": [figure]}, "stats": {}}


def test_of_a_contest_the_rounds_count_that_were_disturbed_least(report: ModuleType) -> None:
    turns = contest(*[(500.0, 2.0)] * 10), contest(*[(10.0, 1.0)] * 10, (80.0, 0.1), (90.0, 0.0))
    [row] = report.rows(report.read(run_of(*turns, contest((95.0, 0.1)))))
    assert (row.value, row.verdict) == (90, "30 % refused")


def test_a_contest_whose_processes_ran_seldom_at_once_says_so(report: ModuleType) -> None:
    [row] = report.rows(report.read(run_of(contest((90.0, 1.0), (80.0, 0.9)))))
    assert row.verdict == "30 % refused; seldom both at once"


def test_finished_figures_are_compared_like_timed_ones(report: ModuleType) -> None:
    figures = [
        {"contender": "allowed", "unit": "B", "value": 4296, "against": {}},
        {"contender": "1 slot", "unit": "B", "value": 448, "against": {"allowed": 1.0}},
    ]
    run = run_of({"group": "size", "extra_info": {"figures": figures}, "stats": {}})
    [row] = report.rows(report.read(run))
    assert report.cells(row) == ("1 slot", "448 B", "allowed", "4,296 B", "1/9.59", "1.00", "yes")


def test_the_markdown_names_the_machine_and_the_day(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    run, out = tmp_path / "run.json", tmp_path / "table.md"
    run.write_text(
        json.dumps(run_of(LOOP, timed("base", 60e-6), timed("ours", 66e-6, against={"base": 1.0})))
    )
    report.main([str(run), "--markdown", str(out)])
    assert "1 missed" in capsys.readouterr().out
    written = out.read_text().splitlines()
    assert written[0] == ("A CPU, 2 cores, CPython 3.11.7, Linux 6.1, 2026-01-02, load 1.2 at the start")
    assert written[-1] == "| ours | 56.0 ns | base | 50.0 ns | 1.12 | 1.00 | missed by 12 % |"
