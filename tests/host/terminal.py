"""A terminal for a program under test: a real one, of which the test is the screen and the keyboard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from typing import Self

from support import DEADLINE

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HOME = "\x1b[H"


class Terminal:
    """`gatecount` with some arguments, in a terminal that it thinks a person sits at."""

    def __init__(self, *arguments: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(slave)
        self._slave = slave  # kept open, to look at its settings when the program is gone
        kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "gatecount.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm-256color", **environment},
            start_new_session=True,
            preexec_fn=_as_if_logged_in,
        )
        self._received = b""
        self._reader = threading.Thread(target=self._receive)
        self._reader.start()

    def _receive(self) -> None:
        with contextlib.suppress(OSError):  # closed, or the last process has gone
            while chunk := os.read(self._master, 65536):
                self._received += chunk

    @property
    def output(self) -> str:
        """All that was written, escape sequences and all."""
        return self._received.decode(errors="replace").replace("\r\n", "\n")

    def plain(self) -> str:
        """Return all that was written, without escape sequences."""
        return _ESCAPE.sub("", self.output)

    def screen(self) -> list[str]:
        """Return the lines of the last whole screen; none before there is one."""
        for frame in reversed(self.output.split(_HOME)[1:]):
            lines = _ESCAPE.sub("", frame).split("\n")
            # Of a frame that has come in part there may be one line, too.
            if "Ctrl-C leaves" in lines[-1] or len(lines) == self._rows == 1:
                return [line.rstrip() for line in lines]
        return []

    def shows(self, *texts: str) -> bool:
        """Tell whether each of the texts is on the screen."""
        lines = self.screen()
        return all(any(text in line for line in lines) for text in texts)

    def row(self, *words: str) -> list[str]:
        """Return the words of the first line that begins with these; none if there is no such line."""
        for line in self.screen():
            found = line.split()
            if found[: len(words)] == list(words):
                return found
        return []

    def resize(self, columns: int, rows: int) -> None:
        self._rows = rows
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self) -> int:
        """Return the exit code, once all that the program wrote was received."""
        code = self.process.wait(DEADLINE)
        self.left_settings = termios.tcgetattr(self._slave)
        self._close()
        return code

    def _close(self) -> None:
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
            self._reader.join(DEADLINE)
            os.close(self._master)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        self._close()


def _as_if_logged_in() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who runs the tests in the background ignores Ctrl-C


def is_left_clean(output: str) -> bool:
    """Tell whether the cursor is visible again, and the screen that was there before is back."""
    cursor = output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l") >= 0
    screen = output.rfind("\x1b[?1049l") > output.rfind("\x1b[?1049h") >= 0
    return cursor and screen
