"""What the tests of metrics share: a scrape as Prometheus makes it, and workers that hold permits."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gatecount import Gate
from gatecount.integrations.prometheus import GateCollector

LIMITS = {"requests": 10, "tokens": 1000}


class Scrape:
    """What one answer in Prometheus' text format says."""

    def __init__(self, text: str) -> None:
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    def all(self, name: str, **labels: str) -> list[float]:
        """Return each value of a metric whose labels include these."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of the one series of that name with exactly these labels."""
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        assert len(found) == 1, f"{name}{labels}: {found}"
        return found[0]

    def of_gate(self, gate: str) -> set[str]:
        """Return the names of the metrics that tell of a gate."""
        return {sample.name for sample in self.samples if sample.labels.get("gate") == gate}


def registry(*gates: Any, per_slot: bool = False) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(GateCollector(*gates, per_slot=per_slot))
    return made


def read(source: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(source).decode())


def scrape(*gates: Any, per_slot: bool = False) -> Scrape:
    return read(registry(*gates, per_slot=per_slot))


def wait_in_line(name: str) -> None:
    """Wait for room in a gate, for longer than a test takes."""
    with Gate.open(name) as gate:
        gate.acquire(timeout=3600)
