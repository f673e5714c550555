"""Forks and the warm-up's thread: in the wrong order a start hangs, in this host's order it cannot."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from gatecount.frontend.engine import ReferenceEngine
from gatecount.frontend.engine_process import StartMethod
from gatecount.frontend.errors import StartError
from gatecount.frontend.mp_client import MPEngineClient
from gatecount.frontend.rendering import Renderer
from gatecount.frontend.settings import EngineSettings
from gatecount.frontend.warmup import BackgroundWarmup
from host.engines import ENGINE_START_METHODS, QUICK, outputs_of, request, run
from support import DEADLINE, scaled, wait_until

# Of a parent that forks beside a thread, newer Pythons say that it should not. That is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

HANGS_FOR = 1.0
"""Seconds a start is given that hangs; one that does not takes a hundredth of it."""

STARTS = int(os.environ.get("GATECOUNT_TEST_STARTS", "5"))
"""How often a host is started and stopped with each start method; 200 in the heavier checks."""

LIBRARY = threading.Lock()
"""Such as a library has that is used by the warm-up as well as by an engine that loads."""


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


class Hold:
    """A warm-up step that holds the library's lock until it is told to let go."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        with LIBRARY:
            self.held.set()
            assert self.may_end.wait(DEADLINE)


@pytest.fixture
def loading_uses_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines enter the library while they load; a forked one knows of it."""

    async def load(engine: ReferenceEngine) -> None:
        with LIBRARY:
            pass

    monkeypatch.setattr(ReferenceEngine, "load", load)


@pytest.mark.usefixtures("loading_uses_the_library")
def test_a_fork_beside_a_warm_up_that_holds_a_lock_hangs_and_this_hosts_order_does_not(
    renderer: Renderer,
) -> None:
    wrong = Hold()
    warmup = BackgroundWarmup([("library", wrong)], renderer.executor)
    warmup.start()
    assert wrong.held.wait(DEADLINE)
    client = MPEngineClient(QUICK, start_method="fork")
    # The thread here lets go, which helps the copy of its lock in the child as little as anything will.
    wrong.may_end.set()
    assert warmup.join(DEADLINE)
    with pytest.raises(StartError, match="not ready within 1 s"):
        run(client.wait_until_ready(HANGS_FOR))
    client.shutdown()

    right = Hold()
    warmup = BackgroundWarmup([("library", right)], renderer.executor)
    client = MPEngineClient(QUICK, start_method="fork", warmup=warmup)
    assert right.held.wait(DEADLINE)
    run(client.wait_until_ready(DEADLINE))  # ready although the lock is held here, now
    right.may_end.set()
    client.shutdown()


@pytest.mark.parametrize("method", ENGINE_START_METHODS)
def test_the_warm_up_starts_only_once_the_engines_process_exists(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, method: StartMethod
) -> None:
    order: list[str] = []
    plain = BackgroundWarmup.start

    def start(warmup: BackgroundWarmup) -> None:
        order.append("warm-up")
        plain(warmup)

    class Started(MPEngineClient):
        """Notes when it learns of the process."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_owned" and value is not None:
                order.append("process" if value.is_alive else "no process")  # type: ignore[attr-defined]

    monkeypatch.setattr(BackgroundWarmup, "start", start)
    warmup = BackgroundWarmup([("step", lambda: order.append("step"))], renderer.executor)
    client = Started(QUICK, start_method=method, warmup=warmup)
    assert warmup.join(DEADLINE)
    client.shutdown()
    assert order == ["process", "warm-up", "step"]


@pytest.mark.timeout(60 + 3 * STARTS)
@pytest.mark.usefixtures("loading_uses_the_library")  # where it is forked
@pytest.mark.parametrize("method", ENGINE_START_METHODS)
def test_many_starts_and_stops_without_a_hang(method: StartMethod) -> None:
    for number in range(scaled(STARTS)):
        renderer = Renderer()
        taking = Hold()
        warmup = BackgroundWarmup([("library", taking)], renderer.executor, [renderer.clear_cache])
        client = MPEngineClient(QUICK, start_method=method, warmup=warmup)
        taking.may_end.set()

        async def serve(client: MPEngineClient = client, number: int = number) -> None:
            # Stopped at each stage in turn: while it loads, when it is ready, after a request.
            if number % 3 > 0:
                await client.wait_until_ready(DEADLINE)
                await client.warmup()
            if number % 3 > 1:
                assert len(await outputs_of(client, request(tokens=2))) == 3

        run(serve())
        client.shutdown()
        renderer.close()
        assert taking.held.is_set()


def test_warm_up_and_loading_overlap(renderer: Renderer) -> None:
    async def ready(client: MPEngineClient) -> None:
        await client.wait_until_ready(DEADLINE)
        await client.warmup()

    def start_to_ready(load_time: float, warmup_time: float) -> float:
        began = time.monotonic()
        warmup = BackgroundWarmup([("work", lambda: time.sleep(warmup_time))], renderer.executor)
        client = MPEngineClient(EngineSettings(load_time=load_time), start_method="fork", warmup=warmup)
        run(ready(client))
        took = time.monotonic() - began
        client.shutdown()
        return took

    for load, work in ((0.8, 0.8), (0.8, 0.4), (0.4, 0.8)):
        longer, total = max(load, work), load + work
        # A busy machine may need the difference for the fork, but hardly ten times.
        took = total
        for _ in range(10):
            took = start_to_ready(load, work)
            assert took >= longer * 0.99
            if took < (longer + total) / 2:
                break
        assert took < (longer + total) / 2, f"{took:.3f} s is nearer to {total} s than to {longer} s"


def test_every_thread_of_a_warm_up_is_gone_after_the_renderer_is_closed() -> None:
    renderer = Renderer()
    warmup = BackgroundWarmup(renderer.warmup_steps(), renderer.executor)
    client = MPEngineClient(QUICK, start_method="fork", warmup=warmup)
    client.shutdown()
    renderer.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("gatecount-render")])
