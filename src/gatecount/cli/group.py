"""The command `gatecount` and its sub-commands, one file each."""

import click

from gatecount.cli.demo import demo
from gatecount.cli.list_gates import list_gates
from gatecount.cli.reclaim import reclaim
from gatecount.cli.remove import remove
from gatecount.cli.serve import serve
from gatecount.cli.set_limit import set_limit
from gatecount.cli.show import show
from gatecount.cli.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gatecount")
def main() -> None:
    """One exact limit for several processes: see it, look into it, change it."""


main.add_command(demo)
main.add_command(serve)
for _command in (list_gates, show, top, set_limit, reclaim, remove):
    main.add_command(_command)
