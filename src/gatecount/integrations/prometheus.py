"""Gates for Prometheus: a collector for client_python that reads shared memory when it is scraped.

from prometheus_client import REGISTRY
from gatecount.integrations.prometheus import GateCollector

REGISTRY.register(GateCollector("api"))

Whichever process is scraped answers for all of them, so it needs no multiprocess mode, and may stand
beside it: register it with the registry that the MultiProcessCollector is given. It writes no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gatecount.integrations._readings import Gates, Measure, Reading, Source, measures

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    Family = CounterMetricFamily | GaugeMetricFamily
else:
    Collector = object  # what client_python asks of one is its methods

_MISSING = "metrics for Prometheus need prometheus_client: pip install 'gatecount[prometheus]'"


class GateCollector(Collector):
    """A collector of gates: the named ones, Gate objects, {label: Gate}, or all that have a name.

    Labels are gate and cap, for refusals reason (full, timeout, too_large). per_slot adds metrics of
    each living process by slot. Every scrape first reclaims what dead processes held, so that it tells
    nothing of them. A gate given by name may come, go and be replaced; while it cannot be read,
    gatecount_up is 0 and its other metrics are missing. "All" are this user's and root's, without
    damaged ones. Another user's has to be named, as who may write to its file can end its readers.

    Register one collector per registry: two would tell the same metrics twice. Safe from any thread, and
    in a forked child. Raises ModuleNotFoundError without client_python, TypeError, and ValueError for a
    name that no gate can have or for two gates of one label.
    """

    def __init__(self, *gates: Source, per_slot: bool = False) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise ModuleNotFoundError(_MISSING, name=error.name) from None
        self._gates = Gates(gates)
        self._measures = measures(per_slot)

    def describe(self) -> Iterator[Family]:
        """Yield each metric without a sample: registering reads no gate."""
        return self._families(())

    def collect(self) -> Iterator[Family]:
        """Yield each metric as it is now."""
        return self._families(tuple(self._gates.read()))

    def _families(self, readings: Iterable[Reading]) -> Iterator[Family]:
        for measure in self._measures:
            family = _family(measure)
            for reading in readings:
                for labels, value in measure.samples(reading):
                    family.add_metric(labels, value)
            yield family


def _family(measure: Measure) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    return kind(measure.name, measure.text, labels=measure.labels)
