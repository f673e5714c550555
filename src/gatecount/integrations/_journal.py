"""Log lines that a flood of requests cannot make a flood of lines."""

from __future__ import annotations

import logging
import time
from typing import Final

EVERY: Final = 10.0
"""Seconds between two lines of one kind, at least."""

logger: Final = logging.getLogger("gatecount.admission")


class Journal:
    """Says the first of each kind at once, then one per EVERY seconds, with how many it stands for.

    Safe from any thread; threads that come together may make the number a little too small.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}

    def due(self, kind: str) -> bool:
        """Tell whether a line of that kind may be said now; if not, count it."""
        next_at, left_out = self._kinds.get(kind, (0.0, 0))
        if time.monotonic() >= next_at:
            return True
        self._kinds[kind] = next_at, left_out + 1
        return False

    def say(self, level: int, kind: str, line: str, cause: BaseException | None = None) -> None:
        """Log a line that is due. cause is shown with its traceback."""
        _, left_out = self._kinds.get(kind, (0.0, 0))
        self._kinds[kind] = time.monotonic() + EVERY, 0
        if left_out:
            line = f"{line} (and {left_out} more like it since the last such line)"
        logger.log(level, "%s", line, exc_info=cause)
