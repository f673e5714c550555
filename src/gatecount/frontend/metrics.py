"""What /metrics says: read when it is asked for, the same from whichever server answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Board
from gatecount.frontend.engine import EngineStatistics
from gatecount.frontend.engine_client import EngineClient
from gatecount.frontend.errors import EngineDead

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
CAPS: Final = ("requests", "tokens")
HEALTH_TIMEOUT: Final = 1.0
"""Seconds that the engine has to answer in, to be well. It answers at once however much it runs."""


class Metrics:
    """The numbers of all servers, from the board and the shared counters, and the engine's own.

    Where no memory is shared (one server, no cap, admission off) they are those of the server that
    answers; the engine's are always of all. client is None where there is no engine.
    """

    def __init__(self, admission: Admission, board: Board, client: EngineClient | None = None) -> None:
        self._admission = admission
        self._board = board
        self._client = client

    async def trouble(self) -> str | None:
        """Return why no request can be served; None if there is no engine, or it answers in time."""
        if self._client is None:
            return None
        try:
            await self._client.statistics(HEALTH_TIMEOUT)
        except EngineDead:
            return "The engine is dead."
        except TimeoutError:
            return "The engine does not answer."
        return None

    async def render(self) -> bytes:
        """Return all metrics in Prometheus' text format; without the engine's if it does not answer."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(self._admission, self._board, await self._statistics()))
        return generate_latest(registry)

    async def _statistics(self) -> EngineStatistics | None:
        if self._client is None:
            return None
        try:
            return await self._client.statistics()
        except (EngineDead, TimeoutError):
            return None


class _Scrape:
    """The collector of one answer: its engine statistics had to be awaited before."""

    def __init__(self, admission: Admission, board: Board, engine: EngineStatistics | None) -> None:
        self._admission = admission
        self._board = board
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._caps()
        yield from self._requests()
        if self._engine is not None:
            yield from self._engines(self._engine)

    def _caps(self) -> Iterator[Metric]:
        admission = self._admission
        limits = {"requests": admission.max_num_queued_reqs, "tokens": admission.max_num_queued_tokens}
        limit = GaugeMetricFamily(
            "gatecount_limit", "Most that may be in flight; no such line if unlimited.", labels=["cap"]
        )
        for cap, value in limits.items():
            if value is not None:
                limit.add_metric([cap], value)
        yield limit
        in_flight = GaugeMetricFamily(
            "gatecount_in_flight",
            "Requests unfinished; prompt tokens in prefill.",
            labels=["cap"],
        )
        in_flight.add_metric(["requests"], admission.requests_in_flight)
        in_flight.add_metric(["tokens"], admission.tokens_in_flight)
        yield in_flight

    def _requests(self) -> Iterator[Metric]:
        totals = self._board.totals()
        admitted = CounterMetricFamily(
            "gatecount_admitted", "Requests that every cap admitted.", labels=["cap"]
        )
        refused = CounterMetricFamily(
            "gatecount_refused", "Requests refused, by the cap that had no room.", labels=["cap"]
        )
        for cap in CAPS:
            admitted.add_metric([cap], totals.admitted)
            refused.add_metric([cap], totals.refused(cap))
        yield admitted
        yield refused
        connections = GaugeMetricFamily(
            "gatecount_connections", "Open connections of servers that accept them.", labels=["server"]
        )
        for server, count in enumerate(totals.connections):
            if count is not None:
                connections.add_metric([str(server)], count)
        yield connections

    def _engines(self, engine: EngineStatistics) -> Iterator[Metric]:
        numbers = {
            "running": (engine.running, "Samples that run in the engine."),
            "running_peak": (engine.running_peak, "Most samples that ever ran at one instant."),
            "waiting": (engine.waiting, "Samples that wait inside the engine for their turn."),
            "prefill_tokens": (engine.prefill_tokens, "Prompt tokens of the samples in prefill."),
            "prefill_tokens_peak": (engine.prefill_tokens_peak, "Most prompt tokens ever in prefill."),
        }
        for name, (number, text) in numbers.items():
            yield GaugeMetricFamily(f"gatecount_engine_{name}", text, number)
        limit = self._admission.max_num_queued_reqs
        if limit is not None:
            overshoot = GaugeMetricFamily(
                "gatecount_overshoot",
                "How far the engine's peak was over the limit.",
                labels=["cap"],
            )
            overshoot.add_metric(["requests"], max(0, engine.running_peak - limit))
            yield overshoot
