"""One table of ratios from one run: `python -m benchmarks.report RUN.json [--markdown FILE]`.

RUN.json is what pytest-benchmark writes. A benchmark's `extra_info` says what to make of it: the
contender it measured and whom to compare it with (`measure.describe`), or figures ready for the
table.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

JsonObject = Mapping[str, Any]

DISTURBED = 0.5


@dataclass(frozen=True)
class Round:
    """A round of a contest, and how far it was from one: 0 is two processes at it all the time."""

    value: float
    disturbed: float
    refused: float | None


@dataclass
class Figure:
    """What one contender of one question measured, in all turns."""

    question: str
    contender: str
    unit: str
    against: Mapping[str, float | None]
    loop: str | None = None  # the contender to subtract
    values: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def quiet(self) -> list[Round]:
        """The tenth of the rounds that were disturbed least."""
        return sorted(self.rounds, key=lambda r: r.disturbed)[: len(self.rounds) // 10 + 1]

    @property
    def gross(self) -> float:
        if self.rounds:
            return statistics.median(r.value for r in self.quiet)
        return min(self.values)

    @property
    def note(self) -> str:
        if not self.rounds:
            return ""
        shares = [r.refused for r in self.quiet if r.refused is not None]
        notes = [f"{statistics.mean(shares) * 100:.0f} % refused"] if shares else []
        if statistics.median(r.disturbed for r in self.quiet) > DISTURBED:
            notes.append("seldom both at once")
        return "; ".join(notes)


@dataclass(frozen=True)
class Row:
    question: str
    what: str
    value: float
    unit: str
    against: str = ""
    against_value: float | None = None
    goal: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.against_value is None else self.value / self.against_value

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.ratio is not None and self.ratio > self.goal

    @property
    def verdict(self) -> str:
        if self.goal is None or self.ratio is None:
            return self.note
        if not self.missed:
            return "yes"
        over = (self.ratio / self.goal - 1) * 100
        return f"missed by {over:.0f} %" if over >= 1 else f"missed by {over:.1g} %"


def read(document: JsonObject) -> list[Figure]:
    """Collect the figures of a run."""
    found: dict[tuple[str, str], Figure] = {}

    def figure(question: str, name: str, unit: str, info: JsonObject) -> Figure:
        made = Figure(question, name, unit, info["against"])
        return found.setdefault((question, name), made)

    for record in document["benchmarks"]:
        info, question = record["extra_info"], record["group"]
        for made in info.get("figures", ()):
            asked = made.get("question", question)
            one = figure(asked, made["contender"], made["unit"], made)
            if "rounds" in made:
                one.rounds += [Round(**r) for r in made["rounds"]]
            else:
                one.values.append(made["value"])
        if "contender" in info:
            one = figure(question, info["contender"], "ns", info)
            one.loop = info["loop"]
            one.values.append(record["stats"]["min"] * 1e9 / info["operations"])
    return list(found.values())


def rows(figures: Iterable[Figure]) -> list[Row]:
    """Compare each figure with those it names, leaving out what was not measured."""
    found = {(figure.question, figure.contender): figure for figure in figures}

    def net(figure: Figure) -> float:
        """Take off the cost of the empty loop, down to 0.1 ns: noise must not turn a sign."""
        if figure.loop is None or figure.loop == figure.contender:
            return figure.gross
        return max(0.1, figure.gross - found[figure.question, figure.loop].gross)

    questions = list(dict.fromkeys(figure.question for figure in found.values()))
    made = []
    for figure in sorted(found.values(), key=lambda figure: questions.index(figure.question)):
        row = Row(figure.question, figure.contender, net(figure), figure.unit, note=figure.note)
        compared = [
            replace(row, against=name, against_value=net(other), goal=goal)
            for name, goal in figure.against.items()
            if (other := found.get((figure.question, name)))
        ]
        made += compared or ([row] if figure.note else [])
    return made


def machine(document: JsonObject) -> str:
    info = document["machine_info"]
    cpu = info["cpu"]
    parts = [
        cpu.get("brand_raw", info.get("processor") or info["machine"]),
        f"{cpu.get('count', '?')} cores",
        f"{info['python_implementation']} {info['python_version']}",
        f"{info['system']} {info['release']}",
        document["datetime"][:10],
    ]
    if "load" in info:
        parts.append(f"load {info['load']:.1f} at the start")
    return ", ".join(parts)


def summary(table: Iterable[Row]) -> str:
    judged = [row for row in table if row.goal is not None]
    missed = [row for row in judged if row.missed]
    if not judged:
        return "No goal was measured."
    if not missed:
        return f"All {len(judged)} goals reached."
    return f"{len(judged) - len(missed)} of {len(judged)} goals reached, {len(missed)} missed."


def ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"1/{1 / ratio:.3g}" if ratio < 0.2 else f"{ratio:.2f}"


def value_text(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "ns" and value >= 1000:
        value, unit = value / 1000, "µs"
    small = value < 100 and unit in ("ns", "µs", "ms")
    return f"{value:,.1f} {unit}" if small else f"{value:,.0f} {unit}"


HEADINGS = ("what", "measured", "against", "measured", "ratio", "at most", "reached")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        value_text(row.value, row.unit),
        row.against,
        value_text(row.against_value, row.unit),
        ratio_text(row.ratio),
        ratio_text(row.goal),
        row.verdict,
    )


def terminal(table: Iterable[Row], title: str, width: int, *, colour: bool) -> str:
    """Draw the table for a terminal; needs rich."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", header_style="bold")
    for i, heading in enumerate(HEADINGS):
        drawn.add_column(heading, justify="right" if i in (1, 3, 4, 5) else "left")
    question = ""
    for row in table:
        if row.question != question:
            question = row.question
            drawn.add_section()
            drawn.add_row(f"[bold]{question}[/bold]")
        style = None if row.goal is None else "red" if row.missed else "green"
        drawn.add_row(*cells(row), style=style)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=colour, no_color=not colour).print(drawn)
    return out.getvalue()


def markdown(table: Iterable[Row], title: str) -> str:
    """Write the table as Markdown, one per question, under one line that names the machine."""
    lines = [title]
    question = None
    for row in table:
        if row.question != question:
            question = row.question
            lines += ["", f"**{question}**", "", "| " + " | ".join(HEADINGS) + " |"]
            lines.append("| --- | ---: | --- | ---: | ---: | ---: | --- |")
        lines.append("| " + " | ".join(cells(row)) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("run", type=Path, help="JSON of a run, as pytest-benchmark wrote it")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, too")
    chosen = parser.parse_args(arguments)
    document = json.loads(chosen.run.read_text())
    table = rows(read(document))
    if chosen.markdown:
        chosen.markdown.write_text(markdown(table, machine(document)))
    from rich.console import Console

    console = Console()
    print(terminal(table, machine(document), console.width, colour=console.is_terminal))
    print(summary(table))


if __name__ == "__main__":
    main()
