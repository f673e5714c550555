"""The command line. `run` is its entry point; `gatecount.cli.group` holds the commands."""

import sys


def run() -> None:
    """Run the command line on `sys.argv`, and leave with its exit code.

    The library has no dependencies, so its entry point stands even where click does not. Then this
    says which extra to install, and leaves with exit code 2.
    """
    try:
        from gatecount.cli.group import main
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("gatecount: the command line needs click: pip install 'gatecount[cli]'\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before there was anybody to deal with it
        raise SystemExit(130) from None
    main(prog_name="gatecount")
