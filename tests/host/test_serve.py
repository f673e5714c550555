"""`gatecount serve` as an operator runs it: real processes, real HTTP, the engine's own witness."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from host.served import Held, Load, Served, completion, in_thread, parsed, session
from support import wait_until

CAPPED = ("--api-server-count", "4", "--max-num-queued-reqs", "10")
ENDLESS = ("--service-time", "600000")
"""Samples that do not end within a test, unless they are let go."""

APP = """
import asyncio, os

running = 0

async def app(scope, receive, send):
    global running
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        return
    if scope["path"] == "/exit":
        os._exit(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode(), "more_body": True})
    if scope["path"] == "/hold":
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.body", "body": b""})
"""


async def under_load(
    served: Served, peak: int = 0, *, keep: bool = True
) -> tuple[Load, list[float], dict[str, float]]:
    """Put 80 clients on it until the engine has run so much; return the clients, what it ran at some
    instants, and the metrics."""
    load = Load(served.url, keep=keep)
    async with load.running():
        await load.until(30)
        await in_thread(wait_until, lambda: served.peak() >= peak)
        samples = []
        for _ in range(20):
            samples.append((await in_thread(served.metrics))["gatecount_engine_running"])
            await asyncio.sleep(0.02)
        await load.until(30)
    wait_until(lambda: served.in_flight() == 0)
    return load, samples, served.metrics()


def test_under_80_clients_hard_admission_is_full_and_never_over() -> None:
    with Served(*CAPPED, "--admission", "hard", "--service-time", "1000") as served:
        served.until_ready()
        assert served.said.endswith("with 4 servers; exact global cap of 10 requests")
        load, samples, after = asyncio.run(under_load(served, 10))

        assert after["gatecount_engine_running_peak"] == 10
        assert max(samples) == 10
        assert statistics.mean(samples) > 5
        assert load.statuses[503] > 0
        assert load.broken == 0
        assert set(load.statuses) == {200, 503}
        code, out, err = served.end()
        assert (code, err) == (0, "")
        assert out.splitlines() == ["peak running 10, limit 10: overshoot 0"]
        served.leaves_nothing()


def test_approximate_admission_says_its_overshoot_which_is_within_the_documented_bound() -> None:
    with Served(*CAPPED, "--admission", "approximate", "--service-time", "1000") as served:
        served.until_ready()
        assert served.said.endswith("with 4 servers; approximate global cap of 10 requests")
        _, _, after = asyncio.run(under_load(served, 10))

        peak = after["gatecount_engine_running_peak"]
        assert 10 <= peak <= 13
        assert after['gatecount_overshoot{cap="requests"}'] == peak - 10
        code, out, err = served.end()
        assert (code, err) == (0, "")
        bound = "documented bound: one request of each other server, 3"
        assert out.splitlines() == [
            f"peak running {peak:g}, limit 10: overshoot {peak - 10:g} ({bound})"
        ]
        served.leaves_nothing()


def test_with_admission_off_each_server_runs_ten() -> None:
    with Served(*CAPPED, "--admission", "off", "--service-time", "2000") as served:
        served.until_ready()
        assert served.said.endswith("with 4 servers; each has a cap of its own of 10 requests")
        # With connections for good, a server that was slow to accept its share would have too few.
        load, samples, after = asyncio.run(under_load(served, 40, keep=False))

        assert after["gatecount_engine_running_peak"] == 40
        assert statistics.mean(samples) > 15
        assert load.statuses[503] > 0
        assert served.end()[:2] == (0, "peak running 40, limit 10: overshoot 30\n")


def test_without_a_cap_nobody_is_refused() -> None:
    with Served("--workers", "4", "--service-time", "2000") as served:
        served.until_ready()
        assert served.said.endswith("with 4 servers; no cap")
        load, _, after = asyncio.run(under_load(served, 41))

        assert set(load.statuses) == {200}
        assert 40 < after["gatecount_engine_running_peak"] <= 80
        assert served.end()[:2] == (0, "")


def test_every_server_tells_the_numbers_of_all() -> None:
    async def told(served: Served) -> None:
        load = Load(served.url, clients=30)
        async with load.running():
            await load.until(30)
            await load.until(10, status=503)
        wait_until(lambda: served.in_flight() == 0)
        counted = served.metrics()
        assert load.broken == 0
        assert counted['gatecount_admitted_total{cap="requests"}'] == load.statuses[200] >= 30
        assert counted['gatecount_refused_total{cap="requests"}'] == load.statuses[503] >= 10
        assert counted['gatecount_refused_total{cap="tokens"}'] == 0
        assert counted['gatecount_limit{cap="requests"}'] == 10
        counters = [key for key in counted if "_total" in key or "running_peak" in key]
        async with session() as client:
            # Connections that stay open, so that the next goes to another server.
            answers = [await client.get(f"{served.url}/metrics") for _ in range(12)]
            for answer in answers:
                told = parsed(await answer.text())
                # The engine's own are missing if it took a second to answer.
                assert {key: told.get(key) for key in counters} in (
                    {key: counted[key] for key in counters},
                    {key: None if "_engine_" in key else counted[key] for key in counters},
                )

    with Served(*CAPPED) as served:
        asyncio.run(told(served.until_ready()))


def test_of_300_at_once_exactly_166_are_admitted_and_all_come_back_when_they_disconnect() -> None:
    async def burst(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            statuses = Counter(await held.ask(300))
            assert statuses == {200: 166, 503: 134}
            assert await in_thread(served.in_flight) == 166
            assert await in_thread(served.peak) == 166
            held.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)
            assert Counter(await held.ask(167)) == {200: 166, 503: 1}
            assert await in_thread(served.peak) == 166
            held.let_go()

    with Served("--workers", "4", "--limit", "166", *ENDLESS) as served:
        asyncio.run(burst(served.until_ready()))


@pytest.mark.parametrize("mode", ["hard", "approximate"])
def test_prompts_in_prefill_stop_at_the_first_admission_that_reaches_the_cap(mode: str) -> None:
    def admitted(served: Served) -> int | None:
        """Return how many were, once all have been tested and the engine has them."""
        told = served.metrics()
        count = told['gatecount_admitted_total{cap="tokens"}']
        tested = count + told['gatecount_refused_total{cap="tokens"}'] == 60
        return int(count) if tested and told["gatecount_engine_running"] == count else None

    async def burst(served: Served) -> tuple[int, float]:
        async with session() as client:
            held = Held(client, served.url)
            asking = [asyncio.create_task(held.ask(prompt="word " * 3000)) for _ in range(60)]
            count = await in_thread(wait_until, lambda: admitted(served))
            for answer in itertools.islice(asyncio.as_completed(asking), 60 - count):
                assert await answer == [503]
            assert sum(not task.done() for task in asking) == count
            for task in asking:
                task.cancel()
            return count, (await in_thread(served.metrics))["gatecount_engine_prefill_tokens_peak"]

    # 3,000 words take half an hour.
    slow = ("--prefill-time", "600000", *ENDLESS)
    with Served("--workers", "4", "--token-limit", "10000", "--mode", mode, *slow) as served:
        served.until_ready()
        assert served.said.endswith("global cap of 10,000 prompt tokens in prefill")
        count, peak = asyncio.run(burst(served))

        assert peak == count * 3000
        assert count == 4 if mode == "hard" else 4 <= count <= 4 + 3


def test_a_request_of_three_samples_is_refused_whole_and_one_that_leaves_frees_all_three() -> None:
    async def samples(served: Served) -> None:
        async with session() as client:
            one, three = Held(client, served.url), Held(client, served.url)
            assert await one.ask() == [200]
            assert await three.ask(n=3) == [503]
            metrics = await in_thread(served.metrics)
            assert metrics['gatecount_in_flight{cap="requests"}'] == 1
            assert metrics['gatecount_refused_total{cap="requests"}'] == 1
            one.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)
            assert await three.ask(n=3) == [200]
            assert await in_thread(served.in_flight) == 3
            assert await one.ask() == [503]
            three.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)
            assert await in_thread(served.peak) == 3

    with Served("--workers", "2", "--limit", "3", *ENDLESS) as served:
        asyncio.run(samples(served.until_ready()))


def test_a_refusal_says_when_to_come_again_and_health_and_metrics_answer_when_all_is_full() -> None:
    async def full(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            assert await held.ask(4) == [200] * 4
            for _ in range(4):
                async with client.post(f"{served.url}/v1/completions", json=completion()) as answer:
                    body = await answer.json()
                    assert answer.status == 503
                    assert int(answer.headers["Retry-After"]) >= 1
                    assert body["error"].pop("message")
                    assert body == {"error": {"type": "Service Unavailable", "param": None, "code": 503}}
                await in_thread(served.is_well)
                assert await in_thread(served.in_flight) == 4
            held.let_go()

    with Served("--workers", "2", "--limit", "4", *ENDLESS) as served:
        asyncio.run(full(served.until_ready()))


def shared_memory(served: Served) -> list[str]:
    """Every mapping of its processes that a counter or an array could be in."""
    found = []
    for process in served.living():
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        for line in maps.splitlines():
            name = line.rpartition("/")[2]
            if ".so" not in name and ("gatecount" in name or "pym-" in name):
                found.append(line)
    return found


@pytest.mark.parametrize(
    "options", [("--limit", "2"), ("--limit", "2", "--mode", "approximate"), ("--workers", "3")], ids=str
)
def test_a_single_server_or_no_cap_shares_no_memory(options: tuple[str, ...]) -> None:
    async def local(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            assert Counter(await held.ask(3)) == {200: 2, 503: 1}
            assert await in_thread(served.in_flight) == 2
            held.let_go()
            await in_thread(wait_until, lambda: served.in_flight() == 0)

    with Served(*options, *ENDLESS) as served:
        served.until_ready()
        assert shared_memory(served) == []
        if "--limit" in options:
            asyncio.run(local(served))


def test_several_servers_with_a_cap_do_share_memory() -> None:
    # Or the test above would find nothing whatever is there.
    with Served("--workers", "2", "--limit", "2") as served:
        assert len(shared_memory(served.until_ready())) >= 6


def test_any_asgi_app_is_served_behind_the_cap(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(APP)

    async def hold(served: Served) -> None:
        async with session() as client:
            answers = [await client.get(f"{served.url}/hold") for _ in range(8)]
            assert Counter(answer.status for answer in answers) == {200: 3, 503: 5}
            pids = {int(await answer.content.readany()) for answer in answers if answer.status == 200}
            assert len(pids) >= 2
            assert await in_thread(served.in_flight) == 3
            assert (await in_thread(served.get, "/health"))[0] == 200
            for answer in answers:
                answer.close()
            await in_thread(wait_until, lambda: served.in_flight() == 0)
            # A WebSocket holds a place like a request.
            ws = [await client.ws_connect(f"{served.url}/ws") for _ in range(3)]
            assert await in_thread(served.in_flight) == 3
            assert (await in_thread(served.get, "/short"))[0] == 503
            for one in ws:
                await one.close()
            await in_thread(wait_until, lambda: served.in_flight() == 0)
            assert (await in_thread(served.get, "/short"))[0] == 200

    with Served("mine:app", "--workers", "4", "--limit", "3", cwd=tmp_path) as served:
        served.until_ready()
        assert served.said.startswith("Serving mine:app on http://")
        assert len(served.spawned()) == 4  # and no engine
        asyncio.run(hold(served))
        assert served.end() == (0, "", "")
        served.leaves_nothing()


def test_start_up_work_and_the_engine_s_loading_overlap() -> None:
    """Start to ready is nearer to the longer of the two than to their sum."""

    def seconds(*times: str) -> float:
        with Served("--workers", "2", "--limit", "4", *times) as served:
            began = time.monotonic()
            served.until_ready()
            return time.monotonic() - began

    def nearer_to_the_longer() -> bool:
        start = seconds()  # what a start takes besides, on a machine as busy as it is
        both = seconds("--engine-load-time", "10", "--warmup-time", "10")
        return 10 <= both < 15 + start

    # One after the other they take 20 and a start, however often one tries.
    assert any(nearer_to_the_longer() for _ in range(3))


def test_sigterm_lets_running_requests_end() -> None:
    async def stream(served: Served) -> None:
        async with session() as client:
            body = completion(stream=True, max_tokens=5)
            answer = await client.post(f"{served.url}/v1/completions", json=body)
            assert answer.status == 200
            os.kill(served.process.pid, signal.SIGTERM)
            data = [line async for line in answer.content if line.strip()]
            assert data[-1].strip() == b"data: [DONE]"
            assert json.loads(data[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"]

    with Served("--workers", "2", "--limit", "2", "--service-time", "1500") as served:
        asyncio.run(stream(served.until_ready()))
        assert served.process.wait(30) == 0
        served.leaves_nothing()


def test_what_does_not_end_within_the_shutdown_timeout_is_ended() -> None:
    async def stream(served: Served) -> None:
        async with session() as client:
            held = Held(client, served.url)
            assert await held.ask(2) == [200, 200]
            os.kill(served.process.pid, signal.SIGTERM)
            await in_thread(served.process.wait, 30)
            held.let_go()

    with Served("--workers", "2", "--limit", "2", "--shutdown-timeout", "0.3", *ENDLESS) as served:
        asyncio.run(stream(served.until_ready()))
        assert served.process.returncode == 0
        assert served.process.stderr is not None
        # One line for each server that had one, and no stack traces.
        said = served.process.stderr.read().splitlines()
        cancel = r"ERROR server \d: Cancel \d running task\(s\), timeout graceful shutdown exceeded"
        assert all(re.fullmatch(cancel, line) for line in said)
        assert 1 <= len(said) <= 2
        served.leaves_nothing()
