"""A page's service that is started once more under the same name."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from gatecount import Gate
from servers.pages import Page
from servers.running import Server
from servers.story import owners
from support import DEADLINE, path_of, wait_until

OPTIONS = {"WEB_CONCURRENCY": "2"}


@pytest.mark.parametrize("name", ["uvicorn", "granian", "hypercorn"])
def test_a_second_start_shares_the_gate_and_leaves_it_to_the_first(
    serve: Callable[..., Server], name: str
) -> None:
    page = Page(name)
    command = page.command("python serve.py")
    server = serve(page, interface="asgi")
    first = server.start(command, OPTIONS)
    with Gate.open(server.name) as gate:
        wait_until(lambda: len(owners(gate)) == 2)
        before = owners(gate)
        second = server.start(command, OPTIONS, answers=False)
        # It finds its port taken; or it shares it, until it is told to end.
        wait_until(lambda: second.poll() is not None or len(owners(gate)) == 4)
        if second.poll() is None:
            server.signal(signal.SIGTERM)
        second.wait(DEADLINE)
        server.gone()
        assert path_of(server.name).exists(), server.log
        assert owners(gate) == before
    server.process = first
    server.stop()
