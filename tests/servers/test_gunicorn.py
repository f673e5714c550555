"""gunicorn as its page has it: each kind of worker, with and without --preload."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gatecount import Gate
from servers.pages import Page
from servers.running import Server
from servers.story import LIMIT, through_a_kill_and_a_reload

PAGE = Page("gunicorn")
GTHREAD = PAGE.command("gunicorn app:app")
ASGI = PAGE.command("gunicorn --worker-class asgi")

Serve = Callable[..., Server]


def options(workers: int = 3, arguments: str = "") -> dict[str, str]:
    return {
        "WEB_CONCURRENCY": str(workers),
        "GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{{port}} --no-control-socket {arguments}",
    }


@pytest.mark.parametrize("preload", ["", "--preload"])
@pytest.mark.parametrize(
    ("command", "workers", "arguments"),
    [(GTHREAD, 3, ""), (GTHREAD, LIMIT + 2, "--worker-class sync --threads 1"), (ASGI, 3, "")],
    ids=["gthread", "sync", "asgi"],
)
def test_the_limit_is_one_under_load_through_a_kill_and_a_reload(
    serve: Serve, command: list[str], workers: int, arguments: str, preload: str
) -> None:
    server = serve(PAGE)
    server.start(command, options(workers, f"{arguments} {preload}"))
    with Gate.open(server.name) as gate:
        through_a_kill_and_a_reload(server, gate, workers=workers, overlap=2)
        server.stop()
