"""`gatecount set-limit`: another limit, live."""

from __future__ import annotations

import click

from gatecount._core import MAX_LIMIT
from gatecount.cli.counts import Count
from gatecount.cli.gates import (
    EXIT_CODES,
    GateCommand,
    json_option,
    name_argument,
    opened,
    print_json,
    printable,
)


@click.command("set-limit", cls=GateCommand, epilog=EXIT_CODES)
@name_argument
@click.argument("cap", metavar="CAP")
@click.argument("limit", metavar="N", type=Count(0, MAX_LIMIT))
@json_option
def set_limit(name: str, cap: str, limit: int, as_json: bool) -> None:
    """Set the limit of a cap, for every process at once.

    N is written in digits, or with k, m, g (32k is 32,000) or K, M, G (1K is 1,024); 0 refuses
    everything. What is in flight stays: below it, nobody is admitted until it has drained. The limit
    stands until it is set again, or until the service that creates the gate starts anew.
    """
    with opened(name) as gate:
        before = gate.statistics().caps.get(cap)
        gate.set_limit(cap, limit)
        after = gate.statistics().caps[cap]
    previous = limit if before is None else before.limit
    if as_json:
        print_json({"name": name, "cap": cap, "limit": limit, "previous": previous})
        return
    click.echo(f"{name}: limit of {printable(cap)} is {limit:,}, was {previous:,}")
    if after.in_flight > limit:
        click.echo(f"{after.in_flight:,} are in flight: none is admitted until they have drained")
