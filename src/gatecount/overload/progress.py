"""What is shown, on standard error, while an experiment runs."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from gatecount.overload.experiment import ModeResult
from gatecount.overload.settings import MEANING, Mode, Settings

START_AND_STOP = 2.5
"""Seconds that starting and stopping the servers of one mode takes, roughly."""

REFRESH_EVERY = 0.1


class LineProgress:
    """A line for each new phase: for a log, a pipe, a terminal that cannot move its cursor."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._console = console
        self._settings = settings
        self._phase = ""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def begin(self, mode: Mode) -> None:
        """Say that a mode begins."""
        self._say(f"{mode}: starting {self._settings.servers} servers ({MEANING[mode]})")

    def update(self, mode: Mode, phase: str, running: int) -> None:
        """Say that a new phase has begun, and nothing if none has."""
        if phase != self._phase:
            self._phase = phase
            self._say(f"{mode}: {phase}")

    def end(self, result: ModeResult) -> None:
        """Say what was the most that ran."""
        self._phase = ""
        self._say(f"{result.mode}: done, at most {result.peak} ran")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class BarProgress:
    """A bar for each mode, with the requests running right now."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self._settings = settings
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.fields[mode]:<11}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._began = 0.0
        self._shown = 0.0

    def __enter__(self) -> Self:
        """Take over the lower end of the terminal."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the terminal back."""
        self._progress.stop()

    def begin(self, mode: Mode) -> None:
        """Begin a new bar."""
        settings = self._settings
        expected = START_AND_STOP + settings.duration + settings.aftermath
        self._began = time.monotonic()
        self._task = self._progress.add_task(
            f"starting {settings.servers} servers", total=expected, mode=mode
        )

    def update(self, mode: Mode, phase: str, running: int) -> None:
        """Move the bar on, ten times a second at most."""
        now = time.monotonic()
        if self._task is None or now - self._shown < REFRESH_EVERY:
            return
        self._shown = now
        # Never full before the mode has ended, however long it takes.
        total = self._progress.tasks[self._task].total or 0.0
        done = min(now - self._began, 0.98 * total)
        text = f"{running:3d} running · {phase}"
        self._progress.update(self._task, completed=done, description=text)

    def end(self, result: ModeResult) -> None:
        """Fill the bar, and say what was the most that ran."""
        if self._task is not None:
            total = self._progress.tasks[self._task].total
            text = f"at most {result.peak} ran"
            self._progress.update(self._task, completed=total, description=text)
            self._progress.stop_task(self._task)


def progress_for(console: Console, settings: Settings) -> LineProgress | BarProgress:
    """Return what suits `console`: bars if it can redraw a line, else plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return BarProgress(console, settings)
    return LineProgress(console, settings)
