"""gunicorn's hooks in what is not daily: upgrades, changed settings, starts that fail."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil
import pytest

from gatecount import Gate, GateNotFound
from servers.clients import Held, load
from servers.running import Server, living
from servers.story import (
    all_answer,
    becomes,
    busiest,
    everything_is_back,
    full,
    kill_one,
    owners,
    requests,
)
from servers.test_gunicorn import ASGI, GTHREAD, PAGE, Serve, options
from support import DEADLINE, path_of, wait_until

CONFIGURATION = "gunicorn.conf.py"


def configured(server: Server, *changes: tuple[str, str]) -> None:
    """Change the page's configuration."""
    path = server.directory / CONFIGURATION
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def children(pid: int) -> set[int]:
    with suppress(psutil.NoSuchProcess):
        return {child.pid for child in psutil.Process(pid).children()}
    return set()


def no_name(server: Server) -> None:
    assert not path_of(server.name).exists(), server.log


@pytest.mark.parametrize("first", ["the old master", "the new master"])
def test_an_upgrade_has_one_limit_over_both_masters_and_the_last_of_them_removes_the_gate(
    serve: Serve, first: str
) -> None:
    server = serve(PAGE)
    server.start(ASGI, options(2))
    with Gate.open(server.name) as gate:
        with Held(server) as held, load(server) as answers:
            full(server, gate, held)
            lost = kill_one(server, gate, held)
            all_answer(server, gate, 2)
            full(server, gate, held)
            old, before = owners(gate), children(server.process.pid)
            server.signal(signal.SIGUSR2)
            new = wait_until(lambda: children(server.process.pid) - before).pop()
            held.finish(5)
            all_answer(server, gate, 4)
            full(server, gate, held)
            ending, staying = (server.process.pid, owners(gate) - old) if "old" in first else (new, old)
            server.signal(signal.SIGTERM, ending)
            held.finish()
            wait_until(lambda: owners(gate) == staying)
            full(server, gate, held)
            held.finish()
        everything_is_back(server, gate, answers, lost)
        if "old" in first:
            assert server.process.wait() == 0
            assert path_of(server.name).exists()
            # Promoted once it has seen that its parent is gone.
            server.says("Master has been promoted.")
            server.signal(signal.SIGTERM, new)
            server.gone()
            no_name(server)
        else:
            wait_until(lambda: new not in children(server.process.pid))
            assert path_of(server.name).exists()
            server.stop()


@pytest.mark.parametrize("first", ["the old master", "the new master"])
def test_an_upgrade_that_nobody_asks_anything_keeps_the_gate_as_well(serve: Serve, first: str) -> None:
    """No worker has been asked for a permit yet: all that they have is their slots."""
    server = serve(PAGE)
    server.start(GTHREAD, options(1), answers=False)
    server.says("Booting worker")
    (worker,) = wait_until(lambda: children(server.process.pid))
    server.signal(signal.SIGUSR2)
    (new,) = wait_until(lambda: children(server.process.pid) - {worker})
    wait_until(lambda: server.log.count("Booting worker") == 2)
    ending = server.process.pid if "old" in first else new
    server.signal(signal.SIGTERM, ending)
    server.says("Shutting down: Master")
    wait_until(lambda: ending not in living(server.process.pid))
    assert server.ask().status_code == 200
    if "old" in first:
        server.says("Master has been promoted.")
    server.signal(signal.SIGTERM, new if "old" in first else None)
    server.end()
    no_name(server)


def test_an_upgrade_whose_new_master_has_no_worker_yet_keeps_the_gate(serve: Serve) -> None:
    """Nobody owns a slot when the old master ends: it is the other master that it leaves the name to."""
    server = serve(PAGE)
    slowly = "import time\n\ntime.sleep(3 if 'GUNICORN_PID' in os.environ else 0)\n"
    configured(server, ("workers = int(", f"{slowly}workers = int("))
    server.start(ASGI, options(1, "--graceful-timeout 1"))
    with Gate.open(server.name) as gate:
        (worker,) = children(server.process.pid)
        server.signal(signal.SIGUSR2)
        (new,) = wait_until(lambda: children(server.process.pid) - {worker})
        server.signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0
        wait_until(lambda: owners(gate) - {worker})
        server.says("Master has been promoted.")
        server.signal(signal.SIGTERM, new)
        server.gone()
        no_name(server)


def test_a_reload_sets_the_limits_of_the_configuration_and_workers_that_are_added_do_not(
    serve: Serve,
) -> None:
    server = serve(PAGE)
    server.start(ASGI, options(2))
    with Gate.open(server.name) as gate:
        gate.set_limit("requests", 3)
        server.signal(signal.SIGTTIN)
        wait_until(lambda: len(owners(gate)) == 3)
        assert requests(gate).limit == 3
        server.says("has 4 slots, but a reload of 3 workers needs 6")
        configured(server, ('{"requests": 10}', '{"requests": 7}'))
        server.signal(signal.SIGHUP)
        wait_until(lambda: requests(gate).limit == 7)
        wait_until(lambda: len(owners(gate)) == 2)
        server.stop()


def test_a_reload_with_another_layout_leaves_the_gate_as_it_was_and_the_service_goes_on(
    serve: Serve,
) -> None:
    server = serve(PAGE)
    server.start(ASGI, options(2))
    with Gate.open(server.name) as gate:
        old = owners(gate)
        configured(server, ('{"requests": 10}', '{"requests": 7, "tokens": 5}'))
        server.signal(signal.SIGHUP)
        server.says("reload: the gate stays as it was: LayoutMismatch")
        wait_until(lambda: len(owners(gate) - old) == 2 and not owners(gate) & old)
        assert server.ask().status_code == 200
        assert requests(gate).limit == 10
        server.stop()


def test_a_reload_under_another_name_gives_the_new_generation_a_gate_of_its_own(serve: Serve) -> None:
    server = serve(PAGE)
    server.start(ASGI, options(2))
    other = f"{server.name}-other"
    with Gate.open(server.name) as gate:
        configured(
            server,
            ('os.environ.get("GATECOUNT_GATE", "api")', repr(other)),
            ('": 10}', '": 5, "tokens": 5}'),
        )
        server.signal(signal.SIGHUP)
        wait_until(lambda: not owners(gate))
        with Gate.open(other) as second:
            wait_until(lambda: len(owners(second)) == 2)
            assert server.ask().status_code == 200
            assert requests(second).admitted == 1
        server.stop()
    with pytest.raises(GateNotFound):
        Gate.open(other)


def test_a_killed_workers_permits_come_back_though_nobody_asks_and_nobody_takes_its_place(
    serve: Serve,
) -> None:
    server = serve(PAGE)
    server.start(GTHREAD, options(2))
    with Gate.open(server.name) as gate, Held(server) as held:
        full(server, gate, held)
        # With one worker less, the victim is not replaced: a successor's claim would clean up, too.
        victim, count = busiest(server)
        server.signal(signal.SIGSTOP, victim)
        configured(server, ("workers = ", "workers = 1 or "))
        server.signal(signal.SIGTTOU)
        server.says("Handling signal: ttou")
        server.bystander.kill(victim)
        held.lose(count)
        becomes(gate, 10 - count)
        assert requests(gate).reclaimed == count
        held.finish()
        server.stop()


def test_a_worker_that_has_to_be_killed_at_the_end_does_not_keep_the_name(serve: Serve) -> None:
    server = serve(PAGE)
    server.start(GTHREAD, options(2, "--worker-class sync --threads 1 --graceful-timeout 1"))
    with Gate.open(server.name) as gate, Held(server) as held:
        held.fill(1)
        server.stop()
        held.lose(1)
        gate.reclaim()
        becomes(gate, 0)


def test_a_gate_whose_master_was_killed_is_adopted_by_the_next_start(serve: Serve) -> None:
    server = serve(PAGE)
    server.start(GTHREAD, options(2))
    with Gate.open(server.name) as gate, Held(server) as held:
        full(server, gate, held)
        # All in one moment: one that holds nothing ends by itself when its master is gone.
        os.killpg(server.process.pid, signal.SIGKILL)
        server.end(-signal.SIGKILL)
        held.lose(10)
        assert path_of(server.name).exists()
        server.start(GTHREAD, options(2))
        becomes(gate, 0)
        assert requests(gate).reclaimed == 10
        server.stop()


@pytest.mark.parametrize("preload", ["", "--preload"])
def test_a_worker_has_one_slot_from_its_fork_on(serve: Serve, preload: str) -> None:
    server = serve(PAGE)
    server.start(GTHREAD, options(3, preload), answers=False)
    server.says("Booting worker")
    with Gate.open(server.name) as gate, Held(server) as held:
        wait_until(lambda: len(children(server.process.pid)) == 3)
        wait_until(lambda: owners(gate) == children(server.process.pid))
        assert requests(gate).admitted == 0
        full(server, gate, held)
        assert len(gate.statistics().slots) == 3
        held.finish()
        server.stop()


@pytest.mark.parametrize("preload", ["", "--preload"])
def test_an_application_may_open_the_gate_while_it_is_imported(serve: Serve, preload: str) -> None:
    server = serve(PAGE)
    path = server.directory / "app.py"
    opening = path.read_text().replace("(application,", "(application, Gate.from_env(),")
    path.write_text(f"from gatecount import Gate\n{opening}")
    server.start(GTHREAD, options(2, preload))
    with Gate.open(server.name) as gate, Held(server) as held:
        full(server, gate, held)
        assert owners(gate) <= children(server.process.pid)
        held.finish()
        becomes(gate, 0)
        server.stop()


def test_with_too_few_slots_the_log_says_so_and_no_permit_is_lost(serve: Serve) -> None:
    server = serve(PAGE)
    configured(server, ("slots=2 * workers", "slots=1"))
    server.start(ASGI, options(3))
    server.says("has 1 slots, but a reload of 3 workers needs 6")
    with Gate.open(server.name) as gate:
        server.signal(signal.SIGTTIN)
        server.says(f"has no slot in gate {server.name!r}: all 1 slots are owned by living processes")
        with load(server) as answers:
            wait_until(lambda: answers["200"] > 20 and answers["503"] > 20)
        becomes(gate, 0)
        assert set(answers) == {"200", "503"}
        assert requests(gate).admitted >= answers["200"]
        # The one that has it goes, and another gets it.
        (owner,) = owners(gate)
        server.bystander.kill(owner)
        wait_until(lambda: server.ask().status_code == 200)
        assert owner not in owners(gate)
        server.stop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((CONFIGURATION, '"requests": 10', '"requests": -1'), "cannot be used: ValueError"),
        ((CONFIGURATION, '"requests": 10', '"tokens": 10'), "cannot be used: LayoutMismatch"),
    ],
)
def test_a_start_that_cannot_have_its_gate_ends_with_one_line(
    serve: Serve, change: tuple[str, str, str], says: str
) -> None:
    server = serve(PAGE)
    with Gate.create(server.name, limits={"requests": 3}, slots=4) as gate:
        configured(server, change[1:])
        server.start(GTHREAD, options(2), answers=False)
        server.end(1)
        assert says in server.log
        assert "Traceback" not in server.log
        assert requests(gate).limit == 3


@pytest.mark.parametrize("preload", ["", "--preload"])
def test_a_start_that_fails_for_another_reason_leaves_no_name(serve: Serve, preload: str) -> None:
    server = serve(PAGE)
    (server.directory / "app.py").write_text("raise RuntimeError('the application is broken')\n")
    server.start(GTHREAD, options(2, preload), answers=False)
    server.process.wait()
    server.gone()
    assert "the application is broken" in server.log
    no_name(server)


BROKEN_IN_TURN = """
import os, signal, time
from pathlib import Path

try:
    Path("first").touch(exist_ok=False)
except FileExistsError:  # the second ends in the same way, and not before it is told to end
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda *_: os._exit(3))
    Path("second").touch()
    time.sleep(60)
while not Path("second").exists():
    time.sleep(0.001)
raise RuntimeError("the application is broken")
"""


def test_workers_that_fail_in_the_midst_of_the_shutdown_leave_no_name(serve: Serve) -> None:
    """They break it off, so that gunicorn comes to no hook any more."""
    server = serve(PAGE)
    (server.directory / "app.py").write_text(BROKEN_IN_TURN)
    server.start(GTHREAD, options(2), answers=False)
    server.end(1)
    assert "During handling of the above exception" in server.log
    no_name(server)


def test_a_second_start_by_mistake_leaves_the_gate_of_the_first_alone(serve: Serve) -> None:
    server = serve(PAGE)
    first = server.start(ASGI, options(2, "--pid pid"))
    with Gate.open(server.name) as gate:
        workers = wait_until(lambda: len(now := owners(gate)) == 2 and now)
        server.start(ASGI, options(2, "--pid pid"), answers=False)
        server.end(1)
        assert f"Already running on PID {first.pid}" in server.log
        assert path_of(server.name).exists()
        assert owners(gate) == workers
        assert server.ask().status_code == 200
        server.process = first
        server.stop()


def test_a_configuration_that_is_only_checked_creates_nothing(serve: Serve) -> None:
    server = serve(PAGE)
    server.start([*GTHREAD, "--check-config"], options(2), answers=False)
    server.end(0)
    no_name(server)


def test_hooks_of_ones_own_may_call_these(serve: Serve) -> None:
    server = serve(PAGE)
    (snippet,) = PAGE.snippets
    configured(server, ("post_fork = gate.post_fork ", f"{snippet}\n#"))
    server.start(GTHREAD, options(2))
    server.says("is there")
    server.stop()
