"""hypercorn --workers as its page has it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from gatecount import Gate
from servers.clients import Held, load
from servers.pages import Page
from servers.running import Server
from servers.story import all_answer, busiest, everything_is_back, full, owners, reloaded, requests
from support import path_of

PAGE = Page("hypercorn")
COMMAND = PAGE.command("python serve.py")
OPTIONS = {"WEB_CONCURRENCY": "2"}


def test_the_limit_is_one_under_load_and_through_a_reload(serve: Callable[..., Server]) -> None:
    server = serve(PAGE, interface="asgi")
    server.start(COMMAND, OPTIONS)
    with Gate.open(server.name) as gate:
        with Held(server) as held, load(server) as answers:
            all_answer(server, gate, 2)
            full(server, gate, held)
            old = owners(gate)
            server.signal(signal.SIGHUP)
            reloaded(server, gate, held, old, overlap=0)
            full(server, gate, held)
            assert not held.finish() & old
        everything_is_back(server, gate, answers, lost=0)
        server.stop()


def test_a_killed_worker_ends_the_server_and_everything_comes_back(serve: Callable[..., Server]) -> None:
    server = serve(PAGE, interface="asgi")
    server.start(COMMAND, OPTIONS)
    with Gate.open(server.name) as gate, Held(server) as held:
        full(server, gate, held)
        victim, _ = busiest(server)
        server.bystander.kill(victim)
        held.lose(10)
        server.end(0)
        assert not path_of(server.name).exists()
        gate.reclaim()
        assert (requests(gate).in_flight, requests(gate).repairs) == (0, 0)
    server.start(COMMAND, OPTIONS)
    with Gate.open(server.name) as gate, Held(server) as held:
        full(server, gate, held)
        held.finish()
        server.stop()
