"""Optional dependencies, and the one line that a user reads when one is missing."""

import importlib

import click


def require(command: str, extra: str, *modules: str) -> None:
    """Import each of `modules`, or raise a ClickException that names `extra`, which brings them.

    A module that is there but cannot import something of its own is a broken installation: that
    error passes through.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            message = f"{command} needs {module}: pip install 'gatecount[{extra}]'"
            raise click.ClickException(message) from None
