"""A completion from admission to its end: every way out gives its places back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Row
from gatecount.frontend.engine import EngineRequest
from gatecount.frontend.engine_client import EngineClient
from gatecount.frontend.errors import AdmissionRefused, DuplicateRequest
from gatecount.frontend.rendering import Renderer
from gatecount.frontend.requests import RequestTable

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """One step of one sample. A sample's first has no token and says that its prefill is over."""

    index: int
    token: str | None
    finish_reason: str | None
    """None on all but a sample's last output."""


# What follows a sample puts in the queue: its outputs, then None, or what went wrong.
_Outputs = asyncio.Queue[SampleOutput | Exception | None]


class CompletionService:
    """Runs completions on the engine. For one event loop; not thread-safe."""

    def __init__(
        self,
        client: EngineClient,
        renderer: Renderer,
        admission: Admission,
        table: RequestTable,
        row: Row,
    ) -> None:
        self.client = client
        self._renderer = renderer
        self._admission = admission
        self._table = table
        self._row = row

    @property
    def max_num_queued_reqs(self) -> int | None:
        """The most samples that may be unfinished, over all servers; None if there is no such cap."""
        return self._admission.max_num_queued_reqs

    def look(self) -> None:
        """Raise AdmissionRefused, counted, if not even one sample would be admitted; reserve nothing.

        For before the request is read: who is refused here is not to be passed to `generate`, which
        would count it again.
        """
        try:
            self._admission.check_admission()
        except AdmissionRefused as refusal:
            self._row.count_refused(refusal.cap)
            raise

    async def run_aside(self, work: Callable[[Argument], Result], argument: Argument) -> Result:
        """Return what the work returns on the thread that renders, in its turn. See `Renderer.run`."""
        return await self._renderer.run(work, argument)

    async def generate(
        self, prompt: object, *, max_tokens: int, n: int, request_id: str
    ) -> AsyncGenerator[SampleOutput, None]:
        """Admit a request of n samples, run them, and yield their outputs as they come.

        The first step of the iteration admits, so nothing is held before it. Whatever ends the
        iteration gives all places back at once and aborts the samples that still run: the last
        output, an error, a cancel, closing it half-way (`contextlib.aclosing`). A place whose sample
        has finished is free even if nobody has taken that output yet.

        Raises AdmissionRefused, which is counted here, once for all n; RenderError (a ValueError);
        EngineDead; DuplicateRequest while a request of that id is unfinished; ValueError.
        """
        if self._admission.holds(request_id):
            raise DuplicateRequest(f"request {request_id!r} is unfinished: each needs an id of its own")
        followers: list[asyncio.Task[None]] = []
        try:
            samples = await self._admit(prompt, n, request_id)
            outputs: _Outputs = asyncio.Queue()  # n * max_tokens at most: a slow client stops nothing
            for index, (sample_id, prompt_tokens) in enumerate(samples):
                request = EngineRequest(sample_id, prompt_tokens, max_tokens)
                followers.append(asyncio.create_task(self._follow(index, request, outputs)))
            running = n
            while running:
                output = await outputs.get()
                if isinstance(output, Exception):
                    raise output
                if output is None:
                    running -= 1
                else:
                    yield output
        finally:
            self._end(request_id, followers)

    async def _admit(self, prompt: object, n: int, request_id: str) -> list[tuple[str, int]]:
        try:
            self._admission.check_admission(n, request_id)
            tokens = (await self._renderer.render(prompt)).token_count
            samples = self._table.add_request(request_id, n, tokens)
        except AdmissionRefused as refusal:
            self._row.count_refused(refusal.cap)
            raise
        self._row.count_admitted()
        return [(sample_id, tokens) for sample_id in samples]

    async def _follow(self, index: int, request: EngineRequest, outputs: _Outputs) -> None:
        sample_id = request.request_id
        try:
            async with aclosing(self.client.generate(request)) as stream:
                async for output in stream:
                    self._table.prefilled(sample_id)
                    if output.finish_reason is not None:
                        self._table.finish_request(sample_id)
                    outputs.put_nowait(SampleOutput(index, output.token, output.finish_reason))
        except Exception as error:  # noqa: BLE001 (it is raised where the outputs are taken)
            outputs.put_nowait(error)
        else:
            self._table.finish_request(sample_id)
            outputs.put_nowait(None)

    def _end(self, request_id: str, followers: list[asyncio.Task[None]]) -> None:
        # Nothing here awaits, so a second cancel cannot come between. The engine is told before the
        # places are free: else another server's newcomer could start beside what still runs.
        running = self._table.samples(request_id)
        try:
            if running:
                self.client.abort(running)
        finally:
            self._table.abort_requests(running)
            self._admission.release(request_id)
            for follower in followers:
                follower.cancel()
