"""What the tests of the engine share: clients of each kind, outputs collected, counts waited for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar, get_args

import psutil

from gatecount.frontend.engine import EngineOutput, EngineRequest, EngineStatistics
from gatecount.frontend.engine_client import EngineClient, InprocEngineClient
from gatecount.frontend.engine_process import EngineProcess, StartMethod
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.settings import EngineSettings
from support import DEADLINE

Value = TypeVar("Value")

ENGINE_START_METHODS: Final[tuple[StartMethod, ...]] = get_args(StartMethod)

LONG = EngineSettings(service_time=1000.0)
"""What runs on such an engine does not end by itself while a test lasts."""

QUICK = EngineSettings(service_time=0.0)


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine in a loop of its own, for DEADLINE seconds at most; fail if a callback failed."""
    failures: list[dict[str, Any]] = []

    async def limited() -> Value:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        return await asyncio.wait_for(work, DEADLINE)

    result = asyncio.run(limited())
    assert not failures
    return result


def request(request_id: str = "r", *, prompt: int = 10, tokens: int = 3) -> EngineRequest:
    return EngineRequest(request_id, prompt, tokens)


async def outputs_of(client: Any, wanted: EngineRequest) -> list[EngineOutput]:
    """Return all outputs of one sample: of an engine, or of a client of one."""
    return [output async for output in client.generate(wanted)]


async def until(
    client: EngineClient, holds: Callable[[EngineStatistics], bool], deadline: float = DEADLINE
) -> EngineStatistics:
    """Return the engine's statistics once they fulfil a condition."""
    end = time.monotonic() + deadline
    while not holds(counts := await client.statistics(deadline)):
        assert time.monotonic() < end, f"still {counts} after {deadline} seconds"
        await asyncio.sleep(0.001)
    return counts


async def running(client: EngineClient, count: int) -> EngineStatistics:
    """Wait until that many samples run."""
    return await until(client, lambda counts: counts.running == count)


@contextlib.contextmanager
def started(settings: EngineSettings = QUICK, method: StartMethod = "spawn") -> Iterator[EngineProcess]:
    """An engine process, which may not have loaded yet."""
    process = EngineProcess(settings, method)
    try:
        yield process
    finally:
        process.shutdown()


@contextlib.contextmanager
def engine(settings: EngineSettings = QUICK, method: StartMethod = "spawn") -> Iterator[EngineProcess]:
    """An engine process that has loaded."""
    with started(settings, method) as process:
        process.wait_until_ready(DEADLINE)
        yield process


@contextlib.contextmanager
def client_of(kind: str, settings: EngineSettings = QUICK) -> Iterator[EngineClient]:
    """A client of an engine of its own: "inproc", "owned", or "given" (a socket of a process)."""
    with contextlib.ExitStack() as stack:
        client: EngineClient
        if kind == "inproc":
            client = InprocEngineClient(settings)
        elif kind == "owned":
            client = MPEngineClient(settings)
        else:
            client = MPEngineClient(stack.enter_context(engine(settings)).connect())
        stack.callback(client.shutdown)
        yield client


@contextlib.contextmanager
def connected(process: EngineProcess) -> Iterator[MPEngineClient]:
    """One more server's client of an engine process."""
    client = MPEngineClient(process)
    try:
        yield client
    finally:
        client.shutdown()


@contextlib.contextmanager
def stopped(process: EngineProcess) -> Iterator[None]:
    """Let an engine sleep through the block, so that it finds all that happened in it at once."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def generating(
    client: EngineClient, *wanted: EngineRequest
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that collect the outputs of samples; cancelled at the end of the block."""
    tasks = [asyncio.create_task(outputs_of(client, one)) for one in wanted]
    await asyncio.sleep(0)  # each has sent its request
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def newcomers(client: EngineClient, *wanted: EngineRequest) -> AsyncIterator[asyncio.Future[Any]]:
    """Samples that have been sent, and a future that is done once all of them have been running."""
    async with contextlib.AsyncExitStack() as stack:
        samples = [
            await stack.enter_async_context(contextlib.aclosing(client.generate(w))) for w in wanted
        ]
        first = asyncio.gather(*(anext(sample) for sample in samples))
        await asyncio.sleep(0)
        yield first
        await first


async def raised_by(work: Awaitable[Any]) -> BaseException | None:
    """Return what awaiting raises."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 (it is for the test to judge)
        return error
    return None


def serve_samples(connection: socket.socket, count: int, answer: Any) -> None:
    """Do what a server does that has samples in the engine and will be killed."""

    async def main() -> None:
        client = MPEngineClient(connection)
        async with generating(client, *(request(f"{number}") for number in range(count))):
            await until(client, lambda counts: counts.running >= count)
            answer.send("running")
            await asyncio.get_running_loop().create_future()

    asyncio.run(main())


def have_an_engine(method: StartMethod, answer: Any) -> None:
    """Do what a parent does that will be killed."""
    with engine(LONG, method) as process, connected(process):
        answer.send(process.pid)
        signal.pause()


def forget(process: EngineProcess) -> None:
    """Let go, in a child, of its parent's engine."""
    process.shutdown()
    del process
    gc.collect()


def engines(before: set[psutil.Process]) -> list[int]:
    """Return the pids of new children that are engines."""
    new = set(psutil.Process().children()) - before
    return [child.pid for child in new if "resource_tracker" not in " ".join(child.cmdline())]
