"""What a server knows of the engine, wherever that runs, and the client of one in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from gatecount.frontend.engine import EngineOutput, EngineRequest, EngineStatistics, ReferenceEngine
from gatecount.frontend.errors import DuplicateRequest, EngineDead, StartError
from gatecount.frontend.settings import EngineSettings
from gatecount.frontend.warmup import Step, clear_caches, run_steps


class EngineClient(Protocol):
    """The engine, as a server sees it. For one event loop; not thread-safe."""

    @property
    def is_alive(self) -> bool:
        """Whether requests can still be served."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """Run one sample and yield its outputs: the first when its prefill is over, then its tokens.

        The last output has a finish_reason. The sample starts with the first step of the iteration,
        and is aborted in the engine at once when the iteration is cancelled or closed; so close what
        is left half-way (`contextlib.aclosing`). Raises EngineDead, or DuplicateRequest while a
        request of that id runs.
        """

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these samples now: each yields a last output "abort". Ids that do not run are ignored."""

    async def statistics(self, timeout: float = 1.0) -> EngineStatistics:
        """Return what the engine counts of itself, over all servers.

        Raises TimeoutError if it does not answer within timeout seconds, or EngineDead.
        """

    async def wait_until_ready(self, timeout: float) -> None:
        """Return once the engine has loaded.

        Raises StartError, with one clear line, if it ends before that or takes over timeout seconds.
        """

    async def warmup(self) -> None:
        """Return once the start-up work has been done, by whoever started it."""

    async def reset_cache(self) -> None:
        """Wait for start-up work that runs, then clear the caches of the serving path."""

    def shutdown(self) -> None:
        """Wait for start-up work that runs, then let go of the engine. Idempotent; blocks.

        Pending and later requests raise EngineDead.
        """


class InprocEngineClient:
    """A reference engine in the loop that uses it: one process, nothing to wait for but its loading.

    There is no fork to wait for, so it takes no `BackgroundWarmup` (TypeError): `warmup()` runs the
    steps inline, on the thread that calls it, and at most once; then it clears the caches with
    `clear`. Loading begins with the first request, or the first `wait_until_ready`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        warmup_steps: Sequence[Step] = (),
        clear: Sequence[Callable[[], object]] = (),
        warmup: None = None,
    ) -> None:
        if warmup is not None:
            raise TypeError(
                "an in-process engine has no fork to wait for and takes no warmup object: "
                "pass warmup_steps, which warmup() runs inline"
            )
        self._engine = ReferenceEngine(settings)
        self._steps = tuple(warmup_steps)
        self._clear = tuple(clear)
        self._loading: asyncio.Task[None] | None = None
        self._ready_or_ended = asyncio.Event()
        self._ended: str | None = None
        self._count = 0
        # Not by their ids: one may be used again before whoever follows its last use has seen the end.
        self._keys: dict[str, str] = {}

    @property
    def is_alive(self) -> bool:
        """Whether it has not been shut down."""
        return self._ended is None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineOutput, None]:
        """See `EngineClient.generate`."""
        self._begin_loading()
        if request.request_id in self._keys:
            raise DuplicateRequest(f"request {request.request_id!r} runs already")
        self._count += 1
        key = f"{self._count}/{request.request_id}"
        self._keys[request.request_id] = key
        try:
            await self._ready_or_ended.wait()
            self._check()
            if self._keys.get(request.request_id) != key:  # aborted meanwhile
                yield EngineOutput(None, "abort")
                return
            async with aclosing(self._engine.generate(replace(request, request_id=key))) as outputs:
                async for output in outputs:
                    self._check()
                    if output.finish_reason is not None:
                        self._forget(request.request_id, key)
                    yield output
        finally:
            self._forget(request.request_id, key)

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `EngineClient.abort`."""
        keys = [self._keys.pop(request_id, None) for request_id in request_ids]
        self._engine.abort(key for key in keys if key is not None)

    async def statistics(self, timeout: float = 1.0) -> EngineStatistics:
        """Return what the engine counts of itself, at once; raise EngineDead after a shutdown."""
        self._check()
        return self._engine.statistics()

    async def wait_until_ready(self, timeout: float) -> None:
        """See `EngineClient.wait_until_ready`."""
        if self._ended is not None:
            raise StartError(self._ended)
        self._begin_loading()
        if self._ready_or_ended.is_set():
            return
        try:
            await asyncio.wait_for(self._ready_or_ended.wait(), timeout)
        except TimeoutError:
            raise StartError(f"the engine was not ready within {timeout:g} s") from None
        if self._ended is not None:
            raise StartError(f"{self._ended} while it was loading")

    async def warmup(self) -> None:
        """Run the steps here and now, unless that was done before."""
        steps, self._steps = self._steps, ()
        run_steps(steps, self._clear)

    async def reset_cache(self) -> None:
        """Clear the caches of the serving path."""
        clear_caches(self._clear)

    def shutdown(self) -> None:
        """End every sample, and the loading. Idempotent; in the loop's thread."""
        self._ended = self._ended or "the engine was shut down"
        self._ready_or_ended.set()
        if self._loading is not None:
            self._loading.cancel()
        self.abort(tuple(self._keys))

    def _forget(self, request_id: str, key: str) -> None:
        if self._keys.get(request_id) == key:
            del self._keys[request_id]

    def _check(self) -> None:
        if self._ended is not None:
            raise EngineDead(self._ended)

    def _begin_loading(self) -> None:
        self._check()
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        await self._engine.load()
        self._ready_or_ended.set()
