"""The way of a completion through its service: every way out frees its places, the engine's end too."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, aclosing
from typing import Any

import pytest

from gatecount.frontend.engine_client import InprocEngineClient
from gatecount.frontend.errors import DuplicateRequest, EngineDead, QueueOverflowError
from gatecount.frontend.mp_client import MPEngineClient
from host.engines import stopped
from host.serving import (
    LONG,
    MANY,
    SLOW,
    HeldRenderer,
    Host,
    Wire,
    completion,
    get,
    metric,
    refusal_of,
    serve,
)
from support import wait_until

# --- the service itself ---------------------------------------------------------------------------


def test_closing_or_cancelling_the_iteration_aborts_what_runs_before_it_frees_the_place() -> None:
    async def scenario(way: str) -> None:
        host = Host(limit=3, token_limit=100, engine=LONG)
        abort = host.client.abort
        held_at_abort = []

        def noted(ids: Any) -> None:
            held_at_abort.append((list(ids), host.admission.requests_in_flight))
            abort(ids)

        host.client.abort = noted  # type: ignore[method-assign]
        outputs = host.service.generate("one two", max_tokens=9, n=3, request_id="r")
        assert (await anext(outputs)).finish_reason is None
        if way == "close":
            await outputs.aclose()
        else:
            waiting = asyncio.create_task(take_all(outputs))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert held_at_abort == [(["0_r", "1_r", "2_r"], 3)]
        assert host.is_empty()
        assert (await host.client.statistics()).running == 0
        host.close()

    for way in ("close", "cancel"):
        asyncio.run(scenario(way))


async def take_all(outputs: Any) -> list[Any]:
    return [output async for output in outputs]


@pytest.mark.parametrize("used", ["r", "0_r", "1_r"])
def test_an_id_in_use_is_refused_and_its_owner_goes_on(used: str) -> None:
    async def scenario() -> None:
        host = Host(limit=4, engine=LONG)
        first = host.service.generate("one", max_tokens=2, n=2, request_id="r")
        await anext(first)
        second = host.service.generate("one", max_tokens=2, n=1, request_id=used)
        with pytest.raises(DuplicateRequest):
            await anext(second)
        assert host.table.samples("r") == ["0_r", "1_r"]
        assert host.admission.requests_in_flight == 2
        assert (await host.client.statistics()).running == 2
        await first.aclose()
        assert host.is_empty()
        host.close()

    asyncio.run(scenario())


def test_a_sample_whose_stream_ends_without_a_last_word_frees_its_own_place() -> None:
    class Curt(InprocEngineClient):
        async def generate(self, request: Any) -> Any:
            async with aclosing(super().generate(request)) as outputs:
                async for output in outputs:
                    yield output
                    if request.request_id.startswith("0_"):
                        return

    async def scenario() -> None:
        host = Host(limit=2, engine=Curt(LONG))
        outputs = host.service.generate("one", max_tokens=2, n=2, request_id="r")
        assert {(await anext(outputs)).index, (await anext(outputs)).index} == {0, 1}
        # Whoever waits for the next output lets the end of that stream be noticed.
        waiting = asyncio.ensure_future(anext(outputs))
        while host.admission.requests_in_flight == 2:
            await asyncio.sleep(0)
        assert host.table.samples("r") == ["1_r"]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert host.is_empty()
        host.close()

    asyncio.run(scenario())


def test_an_engine_that_fails_one_sample_ends_the_others_too() -> None:
    class Failing(InprocEngineClient):
        async def generate(self, request: Any) -> Any:
            async for output in super().generate(request):
                if request.request_id.startswith("1_"):
                    raise EngineDead("the engine has ended")
                yield output

    async def scenario() -> None:
        host = Host(limit=3, engine=Failing(LONG))
        with pytest.raises(EngineDead):
            await take_all(host.service.generate("one", max_tokens=2, n=3, request_id="r"))
        assert host.is_empty()
        assert (await host.client.statistics()).running == 0
        host.close()

    asyncio.run(scenario())


def test_nothing_is_held_before_the_first_step() -> None:
    async def scenario() -> None:
        host = Host(limit=1)
        outputs = host.service.generate("one", max_tokens=1, n=1, request_id="r")
        assert host.is_empty()
        await outputs.aclose()
        assert host.is_empty()
        host.close()

    asyncio.run(scenario())


def test_a_look_that_finds_no_room_is_counted_and_holds_nothing() -> None:
    host = Host(limit=1, token_limit=1)
    host.service.look()
    assert host.is_empty()
    host.admission.check_admission(1, "other")
    with pytest.raises(QueueOverflowError):
        host.service.look()
    assert (host.row.refused("requests"), host.row.refused("tokens")) == (1, 0)
    host.admission.release("other")
    assert host.is_empty()
    host.close()


# --- the engine's end -----------------------------------------------------------------------------


def test_when_the_engine_is_killed_everybody_is_told_and_everything_is_freed(hosts: ExitStack) -> None:
    client = MPEngineClient(SLOW)
    hosts.callback(client.shutdown)
    host, server = serve(hosts, limit=9, token_limit=100, engine=client)
    with (
        Wire(server.port, max_tokens=MANY, n=3, stream=True) as streaming,
        Wire(server.port, max_tokens=MANY, n=3) as waiting,
    ):
        streaming.read_until(b"data: ")
        wait_until(lambda: metric(server.url, "gatecount_engine_running") == 6)
        wait_until(lambda: get(server.url, "/health").json() == {"status": "ok"})
        assert client._owned is not None
        os.kill(client._owned.pid, signal.SIGKILL)
        last = streaming.read_until(b'"code"')
        assert b"Internal Server Error" in last
        assert b"[DONE]" not in last
        assert b" 500 Internal Server Error\r\n" in waiting.read_until(b"\r\n\r\n")
    wait_until(host.is_empty)
    assert "the engine" in refusal_of(completion(server.url), 500)
    assert "the engine" in refusal_of(completion(server.url, stream=True), 500)
    refusal_of(get(server.url, "/health"), 503)
    text = get(server.url, "/metrics").text
    assert 'gatecount_in_flight{cap="requests"} 0.0' in text
    assert "gatecount_engine" not in text
    assert host.is_empty()


def test_health_says_so_while_the_engine_does_not_answer(hosts: ExitStack) -> None:
    client = MPEngineClient(SLOW)
    hosts.callback(client.shutdown)
    _host, server = serve(hosts, limit=9, engine=client)
    wait_until(lambda: get(server.url, "/health").status_code == 200)
    assert client._owned is not None
    with stopped(client._owned):
        message = refusal_of(get(server.url, "/health"), 503)
        assert message == "The engine does not answer."
    wait_until(lambda: get(server.url, "/health").json() == {"status": "ok"})


def test_when_the_engine_dies_between_the_two_tests_the_reservation_comes_back(hosts: ExitStack) -> None:
    renderer = HeldRenderer()
    host, server = serve(hosts, limit=3, renderer=renderer)
    with Wire(server.port, n=3) as client:
        wait_until(lambda: renderer.rendering)
        server.call(host.client.shutdown)
        renderer.let_go.set()
        assert b" 500 " in client.read_until(b"\r\n\r\n")
    wait_until(host.is_empty)
