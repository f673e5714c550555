"""Least-loaded accept by real servers: how connections are spread over them."""

from __future__ import annotations

import asyncio
import http.client
import signal
import time
from pathlib import Path

import pytest

from gatecount.frontend.accept import PATIENCE
from host.served import Served, address, in_thread, parsed, session
from host.test_serve import APP
from support import DEADLINE, wait_until


class Open:
    """Long-lived connections, opened one by one: each has been answered before the next."""

    def __init__(self, served: Served) -> None:
        self._address = address(served.url)
        self.connections: list[http.client.HTTPConnection] = []

    def one(self) -> float:
        """Open another; return the seconds until it was answered."""
        began = time.monotonic()
        connection = http.client.HTTPConnection(*self._address, timeout=DEADLINE)
        self.connections.append(connection)
        self._ask(connection, "/health")
        return time.monotonic() - began

    def counts(self) -> list[int]:
        """Return how many each server has, as one of them tells on a connection that is counted."""
        metrics = parsed(self._ask(self.connections[-1], "/metrics"))
        return sorted(int(v) for k, v in metrics.items() if k.startswith("gatecount_connections{"))

    def spread(self, window: int) -> None:
        """Open so many in a row after which all but a tenth, and the last, find all servers alike.

        Where a server does not get a processor for PATIENCE, others rightly go on without it: then it
        takes some more until it has caught up.
        """
        seen = []
        for _ in range(MANY):
            self.one()
            counts = self.counts()
            assert sum(counts) == len(self.connections)
            seen.append(counts[-1] - counts[0])
            alike = sum(difference <= 1 for difference in seen[-window:])
            if alike >= window * 0.9 and seen[-1] <= 1:
                return
        raise AssertionError(f"no {window} in a row: {seen}")

    def until_all_have_the_same(self) -> None:
        """Open as many as it takes, which is one for each if none of them is held up."""
        for _ in range(MANY):
            self.one()
            counts = self.counts()
            if counts[0] == counts[-1]:
                return
        raise AssertionError(f"never the same: {counts}")

    def _ask(self, connection: http.client.HTTPConnection, path: str) -> str:
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def __enter__(self) -> Open:
        return self

    def __exit__(self, *_error: object) -> None:
        for connection in self.connections:
            connection.close()


LIMITED = ("--workers", "4", "--limit", "1000")
MANY = 300
"""Connections that are opened at most: far more than it takes where none is held up."""


def test_connections_opened_one_by_one_are_spread_to_within_one() -> None:
    with Served(*LIMITED) as served, Open(served.until_ready()) as opened:
        opened.spread(50)


@pytest.mark.parametrize("accept", ["least-loaded", "any"])
def test_a_server_that_has_fallen_behind_catches_up_only_with_least_loaded_accept(accept: str) -> None:
    with Served(*LIMITED, "--accept", accept) as served, Open(served.until_ready()) as opened:
        behind = served.servers()[3]
        behind.suspend()
        for _ in range(30):
            opened.one()
        assert opened.counts()[0] == 0
        behind.resume()
        # The first few may still go to those who suspect it, until it has got one: all, if it does not
        # get a processor so soon. So with least-loaded accept it may be given another chance.
        for chance in range(1, 9 if accept == "least-loaded" else 2):
            for _ in range(30):
                opened.one()
            counts = opened.counts()
            assert sum(counts) == 30 + 30 * chance
            if counts[-1] - counts[0] <= 1:
                break

        if accept == "least-loaded":
            assert counts[-1] - counts[0] <= 1
        else:  # it would have to wake first of four 15 times of 30, and no more
            assert counts[-1] - counts[0] > 1


def test_with_no_cap_least_loaded_is_there_when_it_is_asked_for() -> None:
    options = ("--workers", "3", "--accept", "least-loaded")
    with Served(*options) as served, Open(served.until_ready()) as opened:
        opened.spread(30)


def counted(served: Served, count: int) -> list[float]:
    """Return how many connections each server has, once they are so many: no other is left."""

    def all_of_them() -> list[float] | None:
        counts = list(served.connections().values())
        return counts if sum(counts) == count else None

    return wait_until(all_of_them) or []


def test_websockets_are_counted_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(APP)

    async def spread(served: Served) -> None:
        async with session() as client:
            sockets = [await client.ws_connect(f"{served.url}/ws") for _ in range(16)]
            while True:
                counts = await in_thread(counted, served, len(sockets) + 1)  # and the one that asks
                if max(counts) - min(counts) <= 1:
                    break
                # One that did not get a processor for PATIENCE catches up with the next few.
                assert len(sockets) < MANY, counts
                sockets.append(await client.ws_connect(f"{served.url}/ws"))
            for one in sockets:
                await one.close()
            await in_thread(wait_until, lambda: sum(served.connections().values()) == 1)

    with Served("mine:app", *LIMITED, cwd=tmp_path) as served:
        asyncio.run(spread(served.until_ready()))


def test_a_dead_server_s_stale_load_does_not_block_the_rest_even_if_nobody_clears_it() -> None:
    with Served(*LIMITED) as served, Open(served.until_ready()) as opened:
        opened.until_all_have_the_same()
        # With the manager stopped the row stays as it is: fewer connections than anybody's, soon.
        served.process.send_signal(signal.SIGSTOP)
        victim = served.servers()[0]
        victim.kill()
        wait_until(lambda: victim.pid not in {server.pid for server in served.servers()})
        rounds = [[opened.one() for _ in range(12)] for _ in range(4)]
        served.process.send_signal(signal.SIGCONT)

        # Each of the other three waits once, for PATIENCE; it does so three times if those are unequal.
        # If all waited for the dead one again and again, they would in every round.
        assert min(sum(seconds > PATIENCE * 0.8 for seconds in times) for times in rounds) <= 6, rounds
        assert min(sum(times) for times in rounds) < 6 * PATIENCE + 4, rounds


def test_a_stopped_server_does_not_block_the_rest_and_a_lone_survivor_accepts() -> None:
    with Served(*LIMITED) as served, Open(served.until_ready()) as opened:
        opened.until_all_have_the_same()
        servers = served.servers()
        for server in servers[:3]:
            server.suspend()
        # Those that are connected to a stopped server already are not answered; new ones are.
        rounds = [[opened.one() for _ in range(10)] for _ in range(4)]
        for server in servers[:3]:
            server.resume()

        assert min(sum(seconds > PATIENCE * 0.8 for seconds in times) for times in rounds) <= 3, rounds
