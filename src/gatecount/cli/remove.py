"""`gatecount remove`: a gate's name goes."""

from __future__ import annotations

import os

import click

from gatecount.cli.gates import IN_USE, GateCommand, json_option, name_argument, opened, print_json
from gatecount.names import path_of

_EXIT_CODES = f"""\b
    Exit codes:
      0    removed
      1    not removed; one line on standard error says why: there is no such
           gate, what stands there is none, it is another user's
      2    wrong usage
      {IN_USE}    refused, as living processes own slots: end them, or use --force"""


@click.command(cls=GateCommand, epilog=_EXIT_CODES)
@name_argument
@click.option("--force", is_flag=True, help="Remove it though living processes own slots.")
@json_option
def remove(name: str, force: bool, as_json: bool) -> None:
    """Remove a gate that no living process owns a slot of.

    With --force: one that is in use, too. Its processes go on with it, but nobody else can open it: who
    creates a gate of that name afterwards limits apart from them. A file that is no gate is left alone.
    """
    with opened(name) as gate:
        living = [owner.pid for owner in gate.statistics().slots]
        if living and not force:
            raise _InUse(name, living)
        # Of this very file: what stands under the name by now may be another gate.
        gate.segment.unlink(os.fsencode(path_of(name)))
    if as_json:
        print_json({"name": name, "removed": True, "living_owners": living})
    else:
        go_on = "goes on" if len(living) == 1 else "go on"
        click.echo(f"{name}: removed" + (f"; {_processes(living)} {go_on} with it" if living else ""))


class _InUse(click.ClickException):
    exit_code = IN_USE

    def __init__(self, name: str, living: list[int]) -> None:
        super().__init__(f"gate {name!r} is in use by {_processes(living)}: end them, or use --force")


def _processes(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:10])) + (" …" if len(pids) > 10 else "")
    return f"{len(pids)} living {'process' if len(pids) == 1 else 'processes'} (pid {shown})"
