"""`python -m gatecount.cli`: the command line of exactly this interpreter."""

from gatecount.cli import run

if __name__ == "__main__":
    run()
