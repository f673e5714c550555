"""The commands about gates, called in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from gatecount.cli.group import main

LIMITS = {"requests": 10, "tokens": 200_000}
"""Of the gates that they are tried on."""


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def json_of(*arguments: str) -> Any:
    done = cli(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
