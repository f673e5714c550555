"""What can go wrong in an experiment without being a bug in it. Each message is one line."""

from gatecount import GatecountError


class ExperimentError(GatecountError):
    """The experiment could not be carried out. Nothing that it started is left behind."""


class ListenFailed(ExperimentError):
    """No socket could listen on `host` and `port`."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host}, port {port}: {reason}")
        self.host = host
        self.port = port


class ServerDied(ExperimentError):
    """Server `index` ended by itself with `exitcode`, or was given up (None)."""

    def __init__(self, index: int, exitcode: int | None, when: str) -> None:
        if exitcode is None:
            cause = "did not answer"
        elif exitcode < 0:
            cause = f"was ended by signal {-exitcode}"
        else:
            cause = f"ended with exit code {exitcode}"
        super().__init__(f"server {index} {cause} {when}")
        self.index = index
        self.exitcode = exitcode


class LoadFailed(ExperimentError):
    """A request failed that nothing had disturbed, or the load never reached the servers."""
