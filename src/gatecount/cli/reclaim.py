"""`gatecount reclaim`: take back what dead processes held."""

from __future__ import annotations

import click

from gatecount.cli.gates import EXIT_CODES, GateCommand, json_option, name_argument, opened, print_json


@click.command(cls=GateCommand, epilog=EXIT_CODES)
@name_argument
@json_option
def reclaim(name: str, as_json: bool) -> None:
    """Take back what dead processes held, and free their slots.

    Processes do this by themselves when they are about to refuse or need a slot, and a metrics collector
    does at each scrape; so this is rarely needed. Only what is proved dead is touched.
    """
    with opened(name) as gate:
        owners = gate.reclaim()
    if as_json:
        print_json({"name": name, "dead_owners": owners})
    else:
        click.echo(f"{name}: {owners} dead {'owner' if owners == 1 else 'owners'} cleaned up")
