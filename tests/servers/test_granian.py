"""granian as its page has it: workers that are processes, and workers that are threads of one."""

from __future__ import annotations

import signal
from collections.abc import Callable

from gatecount import Gate
from servers.clients import Held, load
from servers.pages import Page
from servers.running import Server
from servers.story import everything_is_back, full, owners, through_a_kill_and_a_reload

PAGE = Page("granian")
COMMAND = PAGE.command("python serve.py")

IMPORT = "from granian import Granian\n"
THREADS = """
from granian.server import MTServer as Granian
Granian._check_gil = lambda self: None
"""


def test_the_limit_is_one_under_load_through_a_kill_and_a_reload(serve: Callable[..., Server]) -> None:
    server = serve(PAGE, interface="asgi")
    server.start(COMMAND, {"WEB_CONCURRENCY": "2"})
    with Gate.open(server.name) as gate:
        through_a_kill_and_a_reload(server, gate, workers=2, overlap=1)
        server.stop()


def test_workers_that_are_threads_share_one_slot_and_the_limit(serve: Callable[..., Server]) -> None:
    """As on a free-threaded Python: its server runs on this one too, if it is not asked what it is."""
    server = serve(PAGE, interface="asgi")
    program = server.directory / "serve.py"
    text = program.read_text()
    assert text.count(IMPORT) == 1
    program.write_text(text.replace(IMPORT, THREADS))
    server.start(COMMAND, {"WEB_CONCURRENCY": "2"})
    with Gate.open(server.name) as gate:
        # Said of each when it has been started: it may answer before.
        server.says("Spawning worker-2")
        assert server.log.count("Spawning worker-") == 2
        with Held(server) as held, load(server) as answers:
            full(server, gate, held)
            assert owners(gate) == {server.process.pid}
            server.signal(signal.SIGHUP)
            server.says("Stopping old worker-1")
            full(server, gate, held)
            held.finish()
            server.says("Stopped old worker-2")
            full(server, gate, held)
            assert owners(gate) == {server.process.pid}
            held.finish()
        everything_is_back(server, gate, answers, lost=0)
        server.stop()
