"""The instruments for OpenTelemetry: the same numbers as Prometheus gets, under the same names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, MetricReader, Sum
from prometheus_client import REGISTRY, generate_latest

from gatecount import Gate
from gatecount.integrations.opentelemetry import observe
from integrations.scraping import LIMITS, Scrape, scrape
from support import Crew, Remote


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=4) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


class Observed:
    """The instruments of an SDK of its own, collected when asked."""

    def __init__(self, reader: MetricReader, *gates: Any, per_slot: bool = False) -> None:
        self.reader = reader
        self.provider = MeterProvider([reader], shutdown_on_exit=False)
        observe(*gates, per_slot=per_slot, meter_provider=self.provider)

    def __enter__(self) -> Observed:
        return self

    def __exit__(self, *_error: object) -> None:
        self.provider.shutdown()

    def collect(self) -> dict[tuple[str, frozenset[tuple[str, Any]]], float]:
        """Return the value of each series."""
        return {
            (metric.name, frozenset(point.attributes.items())): point.value
            for metric in self._metrics()
            for point in metric.data.data_points
        }

    def kinds(self) -> dict[str, tuple[type, bool]]:
        """Return of each metric what it is, and whether it only ever grows."""
        return {
            metric.name: (type(metric.data), getattr(metric.data, "is_monotonic", False))
            for metric in self._metrics()
        }

    def _metrics(self) -> Iterator[Any]:
        assert isinstance(self.reader, InMemoryMetricReader)
        data = self.reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                yield from scope.metrics


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, Any]]]:
    return name, frozenset(labels.items())


@pytest.mark.parametrize("per_slot", [False, True])
def test_it_tells_what_prometheus_is_told_under_the_same_names(
    gate: Gate, gate_name: str, crew: Crew, per_slot: bool
) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    assert worker.call("try_acquire", 3)
    assert gate.try_acquire(2)
    assert not gate.try_acquire(6)
    with Observed(InMemoryMetricReader(), gate_name, per_slot=per_slot) as observed:
        told = observed.collect()
    there = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in scrape(gate_name, per_slot=per_slot).samples
    }
    assert told.keys() == there.keys()
    for series in told:
        if series[0] != "gatecount_slot_age_seconds":
            assert told[series] == there[series]
    assert told[key("gatecount_in_flight", gate=gate_name, cap="requests")] == 5
    assert told[key("gatecount_refused_total", gate=gate_name, cap="requests", reason="full")] == 1


def test_what_counts_calls_is_a_counter_and_what_stands_now_a_gauge(gate: Gate, gate_name: str) -> None:
    gate.claim()
    with Observed(InMemoryMetricReader(), gate_name, per_slot=True) as observed:
        kinds = observed.kinds()
    assert {name for name, kind in kinds.items() if kind == (Sum, True)} == {
        name for name in kinds if name.endswith("_total")
    }
    assert all(kind == (Gauge, False) for name, kind in kinds.items() if not name.endswith("_total"))


def test_a_killed_worker_is_gone_from_the_very_next_collection(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    in_flight = key("gatecount_in_flight", gate=gate_name, cap="requests")
    reclaimed = key("gatecount_reclaimed_total", gate=gate_name, cap="requests")
    with Observed(InMemoryMetricReader(), gate_name) as observed:
        worker = Remote(crew, Gate.open, gate_name)
        assert worker.call("try_acquire", 6)
        assert observed.collect()[in_flight] == 6
        worker.kill()
        told = observed.collect()
        assert (told[in_flight], told[reclaimed]) == (0, 6)


def test_a_gate_that_is_missing_is_told_as_such_until_it_comes(gate_name: str) -> None:
    up = key("gatecount_up", gate=gate_name)
    with Observed(InMemoryMetricReader(), gate_name) as observed:
        assert observed.collect() == {up: 0}
        with Gate.create(gate_name, limits=LIMITS):
            told = observed.collect()
            assert told[up] == 1
            assert told[key("gatecount_limit", gate=gate_name, cap="tokens")] == 1000
        Gate.remove(gate_name)
        assert observed.collect() == {up: 0}


def test_exported_to_prometheus_the_names_are_those_of_the_collector(gate: Gate, gate_name: str) -> None:
    """An exporter adds units and endings to names as it sees fit; there must be nothing to add."""
    gate.claim()
    with Observed(PrometheusMetricReader(), gate_name, per_slot=True):
        told = Scrape(generate_latest(REGISTRY).decode())
    mine = {sample.name for sample in told.samples if sample.labels.get("gate") == gate_name}
    assert mine == scrape(gate_name, per_slot=True).names


def test_without_the_api_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gatecount\[opentelemetry\]'"):
        observe("api")


def test_what_can_be_no_gate_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="name must be"):
        observe("a/b")
