"""Fixtures of the host's tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gatecount.frontend.engine_process import EngineProcess
from support import DEADLINE


@pytest.fixture
def hosts() -> Iterator[ExitStack]:
    """A stack on which a test puts what it serves."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """One engine process, for several servers, with the settings that the test names."""
    made = EngineProcess(request.param)
    try:
        made.wait_until_ready(DEADLINE)
        yield made
    finally:
        made.shutdown()
