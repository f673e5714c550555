"""What the manager hands to one server process, and how that process answers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from gatecount.frontend.board import Board, Row

MAX_REASON: Final = 2_000
"""Bytes of a reason at most: far below what a pipe takes without its reader."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one server process. Picklable only while that process is being started."""

    client_config: dict[str, Any]
    """`client_count`, `client_index`, and `mp_admission_counters` if several servers share a cap."""
    board: Board
    listener: socket.socket | None
    """The listening socket that all servers share."""
    engine: socket.socket | None
    """This server's own connection to the engine."""
    answer: Connection
    """Where `ready` and `failed` write. Closed by the process's end, whatever that is."""

    @property
    def index(self) -> int:
        """This server's index, from 0: its slot in the counters and its row of the board."""
        index: int = self.client_config["client_index"]
        return index

    @property
    def row(self) -> Row:
        """This server's row of the board."""
        return self.board.at(self.index)

    def ready(self) -> None:
        """Tell the manager that this server serves from now on."""
        self._say(b"")

    def failed(self, reason: str) -> None:
        """Tell the manager, in one line, why this server is about to end."""
        line = " ".join(reason.split()) or "for no reason that it gave"
        self._say(line.encode("utf-8", "replace")[:MAX_REASON])

    def _say(self, answer: bytes) -> None:
        try:
            self.answer.send_bytes(answer)
        except OSError:  # the manager has gone or given up: nobody is left to be told
            pass
        finally:
            self.answer.close()
