"""uvicorn --workers as its page has it."""

from __future__ import annotations

from collections.abc import Callable

from gatecount import Gate
from servers.pages import Page
from servers.running import Server
from servers.story import through_a_kill_and_a_reload

PAGE = Page("uvicorn")


def test_the_limit_is_one_under_load_through_a_kill_and_a_reload(serve: Callable[..., Server]) -> None:
    server = serve(PAGE, interface="asgi")
    server.start(PAGE.command("python serve.py"), {"WEB_CONCURRENCY": "2"})
    with Gate.open(server.name) as gate:
        through_a_kill_and_a_reload(server, gate, workers=2, overlap=1)
        server.stop()
