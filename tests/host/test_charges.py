"""Several server processes in front of clients: each request is charged once, over all of them."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import httpx
import pytest

from gatecount import AdmissionCounters
from gatecount.frontend.engine_process import EngineProcess
from gatecount.frontend.settings import EngineSettings
from host.serving import (
    LONG,
    Fleet,
    Wire,
    completion,
    metric,
    request_of,
    serve,
)
from support import DEADLINE, Crew, scaled, wait_until

# --- charged once ---------------------------------------------------------------------------------


def test_a_burst_of_300_over_four_servers_runs_exactly_166_and_all_are_freed_by_hanging_up() -> None:
    buffer = AdmissionCounters(4, limit=166)
    with Crew("spawn") as crew:
        fleet = Fleet(crew, buffer, 4, limit=166, engine=LONG)
        clients = [Wire(fleet.ports[number % 4]) for number in range(300)]
        wait_until(
            lambda: (
                fleet.total('gatecount_admitted_total{cap="requests"}')
                + fleet.total('gatecount_refused_total{cap="requests"}')
                == 300
            )
        )
        assert fleet.total('gatecount_admitted_total{cap="requests"}') == 166
        assert fleet.total("gatecount_engine_running") == 166
        assert fleet.total("gatecount_engine_running_peak") <= 166
        assert buffer.in_flight == 166
        assert metric(fleet.urls[2], 'gatecount_in_flight{cap="requests"}') == 166
        for client in clients:
            client.hang_up()
        wait_until(lambda: buffer.in_flight == 0)
        wait_until(lambda: fleet.total("gatecount_engine_running") == 0)
        assert completion(fleet.urls[0], max_tokens=1, n=128, prompt=[]).status_code == 400
        assert buffer.in_flight == 0
        fleet.end()


@pytest.mark.parametrize("engine", [EngineSettings(prefill_time=1e6)], indirect=True)
def test_what_four_servers_have_in_prefill_stops_at_the_first_prompt_that_reached_the_token_cap(
    engine: EngineProcess,
) -> None:
    buffer = AdmissionCounters(4, limit=1000, token_limit=100)
    with Crew("spawn") as crew:
        fleet = Fleet(crew, buffer, 4, engine=engine, limit=1000, token_limit=100)
        clients = [Wire(fleet.ports[number % 4], prompt=[1] * 7) for number in range(60)]
        wait_until(
            lambda: (
                fleet.total('gatecount_admitted_total{cap="tokens"}')
                + fleet.total('gatecount_refused_total{cap="tokens"}')
                == 60
            )
        )
        assert fleet.total('gatecount_admitted_total{cap="tokens"}') == 15
        assert metric(fleet.urls[0], "gatecount_engine_prefill_tokens") == 15 * 7
        assert metric(fleet.urls[1], "gatecount_engine_prefill_tokens_peak") == 15 * 7
        assert (buffer.in_flight, buffer.tokens_in_flight) == (15, 15 * 7)
        for client in clients:
            client.hang_up()
        wait_until(lambda: (buffer.in_flight, buffer.tokens_in_flight) == (0, 0))
        fleet.end()


@pytest.mark.parametrize("engine", [LONG], indirect=True)
def test_clients_that_come_and_hang_up_never_make_the_engine_run_more_than_the_limit(
    engine: EngineProcess,
) -> None:
    buffer = AdmissionCounters(4, limit=5)
    with Crew("spawn") as crew:
        fleet = Fleet(crew, buffer, 4, engine=engine, limit=5)

        async def come_and_hang_up(number: int) -> None:
            # Whoever hangs up makes room that a newcomer, mostly on another server, takes at once.
            admitted = 0
            while admitted < scaled(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", fleet.ports[number % 4])
                writer.write(request_of("/v1/completions", n=1 + number % 2, stream=True))
                admitted += b" 200 " in await reader.readline()
                writer.transport.abort()
                number += 1

        async def all_of_them() -> None:
            await asyncio.gather(*(come_and_hang_up(number) for number in range(24)))

        asyncio.run(all_of_them())
        wait_until(lambda: buffer.in_flight == 0)
        wait_until(lambda: metric(fleet.urls[0], "gatecount_engine_running") == 0)
        assert metric(fleet.urls[0], "gatecount_engine_running_peak") == 5
        assert fleet.total('gatecount_admitted_total{cap="requests"}') >= 24 * scaled(10)
        assert fleet.total('gatecount_refused_total{cap="requests"}') > 0
        fleet.end()


def test_the_engine_never_runs_more_than_the_limit_and_is_full_when_asked_enough(
    hosts: ExitStack,
) -> None:
    host, server = serve(hosts, limit=5, engine=EngineSettings(service_time=0.01))

    async def load() -> list[int]:
        limits = httpx.Limits(max_connections=30)
        async with httpx.AsyncClient(limits=limits, timeout=DEADLINE) as client:

            async def ask() -> list[int]:
                body = {"prompt": "one two", "max_tokens": 2}
                answers = [
                    await client.post(f"{server.url}/v1/completions", json=body) for _ in range(10)
                ]
                return [answer.status_code for answer in answers]

            return [
                status for each in await asyncio.gather(*(ask() for _ in range(30))) for status in each
            ]

    statuses = asyncio.run(load())
    assert set(statuses) == {200, 503}
    assert metric(server.url, "gatecount_engine_running_peak") == 5
    assert metric(server.url, 'gatecount_admitted_total{cap="requests"}') == statuses.count(200)
    assert metric(server.url, 'gatecount_refused_total{cap="requests"}') == statuses.count(503)
    assert host.is_empty()
