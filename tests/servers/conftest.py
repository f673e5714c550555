"""Fixtures of the servers' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers.running import Server


@pytest.fixture
def serve(tmp_path: Path, gate_name: str) -> Iterator[Callable[..., Server]]:
    """Return a function that lays out a page's server; what it has started is gone after the test."""
    with ExitStack() as stack:
        yield lambda page, **more: stack.enter_context(Server(tmp_path, gate_name, page, **more))
