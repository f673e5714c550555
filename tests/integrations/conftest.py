"""Fixtures of the integrations' tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from gatecount import Gate
from integrations.faces import FACES, Face


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """Return each middleware in turn, over an application that counts its calls."""
    return FACES[request.param]()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return an anonymous gate of 2 requests and 100 tokens."""
    with Gate.create(limits={"requests": 2, "tokens": 100}, slots=8) as made:
        yield made


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[logging.LogRecord]]]:
    """Return a function that tells what the middleware has logged so far."""
    with caplog.at_level(logging.DEBUG, "gatecount.admission"):
        yield lambda: [line for line in caplog.records if line.name == "gatecount.admission"]
