"""The command `gatecount` and its sub-commands, one file each."""

import click

from gatecount.cli.demo import demo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gatecount")
def main() -> None:
    """One exact limit for several processes: see it, look into it, change it."""


main.add_command(demo)
