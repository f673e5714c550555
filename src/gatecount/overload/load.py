"""The clients: more of them than the limit, each asking again as soon as it is answered."""

import asyncio
import random
import time
from dataclasses import dataclass, field

import aiohttp

from gatecount.overload.errors import LoadFailed


@dataclass(slots=True)
class Tally:
    """What the clients were told, over some span of time."""

    refused: int = 0
    failed: int = 0
    latencies: list[float] = field(default_factory=list)
    """Seconds from sending a request to having read its answer, of those admitted."""

    @property
    def admitted(self) -> int:
        """How many requests were served."""
        return len(self.latencies)

    def percentile(self, percent: float) -> float | None:
        """Return the latency that `percent` of the admitted did not exceed, in seconds."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        rank = -(-percent * len(ordered) // 100)
        return ordered[max(0, int(rank) - 1)]


class Load:
    """`connections` clients that ask `url`, each one request at a time, until cancelled.

    A client that is served keeps its connection. One that is refused closes it, waits for `pause`
    seconds (half to one and a half times), and connects again, so that by and by every server is
    found, however the first connections fell. Requests that fail count as failed if `disturbed` is
    set, and end the load with LoadFailed if not.
    """

    def __init__(self, url: str, *, connections: int, pause: float) -> None:
        self._url = url
        self._connections = connections
        self._pause = pause
        self.tally = Tally()
        """Where answers are counted; put another in its place to begin a new span."""
        self.disturbed = False

    async def run(self) -> None:
        """Run all clients. Does not return: it is cancelled, or raises."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            clients = [asyncio.create_task(self._client(session)) for _ in range(self._connections)]
            try:
                await asyncio.gather(*clients)
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while True:
            if not await self._ask(session):
                await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))

    async def _ask(self, session: aiohttp.ClientSession) -> bool:
        """Ask once; return whether the request was served."""
        sent = time.perf_counter()
        try:
            async with session.get(self._url) as response:
                await response.read()
                if response.status == 503:
                    response.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            if not self.disturbed:
                raise LoadFailed(f"a request failed: {error or type(error).__name__}") from error
            self.tally.failed += 1
            return False
        if response.status == 503:
            self.tally.refused += 1
            return False
        if response.status != 200:
            raise LoadFailed(f"a server answered {response.status} {response.reason}")
        self.tally.latencies.append(time.perf_counter() - sent)
        return True
