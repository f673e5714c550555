"""Gates for OpenTelemetry: observable instruments that read shared memory when they are collected.

from gatecount.integrations.opentelemetry import observe

observe("api")

The instruments have the names that Prometheus knows them by, so that one dashboard works with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gatecount.integrations._readings import Gates, Measure, Source, measures

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

_MISSING = "metrics for OpenTelemetry need its API: pip install 'gatecount[opentelemetry]'"


def observe(*gates: Source, per_slot: bool = False, meter_provider: MeterProvider | None = None) -> None:
    """Create instruments for gates: the named ones, Gate objects, {label: Gate}, or all with a name.

    Call it once, in one process: each process that does tells the same numbers, which are those of all.
    Attributes are gate and cap, for refusals reason (full, timeout, too_large). per_slot adds
    instruments of each living process by slot. Each collection first reclaims what dead processes held,
    so that it tells nothing of them. A gate given by name may come, go and be replaced; while it cannot
    be read, gatecount_up is 0 and the others say nothing of it. "All" are this user's and root's:
    another user's has to be named, as who may write to its file can end its readers. meter_provider is
    the global one unless given.

    Raises ModuleNotFoundError without the API, TypeError, and ValueError for a name that no gate can
    have or for two gates of one label.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ModuleNotFoundError as error:
        if error.name not in ("opentelemetry", "opentelemetry.metrics"):
            raise
        raise ModuleNotFoundError(_MISSING, name=error.name) from None
    source = Gates(gates)
    meter = get_meter("gatecount", meter_provider=meter_provider)
    for measure in measures(per_slot):
        _create(meter, measure, _callback(source, measure))


def _create(
    meter: Meter, measure: Measure, callback: Callable[[CallbackOptions], Iterator[Observation]]
) -> None:
    # No unit: a Prometheus exporter would make it part of the name.
    if measure.kind == "counter":
        meter.create_observable_counter(f"{measure.name}_total", [callback], description=measure.text)
    else:
        meter.create_observable_gauge(measure.name, [callback], description=measure.text)


def _callback(source: Gates, measure: Measure) -> Callable[[CallbackOptions], Iterator[Observation]]:
    from opentelemetry.metrics import Observation

    def observations(_options: CallbackOptions) -> Iterator[Observation]:
        for reading in source.read():
            for labels, value in measure.samples(reading):
                yield Observation(value, dict(zip(measure.labels, labels, strict=True)))

    return observations
