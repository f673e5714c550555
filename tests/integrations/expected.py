"""What the middlewares' tests look for in a log and in an answer."""

from __future__ import annotations

import logging

from integrations.middleware_servers import Answer


def only(lines: list[logging.LogRecord]) -> tuple[int, str]:
    assert len(lines) == 1, [line.getMessage() for line in lines]
    return lines[0].levelno, lines[0].getMessage()


def expect_busy(answer: Answer, status: int = 503) -> None:
    assert answer.status == status
    assert answer.error["code"] == status
    assert answer.error["message"] == "The server is busy, try again later."
    assert 1 <= int(answer.headers["retry-after"]) <= 5
