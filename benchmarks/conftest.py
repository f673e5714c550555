"""After the run, one table: every ratio, its goal, and whether it was reached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report

TABLE = pytest.StashKey[list[report.Row]]()
QUESTIONS = [
    "bench_pair",
    "bench_counters",
    "bench_contended",
    "bench_handover",
    "bench_core",
    "bench_http",
]
MACHINE = pytest.StashKey[str]()
LOAD_AT_START = os.getloadavg()[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("report", "table of ratios")
    group.addoption("--strict-goals", action="store_true", help="fail the run if a goal is missed")
    group.addoption("--markdown", type=Path, metavar="FILE", help="write the table as Markdown, too")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.benchmark_json is None:
        config.option.benchmark_json = Path(__file__).parent / "last.json"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn by turn, and within a turn, as in the table, by what a reader asks first."""

    def order(item: pytest.Item) -> tuple[int, int]:
        call = getattr(item, "callspec", None)
        turn = call.params.get("turn", 0) if call else 0
        return turn, QUESTIONS.index(item.path.stem)

    items.sort(key=order)


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info.pop("node", None)
    machine_info["load"] = LOAD_AT_START


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    config.stash[TABLE] = report.rows(report.read(output_json))
    config.stash[MACHINE] = report.machine(output_json)


def pytest_sessionfinish(session: pytest.Session) -> None:
    table = session.config.stash.get(TABLE, [])
    strict = session.config.getoption("strict_goals")
    if strict and session.exitstatus == 0 and any(row.missed for row in table):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    table = config.stash.get(TABLE, None)
    if not table:
        return
    title = config.stash[MACHINE]
    width = shutil.get_terminal_size((140, 24)).columns
    colour = terminalreporter.hasmarkup
    terminalreporter.ensure_newline()
    terminalreporter.write_line(report.terminal(table, title, width, colour=colour))
    terminalreporter.write_line(report.summary(table))
    terminalreporter.write_line(f"The run itself: {config.option.benchmark_json}")
    if config.option.markdown:
        config.option.markdown.write_text(report.markdown(table, title))
