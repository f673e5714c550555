"""Deaths under `gatecount serve`: no permit is lost, no process is left, and the survivors serve."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from host.served import Held, Load, Served, in_thread, session
from support import DEADLINE, scaled, wait_until

ENDLESS = ("--service-time", "600000")
HEAVY = os.environ.get("GATECOUNT_HEAVY") == "1"


def all_serve(served: Served, count: int) -> None:
    """Wait until every index has a server that accepts."""
    wait_until(lambda: sorted(served.connections()) == list(range(count)))


@contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """Let processes sleep through the block, so that others do what there is to do."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def one_by_one(held: Held, times: int) -> Counter[int]:
    """Send so many requests, each when the one before was answered; count the statuses."""
    return Counter([status for _ in range(times) for status in await held.ask()])


@pytest.mark.parametrize(
    ("mode", "how"),
    [("hard", signal.SIGKILL), ("hard", signal.SIGTERM), ("approximate", signal.SIGKILL)],
    ids=["hard, SIGKILL", "hard, exit code 0", "approximate, SIGKILL"],
)
def test_what_a_dead_server_held_serves_others_and_another_takes_its_index(
    mode: str, how: signal.Signals
) -> None:
    async def die(served: Served) -> None:
        async with session() as client:
            held, later = Held(client, served.url), Held(client, served.url)
            servers = served.servers()
            victim = servers.pop(1)
            # Of the 8 places it gets 3 and the others 5, however quick each of them is. Asked for one
            # after the other, they are 8 with an approximate cap, too.
            with stopped(*servers):
                assert await one_by_one(held, 3) == {200: 3}
            with stopped(victim):
                assert await one_by_one(held, 9) == {200: 5, 503: 4}
            victim.send_signal(how)
            await in_thread(victim.wait, DEADLINE)
            # What it held is back, be it already or in a moment.
            await in_thread(wait_until, lambda: served.in_flight() == 5)
            await in_thread(all_serve, served, 4)
            assert await in_thread(served.in_flight) == 5
            assert await one_by_one(later, 12) == {200: 3, 503: 9}
            assert await in_thread(served.peak) == 8
            held.let_go()
            later.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)

    options = ("--workers", "4", "--limit", "8", "--mode", mode, "--shutdown-timeout", "0.1")
    with Served(*options, *ENDLESS) as served:
        asyncio.run(die(served.until_ready()))
        _, _, err = served.end()
        ending = "was ended by signal 9 (SIGKILL)" if how is signal.SIGKILL else "ended with exit code 0"
        assert f"WARNING server 1 {ending}; another takes its index now" in err.splitlines()
        served.leaves_nothing()


@pytest.mark.timeout(1200)
def test_servers_killed_at_full_load_never_let_the_engine_run_more_than_the_limit() -> None:
    deaths = 100 if HEAVY else scaled(10)

    async def kill(served: Served) -> Load:
        load = Load(served.url, clients=40, pause=0.05)
        async with load.running():
            await load.until(20)
            for _ in range(deaths):
                # One that serves: of the dead there would be fewer and fewer to kill.
                victim = random.choice(await in_thread(served.servers))
                victim.kill()
                await load.until(10)
            await in_thread(all_serve, served, 4)
            await load.until(20)
        return load

    with Served("--workers", "4", "--limit", "10", "--service-time", "60") as served:
        load = asyncio.run(kill(served.until_ready()))

        assert load.broken > 0
        wait_until(lambda: served.in_flight() == 0)
        assert served.peak() == 10
        # The row of the last to be killed shows it until the parent has seen it.
        wait_until(lambda: len(served.servers()) == 4)
        code, out, _ = served.end()
        assert (code, out) == (0, "peak running 10, limit 10: overshoot 0\n")
        served.leaves_nothing()


@pytest.mark.skipif(not HEAVY, reason="test_manager.py does it faster: set GATECOUNT_HEAVY=1")
def test_a_server_comes_back_ten_times_in_a_row_under_the_same_index() -> None:
    async def die_again(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            assert Counter(await held.ask(6)) == {200: 5, 503: 1}
            for _ in range(10):
                victim = max(served.servers(), key=lambda server: (server.create_time(), server.pid))
                victim.kill()
                await in_thread(victim.wait, DEADLINE)
                await in_thread(all_serve, served, 2)
            kept = await in_thread(served.in_flight)
            again = Held(client, served.url)
            assert Counter(await again.ask(6)) == {200: 5 - kept, 503: 1 + kept}
            held.let_go()
            again.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)

    with Served("--workers", "2", "--limit", "5", *ENDLESS) as served:
        asyncio.run(die_again(served.until_ready()))
        _, _, err = served.end()
        said = [line for line in err.splitlines() if "another takes its index" in line]
        assert len(said) == 10
        assert {line.split()[2] for line in said} == {"1"}
        served.leaves_nothing()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_whatever_ends_the_parent_nothing_is_left(how: signal.Signals) -> None:
    async def end(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            assert Counter(await held.ask(10)) == {200: 6, 503: 4}
            served.process.send_signal(how)
            await in_thread(served.process.wait, DEADLINE)
            await in_thread(served.leaves_nothing)
            held.let_go()

    with Served("--workers", "4", "--limit", "6", "--shutdown-timeout", "0.2", *ENDLESS) as served:
        asyncio.run(end(served.until_ready()))
        assert served.process.returncode == (0 if how is signal.SIGTERM else -how)


@pytest.mark.parametrize(
    ("how", "already"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 5), (signal.SIGTERM, 1), (signal.SIGINT, 3)],
)
def test_a_parent_that_ends_during_the_start_leaves_nothing(how: signal.Signals, already: int) -> None:
    with Served("--workers", "4", "--limit", "6", "--engine-load-time", "60") as served:
        wait_until(lambda: len(served.spawned()) >= already)
        served.process.send_signal(how)
        out, err = served.process.communicate(timeout=DEADLINE)

        expected = {signal.SIGKILL: -9, signal.SIGTERM: 0, signal.SIGINT: 130}[how]
        assert served.process.returncode == expected
        assert out == ""
        if how is not signal.SIGKILL:
            assert err.splitlines() == (["Interrupted; all servers have ended."] if expected else [])
        served.leaves_nothing()


def test_on_exit_stop_ends_all_with_one_line() -> None:
    with Served("--workers", "3", "--limit", "6", "--on-exit", "stop") as served:
        served.until_ready()
        served.servers()[2].kill()
        out, err = served.process.communicate(timeout=DEADLINE)

        assert served.process.returncode == 1
        assert out == "peak running 0, limit 6: overshoot 0\n"
        assert err.splitlines() == ["Error: server 2 was ended by signal 9 (SIGKILL)"]
        served.leaves_nothing()


# Imported by each server; what it does depends on how often that was before.
COUNTED_APP = """
import os, time
from pathlib import Path

def turn():
    for number in range(1000):
        try:
            os.close(os.open(f"import-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number

NUMBER = turn()
if NUMBER in FAIL:
    raise RuntimeError("no more\\nof this")

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        if NUMBER in REFUSE:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "will not"})
            return
        raise RuntimeError("no lifespan here")
    if scope["path"] == "/exit":
        os._exit(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
"""


def counted_app(tmp_path: Path, fail: set[int] = frozenset(), refuse: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    text = COUNTED_APP.replace("in FAIL", f"in {sorted(fail)}").replace(
        "in REFUSE", f"in {sorted(refuse)}"
    )
    (tmp_path / "counted.py").write_text(text)


@pytest.mark.parametrize(("k", "why"), [(0, "fail"), (2, "refuse"), (3, "fail")])
def test_a_failure_in_the_kth_server_s_start_ends_all_with_one_line(
    tmp_path: Path, k: int, why: str
) -> None:
    counted_app(tmp_path, **{why: {k}})
    with Served("counted:app", "--workers", "4", "--limit", "6", cwd=tmp_path) as served:
        out, err = served.process.communicate(timeout=DEADLINE)

        assert served.process.returncode == 1
        assert out == ""
        reason = "cannot import 'counted:app': RuntimeError: no more of this"
        if why == "refuse":
            reason = "the app's lifespan failed at its start-up"
        assert re.fullmatch(rf"Error: server \d failed: {re.escape(reason)}", err.splitlines()[-1])
        assert "Traceback" not in err
        served.leaves_nothing()


def test_a_crash_loop_is_backed_off_and_said_and_the_survivor_serves(tmp_path: Path) -> None:
    # The first two servers' imports are number 0 and 1.
    counted_app(tmp_path, fail={2, 3, 4})
    with Served("counted:app", "--workers", "2", "--limit", "6", cwd=tmp_path) as served:
        served.until_ready()
        survivor, victim = served.spawned()
        victim.kill()
        began = time.monotonic()
        while not (tmp_path / "import-4").exists():
            assert served.get("/") == (200, str(survivor.pid))
            assert time.monotonic() < began + DEADLINE
        assert time.monotonic() - began >= 0.2 + 0.4
        all_serve(served, 2)
        _, _, err = served.end()

        failed = "WARNING server 1 failed: cannot import 'counted:app': RuntimeError: no more of this"
        assert err.splitlines() == [
            "WARNING server 1 was ended by signal 9 (SIGKILL); another takes its index now",
            f"{failed}, 2 times in a row; another takes its index in 0.2 s",
            f"{failed}, 3 times in a row; another takes its index in 0.4 s",
            f"{failed}, 4 times in a row; another takes its index in 0.8 s",
        ]
        served.leaves_nothing()


def test_an_app_that_ends_its_server_with_exit_code_0_gets_another(tmp_path: Path) -> None:
    counted_app(tmp_path)
    with Served("counted:app", "--workers", "2", "--limit", "1", cwd=tmp_path) as served:
        served.until_ready()
        before = {process.pid for process in served.spawned()}
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            served.get("/exit")  # while it holds the only place
        # The row of the one that has ended shows it until the parent has seen it.
        wait_until(lambda: len(there := {one.pid for one in served.spawned()}) == 2 and there != before)
        all_serve(served, 2)
        wait_until(lambda: served.get("/")[0] == 200)
        after = {process.pid for process in served.spawned()}
        assert len(before & after) == 1
        assert "ended with exit code 0; another takes its index now" in served.end()[2]


@pytest.mark.parametrize("phase", ["loading", "serving"])
def test_the_engine_s_death_ends_all_with_one_line(phase: str) -> None:
    load_time = "60" if phase == "loading" else "0"
    with Served("--workers", "3", "--limit", "6", "--engine-load-time", load_time) as served:
        if phase == "serving":
            served.until_ready()
        wait_until(lambda: len(served.spawned()) == 4)
        served.engine().kill()
        out, err = served.process.communicate(timeout=DEADLINE)

        assert served.process.returncode == 1
        assert out == ""
        when = " while it was loading" if phase == "loading" else ""
        assert err.splitlines() == [f"Error: the engine was ended by signal 9{when}"]
        served.leaves_nothing()


@pytest.mark.parametrize("phase", ["starting", "serving"])
def test_ctrl_c_ends_all_without_a_stack_trace(phase: str) -> None:
    options = ("--engine-load-time", "60") if phase == "starting" else ()
    with Served("--workers", "4", "--limit", "6", *options) as served:
        if phase == "serving":
            served.until_ready()
        wait_until(lambda: len(served.spawned()) == 5)
        os.killpg(served.process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, err = served.process.communicate(timeout=DEADLINE)

        assert served.process.returncode == 130
        assert err.splitlines() == ["Interrupted; all servers have ended."]
        served.leaves_nothing()


def test_a_second_ctrl_c_does_not_wait_for_requests() -> None:
    async def twice(served: Served) -> float:
        async with session() as client:
            held = Held(client, served.url)
            assert await held.ask(2) == [200, 200]
            os.killpg(served.process.pid, signal.SIGINT)
            await in_thread(wait_until, lambda: served.connections_refused())
            began = time.monotonic()
            os.killpg(served.process.pid, signal.SIGINT)
            await in_thread(served.process.wait, DEADLINE)
            held.let_go()
            return time.monotonic() - began

    with Served("--workers", "2", "--limit", "2", "--shutdown-timeout", "600", *ENDLESS) as served:
        assert asyncio.run(twice(served.until_ready())) < 20
        assert served.process.returncode == 130
        served.leaves_nothing()


def test_servers_leave_ctrl_c_to_their_parent() -> None:
    with Served("--workers", "2", "--limit", "2") as served:
        served.until_ready()
        before = served.spawned()
        for process in before:
            process.send_signal(signal.SIGINT)
        served.is_well()
        assert served.end() == (0, "peak running 0, limit 2: overshoot 0\n", "")


def test_a_stopped_server_is_ended_too() -> None:
    with Served("--workers", "2", "--limit", "2", "--shutdown-timeout", "0.2") as served:
        served.until_ready()
        server = served.servers()[0]
        server.suspend()
        code, _, err = served.end()
        assert code == 0
        assert re.fullmatch(r"WARNING server [01] did not end in time, and was killed\n", err)
        assert not psutil.pid_exists(server.pid)
        served.leaves_nothing()


@pytest.mark.skipif(not HEAVY, reason="200 starts take minutes: set GATECOUNT_HEAVY=1")
@pytest.mark.timeout(1200)
def test_200_starts_and_stops_without_a_hang() -> None:
    for number in range(200):
        with Served("--workers", "2", "--limit", "2", "--warmup-time", "0.05") as served:
            if number % 4:
                served.until_ready()
            else:  # somewhere on its way
                wait_until(lambda served=served: len(served.spawned()) > 0)
            assert served.end()[0] == 0
            served.leaves_nothing()
