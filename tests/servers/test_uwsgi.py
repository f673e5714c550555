"""uWSGI as its page has it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from gatecount import Gate
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
        through_a_kill_and_a_reload(server, gate, overlap=0)
        server.signal(signal.SIGTERM)
        server.end()
        assert path_of(server.name).exists()
        assert gate.statistics().slots == ()
