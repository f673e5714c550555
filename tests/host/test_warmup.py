"""The warm-up: what it promises, sentence by sentence. What it has to do with forks: test_fork_order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

import psutil
import pytest

from gatecount.frontend.engine_client import InprocEngineClient
from gatecount.frontend.engine_process import EngineProcess
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.rendering import Prompt, Renderer
from gatecount.frontend.warmup import BackgroundWarmup, Step
from host.engines import LONG, QUICK, engine, engines, run
from support import DEADLINE, wait_until


class Diary:
    """Steps and cache clearings that note what they did, and on which thread."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.threads: set[str] = set()
        self.may_end = threading.Event()
        self.may_end.set()

    def note(self, entry: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.entries.append(entry)

    def step(self, name: str, error: BaseException | None = None) -> Step:
        def work() -> None:
            self.note(name)
            assert self.may_end.wait(DEADLINE)
            if error is not None:
                raise error

        return name, work

    def clearing(self, name: str, error: Exception | None = None) -> Callable[[], None]:
        def clear() -> None:
            self.note(name)
            if error is not None:
                raise error

        return clear

    def hold(self) -> None:
        """Let no step end until `may_end` is set."""
        self.may_end.clear()


@pytest.fixture
def diary() -> Iterator[Diary]:
    made = Diary()
    yield made
    made.may_end.set()


@pytest.fixture
def renderer(diary: Diary) -> Iterator[Renderer]:
    made = Renderer()
    yield made
    diary.may_end.set()
    made.close()


@pytest.fixture(scope="module")
def process() -> Iterator[EngineProcess]:
    with engine(QUICK) as started:
        yield started


class Counted(Executor):
    """Passes on to an executor, and counts what it was given."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.submitted = 0

    def submit(self, *arguments: object, **keywords: object) -> Future[object]:  # type: ignore[override]
        self.submitted += 1
        return self.executor.submit(*arguments, **keywords)  # type: ignore[arg-type]


def test_steps_run_in_their_order_and_the_caches_are_cleared_after_the_last(
    diary: Diary, renderer: Renderer
) -> None:
    steps = [diary.step("template"), diary.step("preprocessor"), diary.step("tokens")]
    warmup = BackgroundWarmup(
        steps, renderer.executor, [diary.clearing("clear 1"), diary.clearing("clear 2")]
    )
    assert diary.entries == []
    warmup.start()
    assert warmup.join()
    assert diary.entries == ["template", "preprocessor", "tokens", "clear 1", "clear 2"]


def test_steps_run_on_the_executor_and_the_thread_on_which_requests_are_rendered(
    diary: Diary, renderer: Renderer
) -> None:
    counted = Counted(renderer.executor)
    warmup = BackgroundWarmup([diary.step("a"), diary.step("b")], counted, [diary.clearing("clear")])
    warmup.start()
    warmup.join()
    assert counted.submitted == 1
    rendered_on: list[str] = []
    renderer.render_here = lambda prompt: (  # type: ignore[method-assign]
        rendered_on.append(threading.current_thread().name) or Prompt(1)
    )
    run(renderer.render("a prompt"))
    assert diary.threads == set(rendered_on)
    assert threading.current_thread().name not in diary.threads


def test_no_request_is_rendered_beside_a_step(diary: Diary, renderer: Renderer) -> None:
    async def check() -> None:
        warmup = BackgroundWarmup(
            [diary.step("a"), diary.step("b")], renderer.executor, [diary.clearing("clear")]
        )
        diary.hold()
        warmup.start()
        rendering = asyncio.create_task(renderer.render("two words"))
        rendering.add_done_callback(lambda _: diary.note("rendered"))
        while diary.entries != ["a"]:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert not rendering.done()
        diary.may_end.set()
        assert await rendering == Prompt(2)
        await asyncio.sleep(0)
        assert diary.entries == ["a", "b", "clear", "rendered"]

    run(check())


def test_it_runs_at_most_once_whoever_starts_it_and_however_many_do_at_once(
    diary: Diary, renderer: Renderer, process: EngineProcess
) -> None:
    warmup = BackgroundWarmup([diary.step("a")], renderer.executor, [diary.clearing("clear")])
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait(DEADLINE)
        warmup.start()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    client = MPEngineClient(process, warmup=warmup)
    run(client.warmup())
    run(client.warmup())
    client.shutdown()
    warmup.start()
    assert warmup.join()
    assert diary.entries == ["a", "clear"]


def test_whoever_makes_a_client_starts_the_warm_up_and_need_not_ask_for_it(
    diary: Diary, renderer: Renderer, process: EngineProcess
) -> None:
    warmup = BackgroundWarmup([diary.step("a")], renderer.executor)
    with process.connect() as connection:
        client = MPEngineClient(connection.dup(), warmup=warmup)
        wait_until(lambda: diary.entries == ["a"])
        client.shutdown()


@pytest.mark.parametrize("asked", ["reset_cache", "warmup"])
def test_the_first_of_reset_cache_and_warmup_waits_for_it_and_the_loop_goes_on(
    diary: Diary, renderer: Renderer, process: EngineProcess, asked: str
) -> None:
    async def check(client: MPEngineClient) -> None:
        joining = asyncio.create_task(getattr(client, asked)())
        for _ in range(3):
            await client.statistics(DEADLINE)
        assert not joining.done()
        assert diary.entries == ["a"]
        diary.may_end.set()
        await joining
        cleared_again = ["clear"] if asked == "reset_cache" else []
        assert diary.entries == ["a", "b", "clear", *cleared_again]

    diary.hold()
    warmup = BackgroundWarmup(
        [diary.step("a"), diary.step("b")], renderer.executor, [diary.clearing("clear")]
    )
    client = MPEngineClient(process, warmup=warmup)
    wait_until(lambda: diary.entries == ["a"])
    run(check(client))
    client.shutdown()


def test_a_shutdown_waits_for_it_and_only_then_hangs_up(
    diary: Diary, renderer: Renderer, process: EngineProcess
) -> None:
    diary.hold()
    warmup = BackgroundWarmup(
        [diary.step("a"), diary.step("b")], renderer.executor, [diary.clearing("clear")]
    )
    client = MPEngineClient(process, warmup=warmup)
    ending = threading.Thread(target=client.shutdown)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    assert client.is_alive
    diary.may_end.set()
    ending.join(DEADLINE)
    assert not client.is_alive
    assert diary.entries == ["a", "b", "clear"]


def test_a_wait_that_is_cancelled_leaves_it_running_for_the_next_that_waits(
    diary: Diary, renderer: Renderer
) -> None:
    async def check(warmup: BackgroundWarmup) -> None:
        waiting = asyncio.create_task(warmup.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        diary.may_end.set()
        await warmup.wait()

    diary.hold()
    warmup = BackgroundWarmup([diary.step("a"), diary.step("b")], renderer.executor)
    warmup.start()
    assert not warmup.join(timeout=0.01)
    run(check(warmup))
    assert diary.entries == ["a", "b"]


def test_a_failing_step_or_clearing_is_logged_and_the_next_one_runs(
    diary: Diary, renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [
        diary.step("broken", ValueError("no such template")),
        diary.step("leaving", SystemExit(3)),
        diary.step("sound"),
    ]
    clear = [diary.clearing("clear 1", OSError("no such cache")), diary.clearing("clear 2")]
    warmup = BackgroundWarmup(steps, renderer.executor, clear)
    with caplog.at_level(logging.ERROR):
        warmup.start()
        assert warmup.join()
    assert diary.entries == ["broken", "leaving", "sound", "clear 1", "clear 2"]
    assert [record.getMessage() for record in caplog.records] == [
        "warm-up step 'broken' failed",
        "warm-up step 'leaving' failed",
        "clearing a cache failed",
    ]
    for text in ("no such template", "SystemExit: 3", "no such cache"):
        assert text in caplog.text


def test_with_nothing_to_warm_it_does_nothing_and_starts_no_thread(
    diary: Diary, renderer: Renderer, process: EngineProcess
) -> None:
    threads = set(threading.enumerate())
    counted = Counted(renderer.executor)
    warmup = BackgroundWarmup([], counted, [diary.clearing("clear")])
    client = MPEngineClient(process, warmup=warmup)
    run(client.warmup())
    client.shutdown()
    assert warmup.join()
    assert (diary.entries, counted.submitted) == ([], 0)
    assert set(threading.enumerate()) <= threads


def test_what_was_never_started_is_not_waited_for(diary: Diary, renderer: Renderer) -> None:
    warmup = BackgroundWarmup([diary.step("a")], renderer.executor)
    assert warmup.join()
    run(warmup.wait())
    assert diary.entries == []


def test_a_step_that_waits_for_the_warm_up_is_told_that_it_would_wait_for_ever(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    warmup: BackgroundWarmup

    def join() -> None:
        warmup.join()

    warmup = BackgroundWarmup([("join", join)], renderer.executor)
    warmup.start()
    assert warmup.join(DEADLINE)
    assert "it would wait for ever" in caplog.text


def test_an_executor_that_was_shut_down_is_an_error_and_leaves_no_engine_behind(
    diary: Diary, renderer: Renderer
) -> None:
    renderer.close()
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="shutdown") as refused:
        MPEngineClient(LONG, warmup=BackgroundWarmup([diary.step("a")], renderer.executor))
    assert refused.tb is not None  # which keeps all that was made: nothing is ended by being collected
    assert engines(before) == []
    assert diary.entries == []


def test_work_dropped_by_a_shutdown_of_the_executor_is_not_waited_for(
    diary: Diary, renderer: Renderer
) -> None:
    diary.hold()
    first = BackgroundWarmup([diary.step("a")], renderer.executor)
    dropped = BackgroundWarmup([diary.step("b")], renderer.executor)
    first.start()
    dropped.start()
    wait_until(lambda: diary.entries == ["a"])  # or it would be dropped, too
    renderer.executor.shutdown(wait=False, cancel_futures=True)
    diary.may_end.set()
    assert dropped.join()
    run(dropped.wait())
    assert first.join()
    assert diary.entries == ["a"]


def test_the_in_process_client_runs_the_steps_inline_on_the_callers_thread_and_once(
    diary: Diary,
) -> None:
    client = InprocEngineClient(
        QUICK,
        warmup_steps=[diary.step("a", ValueError("logged")), diary.step("b")],
        clear=[diary.clearing("clear")],
    )
    assert diary.entries == []
    run(client.warmup())
    run(client.warmup())
    assert diary.entries == ["a", "b", "clear"]
    assert diary.threads == {threading.current_thread().name}
    run(client.reset_cache())
    assert diary.entries == ["a", "b", "clear", "clear"]


def test_the_in_process_client_takes_no_warm_up_object(diary: Diary, renderer: Renderer) -> None:
    warmup = BackgroundWarmup([diary.step("a")], renderer.executor)
    with pytest.raises(TypeError, match="has no fork to wait for and takes no warmup object"):
        InprocEngineClient(QUICK, warmup=warmup)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        InprocEngineClient(QUICK, warmup_steps=warmup)  # type: ignore[arg-type]
    assert diary.entries == []


def test_what_a_renderers_own_steps_have_cached_is_gone_after_them(renderer: Renderer) -> None:
    cached: list[int] = []
    steps = [*renderer.warmup_steps(), ("look", lambda: cached.append(renderer.cached))]
    warmup = BackgroundWarmup(steps, renderer.executor, [renderer.clear_cache])
    warmup.start()
    warmup.join()
    assert cached == [1]
    assert renderer.cached == 0
