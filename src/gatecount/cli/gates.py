"""What the commands about gates share: their arguments, their exit codes, and how they fail."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from gatecount.errors import GateNotFound, LayoutMismatch, UnknownCap
from gatecount.gate import Gate
from gatecount.names import check_gate_name
from gatecount.statistics import GateStatistics

if TYPE_CHECKING:
    _Type = click.ParamType[str]
else:
    _Type = click.ParamType  # not generic in every click that will do

EXIT_CODES: Final = """\b
    Exit codes:
      0    done
      1    not done; one line on standard error says why: there is no such gate
           or cap, it is damaged, it is another user's
      2    wrong usage"""

IN_USE: Final = 3
"""The exit code of what was refused because the gate has living owners."""


class GateCommand(click.Command):
    """A command of which no refusal of the system, not even of its output, is a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; what the system refuses becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # nobody reads on: click ends without a word
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from None


class GateName(_Type):
    """A name that a gate can have; whether there is one is another question."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check an argument, or fail as a usage error that says the rule."""
        try:
            return check_gate_name(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


name_argument = click.argument("name", type=GateName(), metavar="NAME")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, in a shape that stays.")


@dataclass(frozen=True)
class DeadOwner:
    """An owner proved dead whose units still count: until a refusal, a claim or a reclaim."""

    slot: int
    pid: int
    held: dict[str, int]


@dataclass(frozen=True)
class Snapshot:
    """A gate as it was read, without a write to it."""

    name: str
    statistics: GateStatistics
    dead: tuple[DeadOwner, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the shape that `--json` prints of a gate."""
        return asdict(self.statistics) | {"dead": [asdict(owner) for owner in self.dead]}


def snapshot(gate: Gate) -> Snapshot:
    """Read a gate, its dead owners too."""
    caps = gate.segment.caps
    statistics = gate.statistics()
    living = {(slot.slot, slot.pid) for slot in statistics.slots}
    dead = tuple(
        DeadOwner(slot, pid, dict(zip(caps, held, strict=True)))
        for slot, pid, alive, _age, held in gate.owners()
        if not alive and (slot, pid) not in living  # it may have died since
    )
    return Snapshot(gate.name or "", statistics, dead)


@contextmanager
def opened(name: str) -> Iterator[Gate]:
    """Open a gate for a command; what can go wrong with it becomes its one line and exit code 1."""
    with explained(name), Gate.open(name) as gate:
        yield gate


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn the errors of a gate into one line for a person, and exit code 1."""
    try:
        yield
    except GateNotFound as error:
        raise click.ClickException(f"{error} (gatecount list shows those there are)") from None
    except (LayoutMismatch, UnknownCap) as error:
        raise click.ClickException(str(error)) from None
    except PermissionError as error:
        raise click.ClickException(
            f"gate {name!r} may not be used by this user: {error.strerror} ({error.filename})"
        ) from None
    except OSError as error:
        raise click.ClickException(f"gate {name!r} cannot be used: {error.strerror or error}") from None


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2))


def printable(text: str) -> str:
    """Return a text that may come from a foreign file so that a terminal can do nothing but show it."""
    return text if text.isprintable() else ascii(text)
