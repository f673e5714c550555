"""Clients of the engine: one contract for both kinds, and what only another process can do to one."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from gatecount.frontend.channel import Channel, Message
from gatecount.frontend.engine import EngineOutput, EngineStatistics
from gatecount.frontend.engine_client import EngineClient, InprocEngineClient
from gatecount.frontend.errors import DuplicateRequest, EngineDead, StartError
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.settings import EngineSettings
from host.engines import (
    LONG,
    QUICK,
    client_of,
    connected,
    engine,
    generating,
    outputs_of,
    raised_by,
    request,
    run,
    running,
    started,
    stopped,
    until,
)
from support import DEADLINE

KINDS = ("inproc", "owned", "given")
ABORTED = EngineOutput(None, "abort")
WHOLE = [EngineOutput(None, None), EngineOutput(" 1", None), EngineOutput(" 2", "length")]


@pytest.fixture(params=KINDS)
def quick(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    """A client of an engine whose samples end at once."""
    with client_of(request.param, QUICK) as client:
        yield client


@pytest.fixture(params=KINDS)
def long(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    """A client of an engine whose samples do not end by themselves."""
    with client_of(request.param, LONG) as client:
        yield client


def test_samples_run_side_by_side_and_each_yields_its_own_outputs(quick: EngineClient) -> None:
    async def check() -> None:
        wanted = [request(f"r{tokens}", tokens=tokens) for tokens in range(1, 30)]
        for one, outputs in zip(
            wanted, await asyncio.gather(*(outputs_of(quick, one) for one in wanted)), strict=True
        ):
            tokens = [f" {number}" for number in range(1, one.max_tokens + 1)]
            assert [output.token for output in outputs] == [None, *tokens]
            assert outputs[-1].finish_reason == "length"
        assert (await quick.statistics(DEADLINE)).running == 0

    run(check())


def test_a_request_made_while_the_engine_loads_waits_for_it() -> None:
    slow = EngineSettings(service_time=0.0, load_time=0.2)

    async def inproc(client: EngineClient) -> None:
        began = asyncio.get_running_loop().time()
        assert await outputs_of(client, request(tokens=2)) == WHOLE
        assert asyncio.get_running_loop().time() - began >= 0.19

    async def given(client: EngineClient, ready_fd: int) -> None:
        async with aclosing(client.generate(request(tokens=2))) as outputs:
            await anext(outputs)
            assert select.select([ready_fd], [], [], 0)[0]
            assert [output async for output in outputs] == WHOLE[1:]

    with client_of("inproc", slow) as client:
        run(inproc(client))
    with started(slow) as process, connected(process) as client:
        run(given(client, process.ready_fd))


def test_an_engine_that_is_late_is_told_in_one_line_and_can_be_waited_for_again() -> None:
    async def check(client: EngineClient, go_on: Callable[[], object]) -> None:
        error = await raised_by(client.wait_until_ready(0.05))
        assert isinstance(error, StartError)
        assert str(error) == "the engine was not ready within 0.05 s"
        go_on()
        await client.wait_until_ready(DEADLINE)
        await client.wait_until_ready(0.0)

    with client_of("inproc", EngineSettings(load_time=0.5)) as client:
        run(check(client, lambda: None))
    with started() as process, stopped(process), connected(process) as client:
        run(check(client, lambda: os.kill(process.pid, signal.SIGCONT)))


@pytest.mark.parametrize("how", ["cancel", "close", "abort"])
def test_a_sample_that_is_given_up_ends_in_the_engine_at_once(long: EngineClient, how: str) -> None:
    async def check() -> None:
        outputs = long.generate(request())
        assert await anext(outputs) == EngineOutput(None, None)
        task = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        counts = await running(long, 1)
        assert counts == EngineStatistics(1, 1, 0, 0, 10)
        if how == "abort":
            long.abort(["unknown", "r"])
            assert await task == ABORTED
            assert [output async for output in outputs] == []
        else:
            task.cancel()
            await asyncio.wait([task])
        # Asked after the engine was told, so what it answers counts no longer what it was told of.
        assert (await long.statistics(DEADLINE)).running == 0
        await outputs.aclose()

    async def close() -> None:
        async with aclosing(long.generate(request())) as outputs:
            await anext(outputs)
            assert (await long.statistics(DEADLINE)).running == 1
        assert (await long.statistics(DEADLINE)).running == 0

    run(close() if how == "close" else check())


def test_an_id_is_refused_while_it_runs_and_after_an_abort_yields_only_what_is_its_own(
    long: EngineClient,
) -> None:
    async def check() -> None:
        first = long.generate(request("r"))
        await anext(first)
        assert isinstance(await raised_by(anext(long.generate(request("r")))), DuplicateRequest)
        long.abort(["r"])
        second = long.generate(request("r"))
        await anext(second)
        assert [output async for output in first] == [ABORTED]
        # The end of the first has taken nothing from the second.
        assert isinstance(await raised_by(anext(long.generate(request("r")))), DuplicateRequest)
        long.abort(["r"])
        assert [output async for output in second] == [ABORTED]

    run(check())


def test_outputs_of_an_aborted_sample_never_reach_the_next_one_of_its_id(quick: EngineClient) -> None:
    async def check() -> None:
        await quick.wait_until_ready(DEADLINE)
        for _ in range(50):
            async with generating(quick, request("r", tokens=100)) as [task]:
                await until(quick, lambda counts: True)  # some of the hundred are on their way
                quick.abort(["r"])
                assert await outputs_of(quick, request("r", tokens=2)) == WHOLE
                assert (await task)[-1].finish_reason in ("abort", "length")

    run(check())


def test_a_sample_aborted_before_the_engine_has_loaded_never_runs() -> None:
    async def check(client: EngineClient, go_on: Callable[[], object]) -> None:
        async with generating(client, request("a"), request("b", tokens=2)) as [aborted, other]:
            client.abort(["a"])
            go_on()
            assert await aborted == [ABORTED]
            assert await other == WHOLE
            assert (await client.statistics(DEADLINE)).running_peak == 1

    with client_of("inproc", EngineSettings(service_time=0.0, load_time=0.2)) as client:
        run(check(client, lambda: None))
    with started() as process, stopped(process), connected(process) as client:
        run(check(client, lambda: os.kill(process.pid, signal.SIGCONT)))


def test_after_a_shutdown_everything_pending_and_later_raises_engine_dead(long: EngineClient) -> None:
    async def check() -> None:
        async with generating(long, *(request(name) for name in "abc")) as tasks:
            await running(long, 3)
            assert long.is_alive
            long.shutdown()
            long.shutdown()
            assert not long.is_alive
            for task in tasks:
                error = await raised_by(task)
                assert isinstance(error, EngineDead)
                assert "shut down" in str(error)
            assert isinstance(await raised_by(outputs_of(long, request())), EngineDead)
            assert isinstance(await raised_by(long.statistics()), EngineDead)
            long.abort(["a"])

    run(check())


def test_a_shutdown_while_the_engine_loads_ends_what_waits_for_it() -> None:
    async def check(client: EngineClient) -> None:
        async with generating(client, request()) as [task]:
            waiter = asyncio.create_task(client.wait_until_ready(DEADLINE))
            await asyncio.sleep(0)
            client.shutdown()
            assert isinstance(await raised_by(task), EngineDead)
            assert isinstance(await raised_by(waiter), StartError)

    for kind in ("inproc", "owned"):
        with client_of(kind, EngineSettings(load_time=1000.0)) as client:
            run(check(client))


def test_a_client_can_be_shut_down_after_its_loop_has_ended_and_before_it_had_any(
    quick: EngineClient,
) -> None:
    run(outputs_of(quick, request()))
    quick.shutdown()
    for kind in KINDS:
        with client_of(kind):
            pass


def test_servers_share_one_engine_which_counts_the_samples_of_all() -> None:
    async def check(first: MPEngineClient, second: MPEngineClient) -> None:
        # The same ids, and the same numbers on the wire.
        async with generating(first, request("a"), request("b")):
            async with generating(second, request("a"), request("c"), request("b")):
                for client in (first, second):
                    assert (await running(client, 5)).running_peak == 5
                first.abort(["a"])
                await running(second, 4)
            assert (await running(first, 1)).running_peak == 5

    with engine(LONG) as process, connected(process) as first, connected(process) as second:
        run(check(first, second))


def test_a_shutdown_of_one_server_aborts_its_samples_and_no_others() -> None:
    async def check(first: MPEngineClient, second: MPEngineClient) -> None:
        async with generating(first, request("a"), request("b")), generating(second, request("a")):
            await running(second, 3)
            first.shutdown()
            await running(second, 1)

    with engine(LONG) as process, connected(process) as first, connected(process) as second:
        run(check(first, second))


def test_an_engine_that_does_not_answer_in_time_is_a_timeout_and_its_late_answer_is_nobodys() -> None:
    async def check(client: MPEngineClient, pid: int) -> None:
        assert isinstance(await raised_by(client.statistics(0.01)), TimeoutError)
        os.kill(pid, signal.SIGCONT)
        await client.wait_until_ready(DEADLINE)
        assert (await client.statistics(DEADLINE)).running == 0

    with started() as process, stopped(process), connected(process) as client:
        run(check(client, process.pid))


def test_a_client_belongs_to_the_loop_that_used_it_first() -> None:
    with client_of("owned") as client:
        run(client.wait_until_ready(DEADLINE))
        with pytest.raises(RuntimeError, match="belongs to the event loop that used it first"):
            run(outputs_of(client, request()))


def test_an_in_process_client_takes_no_warm_up_object() -> None:
    with pytest.raises(TypeError, match="takes no warmup object"):
        InprocEngineClient(QUICK, warmup=object())  # type: ignore[arg-type]


def test_a_peer_that_sends_faster_than_it_is_read_lets_the_loop_turn() -> None:
    async def check() -> None:
        here, there = socket.socketpair()
        channel = Channel(here)
        there.setblocking(False)
        told = there.send(b"[1]\n" * 100_000) // 4
        turn = 0
        read: Counter[int] = Counter()

        def take(_message: Message) -> None:
            read[turn] += 1

        channel.attach(asyncio.get_running_loop(), take, pytest.fail)
        while read.total() < told:
            await asyncio.sleep(0)
            turn += 1
        assert max(read.values()) < told // 4
        channel.close()
        there.close()

    run(check())
