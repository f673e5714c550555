"""A real server from its page, in a session of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

from gatecount.gate import ENVIRONMENT
from servers import bystander
from servers.bystander import Bystander
from servers.pages import Page
from support import DEADLINE, path_of, wait_until

HOST = "127.0.0.1"
_TESTS = Path(__file__).parents[1]


def living(session: int) -> set[int]:
    """Return the processes of a session that are not just waiting to be reaped."""
    pids = set()
    for entry in os.listdir("/proc"):
        # state ppid pgrp session, after the name in brackets
        with suppress(OSError, ValueError):
            fields = Path("/proc", str(int(entry)), "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                pids.add(int(entry))
    return pids


class Server:
    """The commands of a page, run among the page's files; whatever is left at the end is killed."""

    def __init__(self, directory: Path, gate_name: str, page: Page, interface: str = "wsgi") -> None:
        page.write(directory)
        (directory / "service.py").write_text(
            "from servers.handlers import wsgi, wsgi as application, asgi as asgi_application\n"
            if interface == "wsgi"
            else "from servers.handlers import asgi as application\n"
        )
        self.directory = directory
        self.name = gate_name
        self.bystander = Bystander(directory / "bystander")
        self.log_path = directory / "log"
        self._started: list[subprocess.Popen[bytes]] = []
        # Bound and not listening: nobody else is given this port, and the server may have it.
        self._reserved = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._reserved.setsockopt(socket.SOL_SOCKET, option, 1)
        self._reserved.bind((HOST, 0))
        self.port: int = self._reserved.getsockname()[1]
        # No connection is used twice, so that every request may come to any worker.
        self._client = httpx.Client(
            base_url=f"http://{HOST}:{self.port}",
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=DEADLINE,
            trust_env=False,
            verify=False,
        )

    def start(
        self, command: Sequence[str], options: Mapping[str, str] | None = None, *, answers: bool = True
    ) -> subprocess.Popen[bytes]:
        """Run a command of the virtual environment, and wait until it answers.

        options are environment variables; {port} in them stands for the port.
        """
        environment = os.environ | {
            ENVIRONMENT: self.name,
            bystander.ENVIRONMENT: str(self.directory / "bystander"),
            "PORT": str(self.port),
            "PYTHONPATH": str(_TESTS),
            "PYTHONUNBUFFERED": "1",
        }
        environment |= {name: value.format(port=self.port) for name, value in (options or {}).items()}
        program, *arguments = command
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name(program), *arguments],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(self.process)
        if answers:
            wait_until(lambda: self.process.poll() is not None or self.answers())
            assert self.process.poll() is None, f"exit code {self.process.returncode}: {self.log}"
        return self.process

    def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self.ask().status_code in (200, 503)
        return False

    def ask(self, path: str = "/work") -> httpx.Response:
        """Ask once, over a connection of its own."""
        return self._client.get(path)

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str) -> None:
        """Wait until the log has that text."""
        with suppress(AssertionError):
            wait_until(lambda: text in self.log)
        assert text in self.log

    def signal(self, number: signal.Signals, pid: int | None = None) -> None:
        os.kill(self.process.pid if pid is None else pid, number)

    def end(self, exit_code: int = 0) -> None:
        """Wait until the server started last has ended, with all that it started."""
        assert self.process.wait(DEADLINE) == exit_code, self.log
        self.gone()

    def gone(self) -> None:
        """Wait until the server started last has left no process."""
        wait_until(lambda: not living(self.process.pid))

    def stop(self) -> None:
        """End it by SIGTERM, and see that neither a process nor the gate's name is left."""
        self.signal(signal.SIGTERM)
        self.end()
        assert not path_of(self.name).exists(), self.log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._started:
            for pid in living(process.pid):
                with suppress(OSError):
                    # multiprocessing's own removes what its dead parent has left, and ends.
                    if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
            process.wait(DEADLINE)
            wait_until(lambda: not living(process.pid))  # noqa: B023
        self._client.close()
        self._reserved.close()
