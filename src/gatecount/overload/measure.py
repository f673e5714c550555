"""One run against one fleet: load, count, kill a server in mid-load, see how the others go on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from gatecount.overload.errors import LoadFailed, ServerDied
from gatecount.overload.fleet import Fleet
from gatecount.overload.load import Load, Tally
from gatecount.overload.settings import Mode, Settings
from gatecount.overload.witness import Witness

SAMPLE_EVERY: Final = 0.004
POLL_EVERY: Final = 0.001
GRACE: Final = 0.5

Notify = Callable[[str, int], None]
"""Called with what is going on and the requests running now, some hundred times a second."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has shown. Times are in seconds; `at` counts from the start of the load."""

    tally: Tally
    """What the clients were told while all servers lived."""
    failed: int
    """Requests that went down with the killed server."""
    mean: float
    """Requests running, averaged over the time while all servers lived."""
    samples: tuple[tuple[float, int], ...]
    """(at, requests running), from start to end."""
    killed_at: float
    held_by_killed: int
    """Requests that the killed server was running when it died."""
    recovery: float | None
    """From the SIGKILL until the others ran as many as the limit allows; None if they never did."""


class Measurement:
    """A run in `mode` against `fleet`, which serves on `url` and counts in `witness`."""

    def __init__(
        self,
        mode: Mode,
        settings: Settings,
        *,
        fleet: Fleet,
        witness: Witness,
        url: str,
        notify: Notify,
    ) -> None:
        self._mode = mode
        self._settings = settings
        self._fleet = fleet
        self._witness = witness
        self._notify = notify
        self._load = Load(url, connections=settings.connections, pause=settings.pause)
        self._samples: list[tuple[float, int]] = []
        self._phase = ""
        self._victim: int | None = None
        self._victim_ended = asyncio.Event()

    async def run(self) -> Measured:
        """Carry it out. Raises ServerDied or LoadFailed if something fails that was left alone."""
        self._began = time.monotonic()
        script = asyncio.create_task(self._script())
        load = asyncio.create_task(self._load.run())
        death = self._watch_servers()
        sampling = asyncio.create_task(self._sample())
        tasks: list[asyncio.Future[Any]] = [script, load, death, sampling]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                # When a server dies its clients may notice first. Its death is the better answer.
                await asyncio.wait([death], timeout=GRACE)
            for task in (death, load, sampling):
                if task.done():
                    task.result()
            return await script
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _script(self) -> Measured:
        settings, load = self._settings, self._load
        self._turn_to("filling up")
        await self._until(self._full, 1.0)
        if await self._until(lambda: self._witness.peak or None, settings.patience) is None:
            raise LoadFailed("no request has reached a server")

        self._turn_to("under load")
        load.tally = before = Tally()
        first = self._now()
        await asyncio.sleep(settings.duration)
        last = self._now()

        self._turn_to("one server killed")
        load.tally = after = Tally()
        killed_at, held, recovery = await self._kill()
        self._turn_to("the others go on")
        await asyncio.sleep(settings.aftermath)

        return Measured(
            tally=before,
            failed=after.failed,
            mean=mean_between(self._samples, first, last),
            samples=tuple(self._samples),
            killed_at=killed_at,
            held_by_killed=held,
            recovery=recovery,
        )

    def _turn_to(self, phase: str) -> None:
        self._phase = phase
        self._notify(phase, self._witness.look().running)

    async def _kill(self) -> tuple[float, int, float | None]:
        """Kill a server. Return when (since the start), what it ran, and the recovery."""
        settings = self._settings
        victim = await self._until(self._mark_victim, settings.patience)
        if victim is None:
            raise LoadFailed(f"no server ran a request within {settings.patience:g} s")
        self._load.disturbed = True
        killed_ns = time.monotonic_ns()
        self._fleet.kill(victim)
        killed_at = self._now()

        await self._victim_ended.wait()
        held = self._witness.look().lanes[victim]
        if self._mode == "off":
            # What the dead process counted died with it: there is nothing that its places could
            # come back to.
            return killed_at, held, None
        patience = settings.patience + 2 * settings.service_time
        full_again = await self._until(lambda: self._witness.full_again_at, patience)
        return killed_at, held, None if full_again is None else (full_again - killed_ns) / 1e9

    def _mark_victim(self) -> int | None:
        """Choose the server to be killed, if this is a good instant for it.

        It must run something, or its death would free nothing. Where the capacity is shared, the
        others must not fill it by themselves at that instant, which they can while an approximate
        limit is exceeded.
        """
        seen = self._witness.look()
        victim = seen.busiest
        held = seen.lanes[victim]
        if held == 0:
            return None
        if self._mode != "off" and seen.running - held >= self._settings.limit:
            return None
        if not self._witness.mark_dead(seen, victim):
            return None
        self._victim = victim
        return victim

    def _full(self) -> int | None:
        """Return how much runs, if no server could admit more."""
        places = self._settings.limit * (self._settings.servers if self._mode == "off" else 1)
        running = self._witness.look().running
        return running if running >= places else None

    async def _until(self, look: Callable[[], int | None], seconds: float) -> int | None:
        """Return what `look` finds, as soon as it finds anything. None after `seconds`."""
        deadline = time.monotonic() + seconds
        while (found := look()) is None and time.monotonic() < deadline:
            await asyncio.sleep(POLL_EVERY)
        return found

    async def _sample(self) -> None:
        while True:
            running = self._witness.look().running
            self._samples.append((self._now(), running))
            self._notify(self._phase, running)
            await asyncio.sleep(SAMPLE_EVERY)

    def _watch_servers(self) -> asyncio.Future[object]:
        """Return a future that fails as soon as a server ends which was not killed on purpose."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def ended(index: int, sentinel: int) -> None:
            loop.remove_reader(sentinel)
            if index == self._victim:
                self._victim_ended.set()
            elif not future.done():
                code = self._fleet.exitcode(index)
                future.set_exception(ServerDied(index, code, "under load"))

        for index in range(self._settings.servers):
            sentinel = self._fleet.sentinel(index)
            loop.add_reader(sentinel, ended, index, sentinel)
        return future

    def _now(self) -> float:
        return time.monotonic() - self._began


def mean_between(samples: list[tuple[float, int]], first: float, last: float) -> float:
    """Return the mean of `samples` from `first` to `last`, weighted by time; 0.0 without any."""
    weight = total = 0.0
    for (at, value), (until, _) in pairwise(samples):
        span = min(until, last) - max(at, first)
        if span > 0:
            weight += span
            total += span * value
    return total / weight if weight else 0.0
