"""What keeps `gatecount serve` from starting: one clear line, a non-zero exit code, nothing running."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from gatecount.frontend.apps import load_app
from gatecount.frontend.errors import StartError
from gatecount.frontend.host import _Signals
from host.served import Served, session
from host.test_serve import APP, CAPPED
from support import DEADLINE, wait_until

HEAVY = os.environ.get("GATECOUNT_HEAVY") == "1"


def fails(served: Served) -> str:
    """Wait for its end, and return the one line."""
    out, err = served.process.communicate(timeout=DEADLINE)
    assert served.process.returncode == 1
    assert out == ""
    served.leaves_nothing()
    (line,) = err.splitlines()
    return line


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Served("--workers", "2", "--limit", "2", port=port) as served:
            line = fails(served)

    assert re.fullmatch(rf"Error: cannot listen on 127\.0\.0\.1, port {port}: Address .* in use", line)
    assert len(served.seen) <= 1


def test_a_host_that_does_not_exist_is_one_line() -> None:
    with Served("--host", "no such host") as served:
        assert fails(served).startswith("Error: cannot listen on no such host, port 0: ")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nothing:app", "ModuleNotFoundError: No module named 'nothing'"),
        ("mine:nothing", "mine has no nothing"),
    ],
)
def test_an_app_that_cannot_be_imported_is_one_line(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "mine.py").write_text(APP)
    with Served(path, "--workers", "4", "--limit", "2", cwd=tmp_path) as served:
        said = f"failed: cannot import '{path}': {reason}"
        assert re.fullmatch(f"Error: server [0-3] {re.escape(said)}", fails(served))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("app = 3", "cannot serve 'anapp:app': it is of type int, no ASGI application"),
        ("1/0", "cannot import 'anapp:app': ZeroDivisionError: division by zero"),
        ("raise KeyboardInterrupt", "cannot import 'anapp:app': KeyboardInterrupt:"),
        ("raise SystemExit(3)", "cannot import 'anapp:app': SystemExit: 3"),
        (
            "import nothing.at_all",
            "cannot import 'anapp:app': ModuleNotFoundError: No module named 'nothing'",
        ),
        ("def (", r"cannot import 'anapp:app': SyntaxError: invalid syntax \(anapp.py, line 1\)"),
        (
            "import asyncio\nraise asyncio.CancelledError('no more')",
            "cannot import 'anapp:app': CancelledError: no more",
        ),
        ("raise ValueError('two\\nlines')", "cannot import 'anapp:app': ValueError: two lines"),
    ],
)
def test_whatever_is_wrong_with_an_app_it_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "anapp.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "anapp", raising=False)
    with pytest.raises(StartError, match=f"^{reason}$"):
        load_app("anapp:app")


def test_an_attribute_of_an_attribute_is_found() -> None:
    assert (
        load_app("asyncio:events.AbstractEventLoop.run_forever") is asyncio.AbstractEventLoop.run_forever
    )


def test_ipv6_is_served_too() -> None:
    with Served("--host", "::1", "--limit", "2") as served:
        served.until_ready()
        assert re.match(r"http://\[::1\]:\d+$", served.url)

        async def ask() -> int:
            async with session() as client, client.get(f"{served.url}/health") as answer:
                return answer.status

        assert asyncio.run(ask()) == 200


def test_a_ctrl_c_that_was_ignored_from_the_start_stays_ignored() -> None:
    with Served("--workers", "1", ignore_sigint=True) as served:
        served.until_ready()
        os.killpg(served.process.pid, signal.SIGINT)
        served.is_well()
        assert served.end()[0] == 0


def test_another_signal_that_somebody_has_a_handler_for_does_not_end_the_wait() -> None:
    here, there = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda *_: there.send(b"x"))
    try:
        with here, there, _Signals() as told:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not told.wait([here.fileno()])
            assert told.first is None
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_parent_does_not_import_the_app_and_so_ends_whatever_that_has_begun(tmp_path: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    (tmp_path / "mine.py").write_text(thread + APP)
    options = ("--workers", "2", "--shutdown-timeout", "0")
    with Served("mine:app", *options, cwd=tmp_path) as served:
        served.until_ready()
        assert served.end()[:2] == (0, "")
        served.leaves_nothing()


@pytest.mark.skipif(
    not HEAVY or shutil.which("hey") is None, reason="needs hey, and GATECOUNT_HEAVY=1: takes a minute"
)
@pytest.mark.parametrize(
    ("mode", "least", "most"), [("hard", 10, 10), ("approximate", 10, 13), ("off", 40, 40)]
)
def test_under_80_connections_of_hey(mode: str, least: int, most: int) -> None:
    async def hey(url: str) -> str:
        body = '{"prompt": "some words to begin with", "max_tokens": 16}'
        command = ["hey", "-z", "10s", "-c", "80", "-m", "POST", "-T", "application/json", "-d", body]
        process = await asyncio.create_subprocess_exec(
            *command, f"{url}/v1/completions", stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode()

    with Served(*CAPPED, "--admission", mode) as served:
        served.until_ready()
        said = asyncio.run(hey(served.url))
        statuses = {int(status) for status in re.findall(r"\[(\d{3})\]\s+\d+ responses", said)}
        assert statuses == {200, 503}, said
        assert least <= served.peak() <= most
        wait_until(lambda: served.in_flight() == 0)
        assert served.end()[0] == 0
