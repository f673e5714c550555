"""`gatecount demo` as a user runs it: real servers, load and kill, and nothing left behind."""

import contextlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gatecount.overload import fleet
from gatecount.overload.errors import ServerDied

DEADLINE = 30.0

Demo = Callable[..., subprocess.Popen[str]]


def await_that(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.01)


def living(session: int) -> list[psutil.Process]:
    """Every process of a session that runs, orphans too; a zombie has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def servers(session: int) -> list[psutil.Process]:
    found = []
    for process in living(session):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_for_line(demo: subprocess.Popen[str], wanted: str) -> None:
    """Read what the demo says on standard error up to a line; the rest can still be read."""
    assert demo.stderr is not None
    seen = []
    for line in demo.stderr:
        seen.append(line)
        if wanted in line:
            return
    pytest.fail(f"never said {wanted!r}, but: {''.join(seen)}")


@pytest.fixture
def demo() -> Iterator[Demo]:
    """Start demos, each in a session of its own so that whatever it leaves behind is found."""
    started: list[subprocess.Popen[str]] = []
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gatecount.cli", "demo", *options]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    signal.signal(signal.SIGINT, before)
    for process in started:
        for left in living(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.communicate(timeout=DEADLINE)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One short experiment in all modes, as JSON, with its picture and its messages."""
    picture = tmp_path_factory.mktemp("demo") / "in-flight.png"
    command = [sys.executable, "-m", "gatecount.cli", "demo", "--json", "--plot", str(picture)]
    done = subprocess.run(
        [*command, "--duration", "0.6"], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return {"json": json.loads(done.stdout), "picture": picture, "said": done.stderr}


def mode_of(experiment: dict[str, Any], mode: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [m for m in experiment["json"]["modes"] if m["mode"] == mode]
    assert len(found) == 1
    return found[0]


def test_hard_mode_is_full_and_never_over_not_even_when_a_server_is_killed(
    experiment: dict[str, Any],
) -> None:
    hard = mode_of(experiment, "hard")

    assert hard["peak_in_flight"] == 10
    assert hard["overshoot"] == 0
    assert 5 < hard["mean_in_flight"] <= 10
    assert hard["peak_after_kill"] == 10
    assert hard["refused"] > 0


@pytest.mark.parametrize("mode", ["approximate", "hard"])
def test_what_a_killed_server_held_is_usable_again_soon(experiment: dict[str, Any], mode: str) -> None:
    measured = mode_of(experiment, mode)

    assert measured["held_by_killed"] > 0
    assert 0 < measured["recovery_ms"] < 3000


def test_approximate_mode_stays_within_one_too_many_for_each_other_server(
    experiment: dict[str, Any],
) -> None:
    approximate = mode_of(experiment, "approximate")

    assert 10 <= approximate["peak_in_flight"] <= 13
    assert approximate["overshoot"] == approximate["peak_in_flight"] - 10


def test_a_limit_for_each_process_lets_a_multiple_of_it_run_and_recovers_nothing(
    experiment: dict[str, Any],
) -> None:
    off = mode_of(experiment, "off")

    assert 20 < off["peak_in_flight"] <= 40
    assert off["overshoot"] == off["peak_in_flight"] - 10
    assert off["peak_after_kill"] <= 30
    assert off["recovery_ms"] is None


def test_requests_take_their_service_time_and_are_counted_by_the_clients(
    experiment: dict[str, Any],
) -> None:
    for mode in experiment["json"]["modes"]:
        assert mode["admitted"] > 0
        assert 50 <= mode["p50_ms"] <= mode["p99_ms"]
    # 10 at once, 50 ms each, for 0.6 s make 120. Twice that, for a machine that has other things to do.
    assert mode_of(experiment, "hard")["admitted"] < 240


def test_the_picture_is_drawn_and_the_phases_are_told_without_a_terminal(
    experiment: dict[str, Any],
) -> None:
    assert experiment["picture"].read_bytes().startswith(b"\x89PNG")
    for line in ("off: starting 4 servers", "approximate: under load", "hard: one server killed"):
        assert line in experiment["said"]
    assert "\x1b" not in experiment["said"]


def test_a_taken_port_is_one_line_and_no_server_is_started(demo: Demo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = demo("--port", str(port))
        out, err = refused.communicate(timeout=DEADLINE)

    assert refused.returncode == 1
    assert out == ""
    assert err.splitlines()[-1].startswith(f"Error: cannot listen on 127.0.0.1, port {port}:")
    assert "in use" in err
    assert "--port" in err
    assert "Traceback" not in err


def test_a_host_that_does_not_exist_is_one_line(demo: Demo) -> None:
    refused = demo("--host", "no such host")
    _, err = refused.communicate(timeout=DEADLINE)

    assert refused.returncode == 1
    assert err.splitlines()[-1].startswith("Error: cannot listen on no such host, port 0:")
    assert "Traceback" not in err


@pytest.mark.parametrize("phase", ["starting", "under load"])
def test_ctrl_c_ends_every_process_without_a_stack_trace(demo: Demo, phase: str) -> None:
    interrupted = demo("--mode", "hard", "--duration", "60")  # in which none is killed
    wait_for_line(interrupted, phase)
    # While starting, in the middle of their imports, is when they could least cope with a signal.
    await_that(lambda: len(servers(interrupted.pid)) == 4, "four servers")
    os.killpg(interrupted.pid, signal.SIGINT)  # as a terminal does: to the servers too
    out, err = interrupted.communicate(timeout=DEADLINE)

    assert interrupted.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted; all servers have ended."
    assert "Traceback" not in err
    await_that(lambda: living(interrupted.pid) == [], "no process left")


def test_servers_leave_ctrl_c_to_the_demo(demo: Demo) -> None:
    undisturbed = demo("--mode", "hard", "--duration", "0.3")
    wait_for_line(undisturbed, "under load")
    for server in servers(undisturbed.pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # the one that the demo kills
            server.send_signal(signal.SIGINT)
    _, err = undisturbed.communicate(timeout=DEADLINE)

    assert undisturbed.returncode == 0, err


def test_no_server_outlives_a_demo_that_is_killed(demo: Demo) -> None:
    killed = demo("--mode", "hard", "--duration", "60")
    wait_for_line(killed, "under load")
    assert len(servers(killed.pid)) == 4
    killed.kill()
    killed.wait(DEADLINE)

    await_that(lambda: living(killed.pid) == [], "no server left")


def test_a_server_that_dies_by_itself_ends_the_demo_with_one_line(demo: Demo) -> None:
    failing = demo("--mode", "hard", "--duration", "60")
    wait_for_line(failing, "under load")
    servers(failing.pid)[2].kill()
    out, err = failing.communicate(timeout=DEADLINE)

    assert failing.returncode == 1
    assert out == ""
    assert re.fullmatch(r"Error: server \d was ended by signal 9 under load", err.splitlines()[-1])
    assert "Traceback" not in err
    await_that(lambda: living(failing.pid) == [], "no process left")


# Spawned by name, so it must be importable there: see `pretender`.
PRETENDER = """
import os, signal, time

def pretend(ready, ends_with):
    if ends_with is not None:
        os._exit(ends_with)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.send_bytes(b"ready")
    time.sleep(60)
"""


@pytest.fixture
def pretender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[object, int | None], None]]:
    """A server that ends at once with an exit code, or serves and will not be told to stop."""
    (tmp_path / "pretender.py").write_text(PRETENDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fleet, "STOP_DEADLINE", 0.2)
    yield importlib.import_module("pretender").pretend
    del sys.modules["pretender"]


def spawned() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]


def test_a_server_that_ends_while_starting_takes_the_others_with_it(
    pretender: Callable[[object, int | None], None],
) -> None:
    with (
        pytest.raises(ServerDied, match="server 1 ended with exit code 3 while it was starting"),
        fleet.Fleet(pretender, [(None,), (3,)]),
    ):
        pytest.fail("entered without all servers")

    assert spawned() == []


def test_a_server_that_ignores_being_told_to_stop_is_killed(
    pretender: Callable[[object, int | None], None],
) -> None:
    with fleet.Fleet(pretender, [(None,), (None,)]):
        assert len(spawned()) == 2
        began = time.monotonic()

    assert spawned() == []
    assert time.monotonic() - began < 10
