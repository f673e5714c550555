"""The reference engine by itself: what takes how long, what waits, and that its counts are the truth."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gatecount.frontend.engine import EngineOutput, EngineRequest, EngineStatistics, ReferenceEngine
from gatecount.frontend.errors import DuplicateRequest
from gatecount.frontend.settings import EngineSettings
from host.engines import LONG, QUICK, outputs_of, request, run

ABORTED = EngineOutput(None, "abort")


class Sink(list[EngineOutput]):
    """Collects the outputs of one sample, and what the engine counted as each was told."""

    def __init__(self, engine: ReferenceEngine) -> None:
        super().__init__()
        self.engine = engine
        self.counts: list[EngineStatistics] = []

    def __call__(self, output: EngineOutput) -> None:
        self.append(output)
        self.counts.append(self.engine.statistics())


def submit(engine: ReferenceEngine, *requests: EngineRequest) -> list[Sink]:
    sinks = [Sink(engine) for _ in requests]
    for one, sink in zip(requests, sinks, strict=True):
        engine.submit(one, sink)
    return sinks


def named(*names: str) -> list[EngineRequest]:
    return [request(name) for name in names]


def test_a_sample_tells_the_end_of_its_prefill_and_then_each_token_the_last_with_the_reason() -> None:
    outputs = run(outputs_of(ReferenceEngine(QUICK), request(tokens=3)))

    assert outputs == [
        EngineOutput(None, None),
        EngineOutput(" 1", None),
        EngineOutput(" 2", None),
        EngineOutput(" 3", "length"),
    ]


def test_prefill_takes_its_time_for_each_1000_prompt_tokens_and_tokens_share_the_service_time() -> None:
    async def times(prompt: int) -> list[float]:
        loop = asyncio.get_running_loop()
        engine = ReferenceEngine(EngineSettings(service_time=0.2, prefill_time=0.1))
        began = loop.time()
        wanted = request(prompt=prompt, tokens=4)
        return [loop.time() - began async for _ in engine.generate(wanted)]

    def last(prompt: int, prefill: float) -> float:
        first, *tokens = run(times(prompt))
        assert first >= prefill * 0.99
        for number, came in enumerate(tokens, 1):
            assert came >= prefill + 0.05 * number - 0.01
        return tokens[-1]

    for prompt, prefill in ((0, 0.0), (500, 0.05), (3000, 0.3)):
        # Always late by much only if every wait begins where the last one ended late.
        assert any(last(prompt, prefill) < prefill + 0.2 + 0.5 for _ in range(5))


def test_loading_takes_its_time() -> None:
    async def load() -> float:
        began = asyncio.get_running_loop().time()
        await ReferenceEngine(EngineSettings(load_time=0.1)).load()
        return asyncio.get_running_loop().time() - began

    assert run(load()) >= 0.099


def test_more_than_its_concurrency_wait_in_order_and_do_not_count_as_running() -> None:
    async def check() -> None:
        engine = ReferenceEngine(EngineSettings(service_time=1000.0, concurrency=2))
        a, b, c, d = submit(engine, *named("a", "b", "c", "d"))
        assert engine.statistics() == EngineStatistics(2, 2, 2, 20, 20)
        engine.abort(["b"])
        assert engine.statistics() == EngineStatistics(2, 2, 1, 20, 20)
        await asyncio.sleep(0.01)
        assert [len(sink) for sink in (a, b, c, d)] == [1, 1, 1, 0]
        assert c[0] == EngineOutput(None, None)

    run(check())


def test_a_sample_that_ends_makes_room_for_the_next_that_waits() -> None:
    async def check() -> None:
        engine = ReferenceEngine(EngineSettings(service_time=0.0, concurrency=2))
        results = await asyncio.gather(*(outputs_of(engine, one) for one in named(*"abcdefg")))
        assert [len(outputs) for outputs in results] == [4] * 7
        assert engine.statistics() == EngineStatistics(0, 2, 0, 0, 20)

    run(check())


def test_prompt_tokens_are_counted_from_the_start_of_the_prefill_to_its_end() -> None:
    async def check() -> None:
        engine = ReferenceEngine(EngineSettings(service_time=1000.0, prefill_time=10.0))
        long, short = submit(engine, request("a", prompt=10_000), request("b", prompt=1))
        assert engine.statistics().prefill_tokens == 10_001
        while not short:
            await asyncio.sleep(0)
        assert (short.counts[0].prefill_tokens, short.counts[0].running) == (10_000, 2)
        engine.abort(["a"])
        counts = engine.statistics()
        assert (counts.prefill_tokens, counts.prefill_tokens_peak, long) == (0, 10_001, [ABORTED])

    run(check())


def test_a_sample_has_left_the_counts_when_its_last_output_is_told() -> None:
    async def check() -> None:
        engine = ReferenceEngine(QUICK)
        finished, aborted = submit(engine, *named("a", "b"))
        engine.abort(["b"])
        assert aborted.counts[-1].running == 1
        while len(finished) < 4:
            await asyncio.sleep(0)
        assert finished[-1].finish_reason == "length"
        assert [counts.running for counts in finished.counts] == [1, 1, 1, 0]

    run(check())


def test_the_peak_is_the_most_that_ever_ran_at_once_and_not_what_runs_now() -> None:
    async def check() -> None:
        engine = ReferenceEngine(LONG)
        submit(engine, *named("a", "b", "c"))
        engine.abort("abc")
        submit(engine, request("d", prompt=5))
        assert engine.statistics() == EngineStatistics(1, 3, 0, 5, 30)

    run(check())


def test_of_samples_that_are_aborted_together_none_is_started_in_the_place_of_another() -> None:
    async def check() -> None:
        engine = ReferenceEngine(EngineSettings(service_time=1000.0, concurrency=1))
        sinks = submit(engine, request("a"), request("b", prompt=999), request("c", prompt=5))
        engine.abort(["a", "b", "unknown"])
        assert engine.statistics() == EngineStatistics(1, 1, 0, 5, 10)
        await asyncio.sleep(0.01)
        assert sinks == [[ABORTED], [ABORTED], [EngineOutput(None, None)]]

    run(check())


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_sample_whose_iteration_is_left_is_ended_at_once(how: str) -> None:
    async def check() -> None:
        engine = ReferenceEngine(LONG)
        if how == "cancelled":
            task = asyncio.create_task(outputs_of(engine, request()))
            await asyncio.sleep(0.01)
            assert engine.statistics().running == 1
            task.cancel()
            await asyncio.wait([task])
        else:
            async with aclosing(engine.generate(request())) as outputs:
                assert await anext(outputs) == EngineOutput(None, None)
                assert engine.statistics().running == 1
        assert engine.statistics().running == 0

    run(check())


def test_an_id_can_be_used_again_as_soon_as_its_last_output_was_told_and_not_before() -> None:
    async def check() -> None:
        engine = ReferenceEngine(EngineSettings(service_time=0.0, concurrency=1))
        submit(engine, *named("running", "waiting"))
        for used in ("running", "waiting"):
            with pytest.raises(DuplicateRequest, match=f"'{used}'"):
                engine.submit(request(used), lambda output: None)
        async with aclosing(engine.generate(request("again"))) as outputs:
            async for output in outputs:
                if output.finish_reason is not None:
                    again = submit(engine, request("again"))
        assert engine.statistics().running == 1
        assert again == [[]]

    run(check())


def test_what_no_engine_could_run_is_refused_with_its_name_and_value() -> None:
    with pytest.raises(ValueError, match="max_tokens must be at least 1, not 0"):
        EngineRequest("r", 1, 0)
    with pytest.raises(ValueError, match="prompt_tokens must be at least 0, not -1"):
        EngineRequest("r", -1, 1)
    with pytest.raises(ValueError, match="concurrency must be at least 1, not 0"):
        EngineSettings(concurrency=0)
    for name in ("service_time", "prefill_time", "load_time"):
        for value in (-0.1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match=f"{name} must be a time of 0 s or more, not {value}"):
                EngineSettings(**{name: value})  # type: ignore[arg-type]
