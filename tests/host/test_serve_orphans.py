"""What comes to `gatecount serve` from outside: its parent's end, signals, what the system refuses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gatecount.frontend.engine_process import EngineProcess
from gatecount.frontend.manager import ServerProcessManager
from gatecount.frontend.server import serve
from gatecount.frontend.settings import EngineSettings
from host import serving
from host.served import Served, address, completion, session
from host.targets import settings
from host.test_serve import APP
from support import DEADLINE, wait_until

IN_A_SERVER = "import multiprocessing\nSERVER = multiprocessing.parent_process() is not None\n"
STUCK = """
import time
from pathlib import Path

def stuck():
    Path("stuck").touch()
    time.sleep(1000)
"""


def app_in(folder: Path, text: str) -> None:
    (folder / "mine.py").write_text(STUCK + IN_A_SERVER + text)


def until_stuck(folder: Path) -> None:
    wait_until((folder / "stuck").exists)


def test_a_server_that_still_imports_its_app_ends_with_its_parent(tmp_path: Path) -> None:
    app_in(tmp_path, "if SERVER:\n    stuck()\n" + APP)
    with Served("mine:app", "--workers", "2", "--limit", "2", cwd=tmp_path) as served:
        until_stuck(tmp_path)
        served.process.kill()
        served.leaves_nothing()


def test_a_server_whose_loop_is_blocked_ends_with_its_parent(tmp_path: Path) -> None:
    app_in(
        tmp_path,
        APP.replace(
            'if scope["path"] == "/exit":',
            'if scope["path"] == "/block":\n        stuck()\n    if scope["path"] == "/exit":',
        ),
    )
    with Served("mine:app", "--workers", "2", "--limit", "2", cwd=tmp_path) as served:
        served.until_ready()
        with socket.create_connection(address(served.url)) as client:
            client.sendall(b"GET /block HTTP/1.1\r\nhost: test\r\n\r\n")
            until_stuck(tmp_path)
            served.process.kill()
            served.leaves_nothing()


def test_servers_and_an_engine_that_are_stopped_end_with_their_parent() -> None:
    with Served("--workers", "2", "--limit", "2") as served:
        served.until_ready()
        for process in served.spawned():
            process.suspend()
        served.process.kill()
        served.leaves_nothing()


def test_a_sigterm_to_the_whole_group_lets_running_requests_end() -> None:
    async def stream(served: Served) -> None:
        async with session() as client:
            body = completion(stream=True, max_tokens=5)
            answer = await client.post(f"{served.url}/v1/completions", json=body)
            assert answer.status == 200
            os.killpg(served.process.pid, signal.SIGTERM)
            data = [line async for line in answer.content if line.strip()]
            assert data[-1].strip() == b"data: [DONE]"
            assert (
                json.loads(data[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
            )

    with Served("--workers", "2", "--limit", "2", "--service-time", "1500") as served:
        asyncio.run(stream(served.until_ready()))
        out, err = served.process.communicate(timeout=DEADLINE)
        assert (served.process.returncode, err) == (0, "")
        assert out == "peak running 1, limit 2: overshoot 0\n"
        served.leaves_nothing()


def test_a_sigterm_while_the_servers_import_the_app_is_exit_code_0(tmp_path: Path) -> None:
    app_in(tmp_path, "stuck()\n" + APP)
    with Served("mine:app", "--workers", "2", cwd=tmp_path) as served:
        until_stuck(tmp_path)
        assert served.end() == (0, "", "")
        served.leaves_nothing()


def test_the_time_that_servers_have_to_start_is_an_option(tmp_path: Path) -> None:
    app_in(tmp_path, "if SERVER:\n    stuck()\n" + APP)
    options = ("--workers", "2", "--start-timeout", "0.5")
    with Served("mine:app", *options, cwd=tmp_path) as served:
        out, err = served.process.communicate(timeout=DEADLINE)
        assert (served.process.returncode, out) == (1, "")
        assert re.fullmatch(r"Error: server [01] was not ready within 0\.5 s \(--start-timeout\)\n", err)
        served.leaves_nothing()


class Cuttable:
    """An engine whose connections to its servers can be cut."""

    def __init__(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.connections: list[socket.socket] = []
        self.sentinel = engine.sentinel
        self.cause_of_end = engine.cause_of_end
        self.wait_until_ready = engine.wait_until_ready

    def connect(self) -> socket.socket:
        connected = self.engine.connect()
        self.connections.append(connected.dup())
        return connected

    def close(self) -> None:
        for connected in self.connections:
            connected.close()
        self.engine.shutdown()


def test_a_server_that_has_lost_its_connection_to_the_engine_says_so_and_another_takes_its_index(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = settings(workers=1, engine=EngineSettings(service_time=0.0))
    engine = Cuttable(EngineProcess(told.engine))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with ServerProcessManager(serve, told, (told,), listener=listener, engine=engine) as manager:
                assert serving.completion(url).status_code == 200
                before = manager.pids
                engine.connections[0].shutdown(socket.SHUT_RDWR)
                wait_until(lambda: manager.pids[0] not in (None, *before))
                assert serving.completion(url).status_code == 200
                assert manager.failure is None
        finally:
            engine.close()
    assert capfd.readouterr().err == "ERROR server 0: lost its connection to the engine\n"


@pytest.mark.parametrize(
    ("how", "app", "reason"),
    [
        ("ulimit -n 12", "", "the service cannot run: Too many open files"),
        ("exec >/dev/full", "", "the service cannot run: No space left on device"),
        (
            "mkdir gone && cd gone && rmdir ../gone",
            "",
            "the working directory cannot be used: No such file or directory",
        ),
        (
            "mkdir gone && cd gone && rmdir ../gone",
            "mine:app",
            "the working directory cannot be used: No such file or directory",
        ),
    ],
)
def test_what_the_system_refuses_is_one_line(tmp_path: Path, how: str, app: str, reason: str) -> None:
    command = f'{how} && exec "$0" -m gatecount.cli serve --port 0 {app}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {reason}\n"
