"""`gatecount serve` as its own processes, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from support import DEADLINE, wait_until

READY = re.compile(r"Serving .* on (http://\S+) with .*")


class Served:
    """One `gatecount serve`, in a session of its own, so that whatever it leaves behind is found.

    Leaving the block kills what is left of it.
    """

    def __init__(
        self, *options: str, cwd: Path | None = None, port: int = 0, ignore_sigint: bool = False
    ) -> None:
        command = [sys.executable, "-m", "gatecount.cli", "serve", *options, "--port", str(port)]
        pipe = subprocess.PIPE
        # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
        handler = signal.SIG_IGN if ignore_sigint else signal.default_int_handler
        before = signal.signal(signal.SIGINT, handler)
        try:
            self.process = subprocess.Popen(
                command, cwd=cwd, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
        finally:
            signal.signal(signal.SIGINT, before)
        self.url = ""
        self.said = ""
        self.seen: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate(timeout=DEADLINE)

    def until_ready(self) -> Self:
        """Wait for the line that says where it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.match(line)
        if found is None:
            raise AssertionError(f"{line!r}, then {self.process.communicate(timeout=DEADLINE)}")
        self.said, self.url = line.strip(), found[1]
        self.living()
        return self

    def living(self) -> list[psutil.Process]:
        """Every process of the session that runs, orphans too; a zombie has ended."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) != self.process.pid:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        self.seen |= {process.pid for process in found}
        return found

    def spawned(self) -> list[psutil.Process]:
        """The engine, if there is one, and the servers, in the order of their start."""
        found = []
        for process in self.living():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "spawn_main" in " ".join(process.cmdline()):
                    found.append(process)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def engine(self) -> psutil.Process:
        return self.spawned()[0]

    def servers(self) -> list[psutil.Process]:
        """Of the reference app: all but the engine."""
        return self.spawned()[1:]

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal to the parent alone; return its exit code and the rest of what it said."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def leaves_nothing(self) -> None:
        """Find no process of it, and no name in shared memory that one of them has made."""
        wait_until(lambda: self.living() == [])
        for name in os.listdir("/dev/shm"):
            # The first number is the pid of whoever has made it; what other tests number is not.
            maker = re.search(r"[0-9]+", name)
            assert maker is None or int(maker[0]) not in self.seen, name

    def get(self, path: str) -> tuple[int, str]:
        """Ask on a connection of its own."""
        return get(self.url, path)

    def metrics(self) -> dict[str, float]:
        """Return all metrics; the engine's too, which are left out when it takes a second to answer."""

        def told() -> dict[str, float] | None:
            status, text = self.get("/metrics")
            assert status == 200
            found = parsed(text)
            whole = "gatecount_engine_running" in found or "the reference app" not in self.said
            return found if whole else None

        return wait_until(told) or {}

    def is_well(self) -> None:
        """Find that /health says so, which the engine has a second for."""
        wait_until(lambda: self.get("/health")[0] == 200)

    def connections_refused(self) -> bool:
        """Tell whether nobody accepts any more, so that a connection just waits or is refused."""
        try:
            get(self.url, "/health", timeout=1.0)
        except OSError:
            return True
        return False

    def in_flight(self) -> float:
        return self.metrics()['gatecount_in_flight{cap="requests"}']

    def peak(self) -> float:
        return self.metrics()["gatecount_engine_running_peak"]

    def connections(self) -> dict[int, float]:
        """The open connections of each server that accepts them."""
        return {
            int(key.partition('"')[2].rstrip('"}')): value
            for key, value in self.metrics().items()
            if key.startswith("gatecount_connections{")
        }


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def get(url: str, path: str, timeout: float = DEADLINE) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address(url), timeout=timeout)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def parsed(text: str) -> dict[str, float]:
    """Return Prometheus' text format as {'name{label="value"}': value}."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def completion(words: int = 1, **changed: Any) -> dict[str, Any]:
    return {"prompt": "word " * words, "max_tokens": 4, **changed}


@contextlib.asynccontextmanager
async def session(*, keep: bool = False) -> AsyncIterator[aiohttp.ClientSession]:
    """Any number of connections, each for one request unless they are kept."""
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep)
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as made:
        yield made


class Held:
    """Requests that are being served, until they are let go: their answers are streams without end."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._url = url
        self.answers: list[aiohttp.ClientResponse] = []
        self.refused = 0

    async def ask(self, times: int = 1, **changed: Any) -> list[int]:
        """Send so many requests at once; keep those that are admitted; return every status."""

        async def one() -> int:
            body = completion(stream=True, max_tokens=1000, **changed)
            answer = await self._client.post(f"{self._url}/v1/completions", json=body)
            if answer.status == 200:
                self.answers.append(answer)
            else:
                answer.close()
            return answer.status

        return list(await asyncio.gather(*(one() for _ in range(times))))

    def let_go(self) -> None:
        """Disconnect all."""
        for answer in self.answers:
            answer.close()
        self.answers.clear()


class Load:
    """Clients that ask again as soon as they are answered, and soon after a refusal.

    Each has one connection, which is its server's for good, or with keep=False another for each request.
    """

    def __init__(
        self, url: str, clients: int = 80, pause: float = 0.1, *, keep: bool = True, **changed: Any
    ) -> None:
        self._url = f"{url}/v1/completions"
        self._clients = clients
        self._pause = pause
        self._keep = keep
        self._body = completion(**changed)
        self.statuses: Counter[int] = Counter()
        self.broken = 0

    async def _client(self, client: aiohttp.ClientSession, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                async with client.post(self._url, json=self._body) as answer:
                    await answer.read()
                self.statuses[answer.status] += 1
                if answer.status == 200:
                    continue
            except aiohttp.ClientError:
                self.broken += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self._pause * random.uniform(0.5, 1.5))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Run all clients within the block; at its end they finish what they have asked."""
        over = asyncio.Event()
        async with session(keep=self._keep) as client:
            tasks = [asyncio.create_task(self._client(client, over)) for _ in range(self._clients)]
            try:
                yield client
                over.set()
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, count: int, status: int = 200) -> None:
        """Return once so many more answers had that status."""
        goal = self.statuses[status] + count
        end = time.monotonic() + DEADLINE
        while self.statuses[status] < goal:
            assert time.monotonic() < end, f"after {DEADLINE} s: {self.statuses}"
            await asyncio.sleep(0.01)


async def in_thread(function: Any, *arguments: Any) -> Any:
    """Call what blocks without blocking the clients."""
    return await asyncio.to_thread(function, *arguments)
