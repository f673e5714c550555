"""The client of an engine in another process: what each of several servers has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Iterable

from gatecount.frontend.channel import Channel, Message
from gatecount.frontend.engine import EngineOutput, EngineRequest, EngineStatistics
from gatecount.frontend.engine_process import EngineProcess, StartMethod
from gatecount.frontend.errors import DuplicateRequest, EngineDead, StartError
from gatecount.frontend.settings import EngineSettings
from gatecount.frontend.warmup import BackgroundWarmup

_Outputs = asyncio.Queue[EngineOutput | EngineDead]


class MPEngineClient:
    """Talks to an engine process: one it starts and owns (settings), or one that is there.

    Made without an event loop; belongs to the loop of its first call that awaits. Once the engine's
    process exists, and so after every fork, the warm-up is started beside its loading. See
    `EngineClient` for the methods.
    """

    def __init__(
        self,
        engine: EngineProcess | socket.socket | EngineSettings,
        *,
        warmup: BackgroundWarmup | None = None,
        start_method: StartMethod = "spawn",
    ) -> None:
        """Start an engine, which `shutdown` will end, or take one.

        A socket is one that `EngineProcess.connect` made, and belongs to the client from now on.
        `start_method` (spawn or fork) is for an engine that is started here.
        """
        self._warmup = warmup
        self._owned: EngineProcess | None = None
        with contextlib.ExitStack() as undo:
            if isinstance(engine, EngineSettings):
                engine = self._owned = EngineProcess(engine, start_method)
                undo.callback(engine.shutdown)
            connected = engine if isinstance(engine, socket.socket) else engine.connect()
            undo.enter_context(connected)
            # Whichever way the process was started, it exists now.
            if warmup is not None:
                warmup.start()
            undo.pop_all()
        self._channel = Channel(connected)
        self._channel.send(["hello", os.getpid()])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = False
        self._ready_or_dead = asyncio.Event()
        self._dead: str | None = None
        self._number = 0
        # Not by their ids: one may be used again while outputs of its last use are on their way.
        self._outputs: dict[int, _Outputs] = {}
        self._numbers: dict[str, int] = {}
        self._asked: dict[int, asyncio.Future[EngineStatistics]] = {}

    @property
    def is_alive(self) -> bool:
        """Whether requests can still be served, as the kernel knows at this instant."""
        return self._dead is None and not self._channel.hung_up

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Run one sample. While the engine still loads, wait for that."""
        self._attach()
        if request.request_id in self._numbers:
            raise DuplicateRequest(f"request {request.request_id!r} runs already")
        number = self._next_number()
        outputs: _Outputs = asyncio.Queue()
        self._outputs[number] = outputs
        self._numbers[request.request_id] = number
        self._channel.send(["generate", number, request.prompt_tokens, request.max_tokens])
        try:
            while True:
                output = await outputs.get()
                if isinstance(output, EngineDead):
                    raise output
                if output.finish_reason is not None:
                    self._forget(request.request_id, number)
                    yield output
                    return
                yield output
        finally:
            if self._forget(request.request_id, number):
                self._channel.send(["abort", [number]])

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these samples: told to the engine before this returns, without waiting for it."""
        numbers = []
        for request_id in request_ids:
            number = self._numbers.get(request_id)
            if number is not None:
                outputs = self._outputs[number]
                self._forget(request_id, number)
                outputs.put_nowait(EngineOutput(None, "abort"))
                numbers.append(number)
        if numbers:
            self._channel.send(["abort", numbers])

    async def statistics(self, timeout: float = 1.0) -> EngineStatistics:
        """Ask the engine. While it loads there is no answer: TimeoutError after timeout seconds."""
        self._attach()
        number = self._next_number()
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._channel.send(["statistics", number])
        try:
            return await asyncio.wait_for(answer, timeout)
        finally:
            self._asked.pop(number, None)

    async def wait_until_ready(self, timeout: float) -> None:
        """Return once the engine has loaded; an owned engine that is late is ended before StartError."""
        if self._dead is None:
            self._attach()
        if not self._ready_or_dead.is_set():
            try:
                await asyncio.wait_for(self._ready_or_dead.wait(), timeout)
            except TimeoutError:
                if self._owned is not None:
                    self._owned.shutdown()
                raise StartError(f"the engine was not ready within {timeout:g} s") from None
        if self._dead is not None:
            raise StartError(self._dead if self._ready else f"{self._dead} while it was loading")

    async def warmup(self) -> None:
        """Start the warm-up unless that was done, and return when it is over."""
        if self._warmup is not None:
            self._warmup.start()
            await self._warmup.wait()

    async def reset_cache(self) -> None:
        """Wait for the warm-up if it was started, then clear the caches of the serving path."""
        if self._warmup is not None:
            await self._warmup.clear_caches()

    def shutdown(self) -> None:
        """Wait for the warm-up if it was started, hang up, and end an owned engine. Idempotent; blocks.

        Within the loop's thread, or once the loop has ended.
        """
        if self._warmup is not None:
            self._warmup.join()
        self._die("the engine client was shut down")
        self._channel.close()
        if self._owned is not None:
            self._owned.shutdown()

    def _attach(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._channel.attach(loop, self._receive, self._lose)
        elif self._loop is not loop:
            raise RuntimeError(
                "the engine client belongs to the event loop that used it first; make another"
            )

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _forget(self, request_id: str, number: int) -> bool:
        """Return whether the sample was still known to run."""
        if self._outputs.pop(number, None) is None:
            return False
        del self._numbers[request_id]
        return True

    def _receive(self, message: Message) -> None:
        match message:
            case ["output", int(number), token, finish_reason]:
                if number in self._outputs:
                    self._outputs[number].put_nowait(EngineOutput(token, finish_reason))
            case ["statistics", int(number), *counts]:
                answer = self._asked.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(EngineStatistics(*counts))
            case ["ready"]:
                self._ready = True
                self._ready_or_dead.set()

    def _lose(self, _reason: str) -> None:
        cause = "has ended" if self._owned is None else self._owned.cause_of_end()
        self._die(f"the engine {cause}")
        self._channel.close()

    def _die(self, reason: str) -> None:
        if self._dead is not None:
            return
        self._dead = reason
        self._ready_or_dead.set()
        for outputs in self._outputs.values():
            outputs.put_nowait(EngineDead(reason))
        self._outputs.clear()
        self._numbers.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineDead(reason))
        self._asked.clear()
