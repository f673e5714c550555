"""From what a client sent to a prompt: on a thread of its own, and only ever that one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

from gatecount.frontend.warmup import Step

CACHED_PROMPTS: Final = 128
CACHED_LENGTH: Final = 16 << 10
"""Characters of the longest text that is remembered.

A cache that is bounded in entries alone would keep whole prompts as its keys, of megabytes each. So it
never holds more than 128 x 16 Ki characters, which are 8 MiB if each takes four bytes.
"""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that the engine can run."""

    token_count: int


class RenderError(ValueError):
    """What the client sent is no prompt."""


class Renderer:
    """Turns texts and token lists into prompts, on the single worker of its `executor`.

    The reference tokenizer takes every word between spaces for a token. Requests are rendered one
    after another, in the order of their arrival, and warm-up steps on the same thread.
    """

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gatecount-render")
        self._count_words = lru_cache(CACHED_PROMPTS)(_count_words)

    async def render(self, prompt: object) -> Prompt:
        """Return the prompt in a text or a list of token ids; raise RenderError for anything else.

        An empty one, of no tokens, is refused too. Cancelling does not interrupt what already runs.
        """
        return await self.run(self.render_here, prompt)

    async def run(self, work: Callable[[Argument], Result], argument: Argument) -> Result:
        """Return what the work returns on the renderer's thread, after what is there already."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work, argument)

    def render_here(self, prompt: object) -> Prompt:
        """Render on the calling thread: for what already runs on the executor."""
        if isinstance(prompt, str):
            count_words = self._count_words if len(prompt) <= CACHED_LENGTH else _count_words
            count = count_words(prompt)
        elif isinstance(prompt, list):
            count = _count_ids(prompt)
        else:
            raise RenderError(f"prompt must be a text or a list of token ids, not {_kind(prompt)}")
        if count == 0:
            raise RenderError("prompt must have at least one token, but is empty")
        return Prompt(count)

    def warmup_steps(self, duration: float = 0.0) -> Sequence[Step]:
        """Return start-up work such as a real tokenizer needs; it takes `duration` seconds."""
        return (
            ("tokenizer", lambda: time.sleep(duration)),
            ("template", lambda: self.render_here("a prompt like those that will come")),
        )

    def clear_cache(self) -> None:
        """Forget the prompts that were rendered."""
        self._count_words.cache_clear()

    @property
    def cached(self) -> int:
        """How many rendered prompts are remembered."""
        return self._count_words.cache_info().currsize

    def close(self) -> None:
        """Wait for what is being rendered, drop what is not begun, and end the thread. Idempotent."""
        self.executor.shutdown(cancel_futures=True)


def _count_words(text: str) -> int:
    return len(text.split())


def _count_ids(ids: list[object]) -> int:
    for position, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise RenderError(
                "prompt must be a list of token ids, integers from 0 up, "
                f"but has {token!r:.40} at {position}"
            )
    return len(ids)


def _kind(prompt: object) -> str:
    return "nothing" if prompt is None else type(prompt).__name__
