"""Clients of a server: those that hold their requests open, and those that never stop asking."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from typing import Self

import httpx

from servers.running import HOST, Server
from support import DEADLINE, wait_until

_HEAD = f"POST /hold HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Length: 1\r\n\r\n".encode()


class Held:
    """Requests of which the last byte is not sent yet; those left at the end are aborted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lines: list[socket.socket] = []

    def fill(self, count: int) -> None:
        """Hold so many in all, however many attempts it takes: others are asking too."""
        seen = self._server.bystander
        while (before := seen.held) < count:
            line = socket.create_connection((HOST, self._server.port), timeout=DEADLINE)
            line.sendall(_HEAD)
            # Either it is answered at once, which is a refusal, or it is held.
            wait_until(lambda: seen.held > before or self._answered([line, *self._lines]))  # noqa: B023
            assert not self._answered(self._lines), "a request that was held is no more"
            if seen.held > before:
                self._lines.append(line)
            else:
                line.close()

    @staticmethod
    def _answered(lines: list[socket.socket]) -> list[socket.socket]:
        """Return those on which there is something to read, or their end."""
        return select.select(lines, [], [], 0)[0]

    def lose(self, count: int) -> None:
        """Let so many go unanswered: their worker was killed."""
        wait_until(lambda: len(self._answered(self._lines)) >= count)
        lost = self._answered(self._lines)
        for line in lost:
            with line, suppress(ConnectionError):
                assert line.recv(1) == b""
            self._lines.remove(line)
        assert len(lost) == count

    def finish(self, count: int | None = None) -> set[int]:
        """Let so many finish, or all; return the pids of the workers that have answered."""
        ending = self._lines[:count]
        del self._lines[:count]
        for line in ending:
            line.sendall(b".")
        return {self._answer(line) for line in ending}

    def _answer(self, line: socket.socket) -> int:
        # No longer than it is: some servers wait for the client to close first.
        with line, HTTPResponse(line) as answer:
            answer.begin()
            body = answer.read()
        assert answer.status == 200, body
        return int(body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for line in self._lines:
            line.close()


@contextmanager
def load(server: Server, clients: int = 4) -> Iterator[Counter[str]]:
    """Keep asking from so many threads until the end of the block; yield how often was answered what.

    "200" and "503" are answers, "lost" is a connection that was: a killed worker's.
    """
    answers: Counter[str] = Counter()
    lock, over = threading.Lock(), threading.Event()

    def client() -> None:
        while not over.is_set():
            try:
                answer = str(server.ask().status_code)
            except httpx.TransportError:
                answer = "lost"
            with lock:
                answers[answer] += 1

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        over.set()
        for thread in threads:
            thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads)
