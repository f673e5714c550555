"""The page of operations: its commands, metrics, documents and exit codes are those there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gatecount import Gate
from gatecount.cli.group import main
from integrations.scraping import LIMITS, scrape

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def words(text: str) -> set[str]:
    """Return what stands in backquotes."""
    return set(re.findall(r"`([\w.-]+)`", text))


def keys(document: object) -> set[str]:
    """Return every key of a document that is not a cap's name."""
    if isinstance(document, dict):
        inner = set().union(*map(keys, document.values())) if document else set()
        return {key for key in document if key not in LIMITS} | inner
    return set().union(*map(keys, document)) if isinstance(document, list) else set()


def test_the_metrics_on_the_page_are_those_that_are_exported(page: str, gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS) as gate:
        gate.claim()
        exported = scrape(gate_name, per_slot=True).names
    rows = [line for line in section(page, "Metrics").splitlines() if line.startswith("| `gatecount")]
    assert {name for row in rows for name in words(row.split("|")[1])} == exported
    alerts = re.findall(r"^\w*\(?(gatecount_\w+).*[<>=]", section(page, "Metrics"), re.MULTILINE)
    assert len(alerts) == 4
    assert set(alerts) <= exported


def test_every_command_on_the_page_is_one(page: str) -> None:
    known = set(main.list_commands(click.Context(main)))
    used = set(re.findall(r"(?:\$ |`|-- )gatecount ([a-z-]+)", page))
    assert used <= known
    assert {"list", "show", "top", "set-limit", "reclaim", "remove"} <= used


@pytest.mark.parametrize(
    ("row", "arguments"),
    [
        ("show NAME", ["show", "{}"]),
        ("top [NAME]", ["top", "{}"]),
        ("list", ["list"]),
        ("set-limit NAME CAP N", ["set-limit", "{}", "requests", "7"]),
        ("reclaim NAME", ["reclaim", "{}"]),
        ("remove NAME", ["remove", "{}", "--force"]),
    ],
)
def test_the_documents_have_the_keys_that_are_on_the_page(
    page: str, gate_name: str, row: str, arguments: list[str]
) -> None:
    cells = re.search(rf"^\| `{re.escape(row)}` \| (.*) \|$", section(page, "For scripts"), re.MULTILINE)
    assert cells is not None
    with Gate.create(gate_name, limits=LIMITS) as gate:
        gate.claim()
        command = [argument.format(gate_name) for argument in arguments]
        told = CliRunner().invoke(main, [*command, "--json"])
    document = json.loads(told.stdout)
    # What a gate is made of is in the row of show.
    if row == "list":
        document["gates"] = [one | {"statistics": None} for one in document["gates"]]
    if row == "top [NAME]":
        document["gates"] = [None for _one in document["gates"]]
    documented = words(cells[1]) - {"ok", "denied", "invalid"}
    assert keys(document) == documented


def test_the_exit_codes_on_the_page_are_those_of_the_help(page: str) -> None:
    documented = set(re.findall(r"^\| (\d+) \|", section(page, "For scripts"), re.MULTILINE))
    in_help: set[str] = set()
    for name in ("list", "show", "top", "set-limit", "reclaim", "remove"):
        text = CliRunner().invoke(main, [name, "--help"]).output.partition("Exit codes:")[2]
        in_help |= set(re.findall(r"^ +(\d+)  ", text, re.MULTILINE))
    assert documented == in_help


def test_the_programs_on_the_page_compile_and_import_what_there_is(page: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 4
    for program in programs:
        compile(program, str(PAGE), "exec")
        for line in program.splitlines():
            if line.startswith("from "):
                exec(line, {})
