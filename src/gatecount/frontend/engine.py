"""The reference engine: it takes time instead of thinking, and says truly how much it is running.

    submit --> waiting --> prefill --> decode --> finished
                       |                      |
                       +------- running ------+        abort: from anywhere, at once

A sample runs from the start of its prefill to its last token; at most `concurrency` run, the others
wait in the order of their arrival. A sample has left every count before its last output is told, so
a server that gives its permit back on that output never does so while the engine still counts it.

All of it belongs to one event loop; nothing here is thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

from gatecount.frontend.errors import DuplicateRequest
from gatecount.frontend.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sample to run: a request for n of them is n of these."""

    request_id: str
    prompt_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        """Refuse what no engine could run."""
        if self.prompt_tokens < 0:
            raise ValueError(f"prompt_tokens must be at least 0, not {self.prompt_tokens}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One step of a sample. The first has no token and says that the prefill is over."""

    token: str | None
    finish_reason: str | None
    """ "length" or "abort" on the last output, None on the others."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What an engine counts of itself, in samples and in prompt tokens."""

    running: int
    running_peak: int
    """The most that ever ran at one instant."""
    waiting: int
    prefill_tokens: int
    """Prompt tokens of the samples that are in their prefill, those of each sample added up."""
    prefill_tokens_peak: int


Sink = Callable[[EngineOutput], None]
"""Called with each output of one sample, in order, from the engine's loop."""


class _Sample:
    """A sample that has been taken in and has not ended."""

    __slots__ = ("decode_began", "in_prefill", "produced", "request", "sink", "timer")

    def __init__(self, request: EngineRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.timer: asyncio.TimerHandle | None = None
        self.in_prefill = False
        self.produced = 0
        self.decode_began = 0.0


class ReferenceEngine:
    """Runs samples for as long as its settings say. Made and used within one running event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._waiting: dict[str, _Sample] = {}
        self._running: dict[str, _Sample] = {}
        self._running_peak = 0
        self._prefill_tokens = 0
        self._prefill_tokens_peak = 0

    async def load(self) -> None:
        """Take as long as a model takes to load; without any effect on what may be submitted."""
        await asyncio.sleep(self._settings.load_time)

    def statistics(self) -> EngineStatistics:
        """Return the counts of this instant."""
        return EngineStatistics(
            running=len(self._running),
            running_peak=self._running_peak,
            waiting=len(self._waiting),
            prefill_tokens=self._prefill_tokens,
            prefill_tokens_peak=self._prefill_tokens_peak,
        )

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Take a sample in, and start it if fewer than `concurrency` run.

        The sink is never called from here. Raises DuplicateRequest, without an effect, while a sample
        of that id waits or runs.
        """
        if request.request_id in self._running or request.request_id in self._waiting:
            raise DuplicateRequest(f"request {request.request_id!r} is in the engine already")
        sample = _Sample(request, sink)
        if len(self._running) < self._settings.concurrency:
            self._start(sample)
        else:
            self._waiting[request.request_id] = sample

    def abort(self, request_ids: Iterable[str]) -> None:
        """End samples now, and tell their sinks "abort" before returning. Unknown ids are ignored.

        All of them have left the counts before one that waited is started in their place.
        """
        ended = []
        for request_id in request_ids:
            sample = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
            if sample is not None:
                self._leave_prefill(sample)
                if sample.timer is not None:
                    sample.timer.cancel()
                ended.append(sample)
        self._start_waiting()
        for sample in ended:
            sample.sink(EngineOutput(None, "abort"))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Submit a sample and yield its outputs; abort it if the iteration is cancelled or closed."""
        outputs: asyncio.Queue[EngineOutput] = asyncio.Queue()
        self.submit(request, outputs.put_nowait)
        ended = False
        try:
            while not ended:
                output = await outputs.get()
                ended = output.finish_reason is not None
                yield output
        finally:
            # By then the id may be another sample's.
            if not ended:
                self.abort([request.request_id])

    def _start(self, sample: _Sample) -> None:
        self._running[sample.request.request_id] = sample
        self._running_peak = max(self._running_peak, len(self._running))
        sample.in_prefill = True
        self._prefill_tokens += sample.request.prompt_tokens
        self._prefill_tokens_peak = max(self._prefill_tokens_peak, self._prefill_tokens)
        delay = self._settings.prefill_time * sample.request.prompt_tokens / 1000
        sample.timer = asyncio.get_running_loop().call_later(delay, self._end_prefill, sample)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._settings.concurrency:
            self._start(self._waiting.pop(next(iter(self._waiting))))

    def _leave_prefill(self, sample: _Sample) -> None:
        if sample.in_prefill:
            sample.in_prefill = False
            self._prefill_tokens -= sample.request.prompt_tokens

    def _end_prefill(self, sample: _Sample) -> None:
        self._leave_prefill(sample)
        sample.decode_began = asyncio.get_running_loop().time()
        self._schedule_token(sample)
        sample.sink(EngineOutput(None, None))

    def _schedule_token(self, sample: _Sample) -> None:
        # Counted from the start of the decode, so that late wake-ups do not add up.
        share = (sample.produced + 1) / sample.request.max_tokens
        due = sample.decode_began + share * self._settings.service_time
        sample.timer = asyncio.get_running_loop().call_at(due, self._produce, sample)

    def _produce(self, sample: _Sample) -> None:
        sample.produced += 1
        token = f" {sample.produced}"
        if sample.produced < sample.request.max_tokens:
            self._schedule_token(sample)
            sample.sink(EngineOutput(token, None))
            return
        del self._running[sample.request.request_id]
        self._start_waiting()
        sample.sink(EngineOutput(token, "length"))
