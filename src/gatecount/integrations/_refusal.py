"""What a client gets that is not admitted: the same from every interface."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal

from gatecount._core import MAX_LIMIT

BodyKind = Literal["json", "plain"]

_TYPES: Final = {"json": "application/json", "plain": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer, complete."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def phrase(self) -> str:
        """The reason phrase of the status."""
        return HTTPStatus(self.status).phrase

    def content(self, method: str | None) -> bytes:
        """Return the body to send: none to HEAD, whose answer only tells its length."""
        return b"" if method == "HEAD" else self.body


class Refusals:
    """Makes refusals of one kind. Raises TypeError or ValueError for what cannot be one.

    retry_after is the least and the most seconds, both included, after which a refused client is told
    to come again; each gets its own, drawn between the two, so that those refused together do not come
    back together. None: nothing is said of it.
    """

    def __init__(self, body: BodyKind, retry_after: tuple[int, int] | None) -> None:
        if body not in tuple(_TYPES):  # whatever it is, hashable or not
            raise ValueError(f"body must be 'json' or 'plain', not {body!r}")
        self._body = body
        self._retry_after = None if retry_after is None else _check_spread(retry_after)
        self._made: dict[tuple[int, str], Refusal] = {}

    def make(self, status: int, message: str, *, retry: bool = False) -> Refusal:
        """Return an answer; with retry, one that says when to come again."""
        # There are few, and in an overload they are what a server does most.
        plain = self._made.get((status, message))
        if plain is None:
            plain = self._made[status, message] = self._render(status, message)
        if not retry or self._retry_after is None:
            return plain
        low, high = self._retry_after
        seconds = low + int(random.random() * (high - low + 1))
        return Refusal(status, (*plain.headers, ("retry-after", str(seconds))), plain.body)

    def _render(self, status: int, message: str) -> Refusal:
        if self._body == "json":
            # The shape that clients of OpenAI-like servers know.
            error = {
                "message": message,
                "type": HTTPStatus(status).phrase,
                "param": None,
                "code": status,
            }
            content = json.dumps({"error": error}).encode()
        else:
            content = f"{message}\n".encode()
        length = ("content-length", str(len(content)))
        return Refusal(status, (("content-type", _TYPES[self._body]), length), content)


def _check_spread(value: object) -> tuple[int, int]:
    match value:
        case (int(low), int(high)) if {type(low), type(high)} == {int} and 0 <= low <= high <= MAX_LIMIT:
            return low, high
    raise ValueError(
        "retry_after must be two whole numbers of seconds, the least and the most, or None: "
        f"not {value!r}"
    )
