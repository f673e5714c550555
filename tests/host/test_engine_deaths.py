"""Deaths around the engine: of a server, of the engine, of the parent. No count outlives its server."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from gatecount.frontend import channel
from gatecount.frontend.engine_process import EngineProcess, StartMethod
from gatecount.frontend.errors import EngineDead, StartError
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.settings import EngineSettings
from host.engines import (
    ENGINE_START_METHODS,
    LONG,
    QUICK,
    connected,
    engine,
    engines,
    forget,
    generating,
    have_an_engine,
    newcomers,
    outputs_of,
    raised_by,
    request,
    run,
    running,
    serve_samples,
    started,
    stopped,
    until,
)
from support import DEADLINE, Crew, gone, wait_until

NEVER_READY = EngineSettings(load_time=1000.0)


@contextmanager
def server_with_samples(process: EngineProcess, count: int) -> Iterator[tuple[Crew, Any]]:
    """A server process of which that many samples run."""
    with Crew("spawn") as crew:
        here, there = crew.context.Pipe()
        with process.connect() as connection:
            server = crew.start(serve_samples, connection, count, there)
        there.close()
        with here:
            assert here.poll(DEADLINE)
            yield crew, server


def test_a_killed_server_has_its_samples_aborted_at_once() -> None:
    async def check(crew: Crew, victim: Any, survivor: MPEngineClient) -> None:
        async with generating(survivor, request()):
            await running(survivor, 4)
            crew.kill(victim)
            await running(survivor, 1)
            # Within a moment, and not when something else is asked of the engine.
            assert survivor.is_alive

    with (
        engine(LONG) as process,
        connected(process) as survivor,
        server_with_samples(process, 3) as (crew, victim),
    ):
        run(check(crew, victim, survivor))


def test_samples_of_a_server_that_hung_up_end_before_a_newcomer_starts_whichever_is_read_first() -> None:
    async def check(process: EngineProcess, dying: MPEngineClient, other: MPEngineClient) -> None:
        async with generating(dying, *(request(name) for name in "abc")):
            await running(other, 3)
            with stopped(process):
                # The loop of the engine will read in the order in which they had anything to say.
                async with newcomers(other, *(request(name) for name in "abc")) as started:
                    dying.shutdown()
                    os.kill(process.pid, signal.SIGCONT)
                    await started
                    counts = await other.statistics(DEADLINE)
                    assert (counts.running, counts.running_peak) == (3, 3)

    with engine(LONG) as process, connected(process) as dying, connected(process) as other:
        run(check(process, dying, other))


def test_samples_that_were_aborted_end_before_a_newcomer_starts_whichever_is_read_first() -> None:
    async def check(process: EngineProcess, first: MPEngineClient, second: MPEngineClient) -> None:
        async with generating(first, *(request(name) for name in "abc")):
            await running(second, 3)
            with stopped(process):
                asking = asyncio.create_task(second.statistics(DEADLINE))
                await asyncio.sleep(0)
                first.abort("abc")
                async with newcomers(second, *(request(name) for name in "abc")) as started:
                    os.kill(process.pid, signal.SIGCONT)
                    await asking
                    await started
                    counts = await second.statistics(DEADLINE)
                    assert (counts.running, counts.running_peak) == (3, 3)

    with engine(LONG) as process, connected(process) as first, connected(process) as second:
        run(check(process, first, second))


def test_aborts_that_come_while_the_engine_is_busy_count_before_a_newcomer_that_it_reads_first() -> None:
    async def check(process: EngineProcess, client: MPEngineClient) -> None:
        async with generating(client, *(request(name) for name in "abc")):
            await running(client, 3)
            with process.connect() as other:
                other.settimeout(DEADLINE)
                # More than it reads at once. When it comes to the rest, the newcomers are there too.
                other.sendall(b'["statistics",0]\n' * 4000)
                received = b""
                while b"statistics" not in received:
                    received += other.recv(1 << 16)
                client.abort("abc")
                other.sendall(b"".join(b'["generate",%d,10,3]\n' % number for number in range(3)))
                while received.count(b"output") < 3:
                    received += other.recv(1 << 16)
                counts = await client.statistics(DEADLINE)
                assert (counts.running, counts.running_peak) == (3, 3)

    with engine(LONG) as process, connected(process) as client:
        run(check(process, client))


# Its first thread ends while another lives: a process that is exiting, and has closed nothing yet.
# That is what every dying server is for a moment, only longer.
HALF_DEAD = """
import ctypes, os, socket, sys, threading, time

connection = socket.socket(fileno=int(sys.argv[1]))
lines = f'["hello",{os.getpid()}]\\n' + "".join(f'["generate",{n},1,1]\\n' for n in range(3))
connection.sendall(lines.encode())
threading.Thread(target=time.sleep, args=(1000,)).start()
sys.stdin.readline()
exit_thread = 60
ctypes.CDLL(None).syscall(exit_thread, 0)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_samples_of_a_process_that_is_exiting_end_before_a_newcomer_starts() -> None:
    async def check(victim: subprocess.Popen[bytes], client: MPEngineClient) -> None:
        await running(client, 3)
        assert victim.stdin is not None
        victim.stdin.close()
        wait_until(lambda: psutil.Process(victim.pid).status() == psutil.STATUS_ZOMBIE)
        assert (await client.statistics(DEADLINE)).running == 3
        async with newcomers(client, *(request(name) for name in "abc")) as started:
            await started
            counts = await client.statistics(DEADLINE)
            assert (counts.running, counts.running_peak) == (3, 3)

    with engine(LONG) as process, connected(process) as client:
        with process.connect() as connection:
            victim = subprocess.Popen(
                [sys.executable, "-c", HALF_DEAD, str(connection.fileno())],
                pass_fds=[connection.fileno()],
                stdin=subprocess.PIPE,
            )
        try:
            run(check(victim, client))
        finally:
            victim.kill()
            victim.wait(DEADLINE)


def test_an_engine_that_is_killed_is_told_to_all_that_is_pending_and_all_that_comes() -> None:
    async def check(process: EngineProcess, client: MPEngineClient) -> None:
        async with generating(client, *(request(name) for name in "abc")) as tasks:
            await running(client, 3)
            with stopped(process):
                asking = asyncio.create_task(client.statistics(DEADLINE))
                await asyncio.sleep(0)
                os.kill(process.pid, signal.SIGKILL)
                wait_until(lambda: not process.is_alive)
            wait_until(lambda: not client.is_alive)  # though the loop has not been told yet
            for work in (*tasks, asking):
                error = await raised_by(work)
                assert isinstance(error, EngineDead)
                assert str(error) == "the engine has ended"
            assert isinstance(await raised_by(outputs_of(client, request())), EngineDead)
            assert isinstance(await raised_by(client.statistics()), EngineDead)
            error = await raised_by(client.wait_until_ready(DEADLINE))
            assert isinstance(error, StartError)
            assert str(error) == "the engine has ended"

    with engine(LONG) as process, connected(process) as client:
        run(check(process, client))
        with pytest.raises(EngineDead, match="the engine takes no connection"):
            process.connect()
        assert process.cause_of_end() == "was ended by signal 9"
        assert process.exitcode == -9


def test_an_engine_that_is_killed_while_it_loads_is_one_line_for_its_parent_and_for_a_server() -> None:
    process = EngineProcess(NEVER_READY)
    with connected(process) as client:
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(StartError) as told:
            process.wait_until_ready(DEADLINE)
        assert str(told.value) == "the engine was ended by signal 9 while it was loading"
        error = run(raised_by(client.wait_until_ready(DEADLINE)))
        assert isinstance(error, StartError)
        assert str(error) == "the engine has ended while it was loading"


def test_an_owned_engine_that_is_killed_while_it_loads_is_one_line() -> None:
    async def check(client: MPEngineClient, pid: int) -> None:
        waiting = asyncio.create_task(client.wait_until_ready(DEADLINE))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        error = await raised_by(waiting)
        assert isinstance(error, StartError)
        assert str(error) == "the engine was ended by signal 9 while it was loading"

    before = set(psutil.Process().children())
    client = MPEngineClient(NEVER_READY)
    try:
        [pid] = engines(before)
        run(check(client, pid))
    finally:
        client.shutdown()


def test_an_engine_that_is_late_is_ended_and_told_in_one_line() -> None:
    process = EngineProcess(NEVER_READY)
    with pytest.raises(StartError) as told:
        process.wait_until_ready(0.1)
    assert str(told.value) == "the engine was not ready within 0.1 s"
    assert not process.is_alive

    before = set(psutil.Process().children())
    client = MPEngineClient(NEVER_READY)
    error = run(raised_by(client.wait_until_ready(0.1)))
    assert isinstance(error, StartError)
    assert engines(before) == []
    client.shutdown()


@pytest.mark.parametrize("method", ENGINE_START_METHODS)
def test_an_engine_ends_with_its_parent_however_that_dies(method: StartMethod) -> None:
    with Crew("spawn") as crew:
        here, there = crew.context.Pipe()
        # Not a daemon: those may have no children.
        parent = crew.context.Process(target=have_an_engine, args=(method, there))  # type: ignore[attr-defined]
        parent.start()
        crew.members.append(parent)
        there.close()
        with here:
            assert here.poll(DEADLINE)
            left = psutil.Process(here.recv())
        crew.kill(parent)
        wait_until(lambda: gone(left))


def test_an_engine_ends_when_its_object_is_collected() -> None:
    process = EngineProcess(LONG)
    process.wait_until_ready(DEADLINE)
    pid, gone = process.pid, weakref.ref(process)
    del process
    gc.collect()
    assert gone() is None
    assert not psutil.pid_exists(pid)


def test_a_client_that_owns_its_engine_ends_it_when_it_is_collected() -> None:
    before = set(psutil.Process().children())
    client = MPEngineClient(LONG)
    run(client.wait_until_ready(DEADLINE))
    assert len(engines(before)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of its socket: it was not shut down
        del client
        gc.collect()
    assert engines(before) == []


def test_an_engine_that_will_not_be_told_is_killed() -> None:
    with engine(LONG) as process, stopped(process):
        process.shutdown(timeout=0.1)
        assert process.exitcode == -9


def test_a_shutdown_can_be_asked_for_twice_and_leaves_the_exit_code() -> None:
    process = EngineProcess(LONG)
    assert process.exitcode is None
    process.shutdown(DEADLINE)  # it has to start before it can see that it is to end
    process.shutdown()
    assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_ends_no_engine_of_its_parent() -> None:
    with engine(LONG) as process:
        with Crew("fork") as crew:
            crew.start(forget, process)
            crew.join()
        assert process.is_alive
        with connected(process) as client:
            run(client.wait_until_ready(DEADLINE))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ENGINE_START_METHODS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_engine_leaves_a_signal_to_its_group_to_its_parent(
    number: signal.Signals, method: StartMethod
) -> None:
    with started(QUICK, method) as process, connected(process) as client:
        os.kill(process.pid, number)  # while it starts, when it could least cope
        process.wait_until_ready(DEADLINE)
        os.kill(process.pid, number)
        assert len(run(outputs_of(client, request()))) == 4


def test_an_engine_is_not_started_by_a_fork_server_which_hands_no_signal_mask_on() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(ValueError, match="start_method must be 'spawn' or 'fork', not 'forkserver'"):
        EngineProcess(QUICK, "forkserver")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start_method"):
        MPEngineClient(QUICK, start_method="forkserver")  # type: ignore[arg-type]
    assert engines(before) == []


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"nonsense\n", "sent what is no message: b'nonsense'"),
        (b'{"generate":1}\n', "sent what is no message"),
        (b'["frobnicate",1]\n', "sent a bad message: ['frobnicate', 1]"),
        (b'["generate",1,10,0]\n', "sent a bad message: max_tokens must be at least 1, not 0"),
        (b'["generate",1,1,1]\n' * 2, "sent a bad message: sample 1 runs already"),
        (b"x" * (channel.MAX_LINE + 1), f"sent a line of more than {channel.MAX_LINE} bytes"),
    ],
    ids=["no-json", "no-array", "unknown", "bad-value", "twice", "endless"],
)
def test_a_server_that_sends_nonsense_loses_its_connection_and_disturbs_nobody(
    sent: bytes, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def check(client: MPEngineClient) -> None:
        async with generating(client, request()):
            await running(client, 1)
            with process.connect() as connection:
                connection.settimeout(DEADLINE)
                connection.sendall(b'["generate",0,1,1]\n' + sent)
                while connection.recv(4096):
                    pass
            assert (await running(client, 1)).running_peak <= 3

    with engine(LONG) as process, connected(process) as client:
        run(check(client))
    assert said in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_server_that_reads_nothing_costs_the_engine_a_bounded_amount_and_then_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(client: MPEngineClient) -> None:
        with process.connect() as connection:
            connection.settimeout(DEADLINE)
            connection.sendall(b'["generate",0,1,1000000]\n')
            # It may be over before anybody has looked.
            await until(client, lambda counts: (counts.running, counts.running_peak) == (0, 1))
            received = 0
            while more := len(connection.recv(1 << 16)):
                received += more
            assert received < 1_000_000  # what its socket holds, and not a million tokens

    monkeypatch.setattr(channel, "MAX_BACKLOG", 10_000)  # a forked engine has it too
    with engine(QUICK, "fork") as process, connected(process) as client:
        run(check(client))


def test_ready_fd_tells_of_readiness_and_of_an_end_before_it() -> None:
    with started(QUICK) as ready, started(NEVER_READY) as dead:
        os.kill(dead.pid, signal.SIGKILL)
        for process in (ready, dead):
            assert select.select([process.ready_fd], [], [], DEADLINE)[0]
        ready.wait_until_ready(0)
        ready.wait_until_ready(0)
        with pytest.raises(StartError):
            dead.wait_until_ready(0)
