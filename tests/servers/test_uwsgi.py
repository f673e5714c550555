"""uWSGI as its page has it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from gatecount import Gate
from servers.clients import load
from servers.pages import Page
from servers.running import Server
from servers.story import owners, through_a_kill_and_a_reload
from support import path_of, wait_until

PAGE = Page("uwsgi")
COMMAND = PAGE.command("uwsgi")
OPTIONS = {
    "UWSGI_BINARY_PATH": sys.executable,  # for pyuwsgi, see the page
    "UWSGI_SOCKET_TIMEOUT": "60",  # for the clients that hold their requests
}


def test_the_limit_is_one_under_load_through_a_kill_and_a_reload(serve: Callable[..., Server]) -> None:
    server = serve(PAGE)
    server.start(COMMAND, OPTIONS)
    with Gate.open(server.name) as gate:
        wait_until(lambda: len(owners(gate)) == 4, 15.0)  # asked or not
        through_a_kill_and_a_reload(server, gate, workers=4, overlap=0)
        server.signal(signal.SIGTERM)
        server.end()
        assert path_of(server.name).exists()
        assert gate.statistics().slots == ()


def all_answer(server: Server, gate: Gate) -> set[int]:
    """Wait until each of the workers has answered: until then it may miss a signal. Return them."""
    answered: set[int] = set()

    def all_have() -> bool:
        answered.add(int(server.ask().text))
        return len(owners(gate)) == 4 and owners(gate) <= answered

    wait_until(all_have, 15.0)
    return answered


def test_connections_that_come_during_a_reload_wait(serve: Callable[..., Server]) -> None:
    server = serve(PAGE)
    server.start(COMMAND, OPTIONS)
    with Gate.open(server.name) as gate:
        old = all_answer(server, gate)
        with load(server) as answers:
            server.signal(signal.SIGHUP)
            server.says("uwsgi socket 0 inherited")
            wait_until(lambda: len(now := owners(gate)) == 4 and not now & old, 15.0)
        assert set(answers) == {"200"}
        all_answer(server, gate)
        server.signal(signal.SIGTERM)
        server.end()
