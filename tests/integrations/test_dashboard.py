"""The Grafana dashboard: it asks for what the collector exports, and for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatecount import Gate
from integrations.scraping import LIMITS, Scrape, scrape

FILE = Path(__file__).parents[2] / "dashboards" / "gatecount.json"
OF_PROMETHEUS = {"job", "instance"}
"""Labels that every series gets when it is scraped."""

METRIC = re.compile(r"\b(gatecount_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\bby\s*\(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def exported(gate_name: str) -> Scrape:
    """Return everything that the collector exports."""
    with Gate.create(gate_name, limits=LIMITS) as gate:
        gate.claim()
        return scrape(gate_name, per_slot=True)


def panels(dashboard: Any) -> Iterator[Any]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def targets(dashboard: Any) -> list[tuple[str, str]]:
    """Return each expression with its legend."""
    return [
        (target["expr"], target["legendFormat"])
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    ]


def queries(dashboard: Any) -> list[str]:
    return [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]


def labels_of(exported: Scrape, metric: str) -> set[str]:
    return {label for s in exported.samples if s.name == metric for label in s.labels} | OF_PROMETHEUS


def test_every_expression_asks_for_metrics_that_are_exported(dashboard: Any, exported: Scrape) -> None:
    asked = [expression for expression, _legend in targets(dashboard)] + queries(dashboard)
    assert len(asked) > 15
    for expression in asked:
        names = [name for name, _labels in METRIC.findall(expression)]
        assert names, f"no metric of ours: {expression}"
        assert set(names) <= exported.names, expression


def test_every_metric_that_is_exported_is_shown(dashboard: Any, exported: Scrape) -> None:
    shown = {
        name for expression, _ in targets(dashboard) for name, _labels in METRIC.findall(expression)
    }
    assert exported.names == shown


def test_every_label_is_one_that_the_metric_has(dashboard: Any, exported: Scrape) -> None:
    for expression, legend in targets(dashboard):
        common = None
        for name, selector in METRIC.findall(expression):
            known = labels_of(exported, name)
            assert set(LABEL.findall(selector)) <= known, expression
            common = known if common is None else common & known
        assert common is not None
        for names in BY.findall(expression):
            common = {label.strip() for label in names.split(",")}
            assert common <= labels_of(exported, METRIC.findall(expression)[0][0]), expression
        assert set(LEGEND.findall(legend)) <= common, legend
    for query in queries(dashboard):
        metric, _ = METRIC.findall(query)[0]
        found = re.fullmatch(r"label_values\(.*,\s*(\w+)\)", query)
        assert found is not None
        assert found[1] in labels_of(exported, metric), query


def test_counters_are_shown_by_their_rate_and_gauges_as_they_are(dashboard: Any) -> None:
    for expression, _ in targets(dashboard):
        rated = set(re.findall(r"(?:rate|increase)\((gatecount_\w+)\{", expression))
        counters = {name for name, _labels in METRIC.findall(expression) if name.endswith("_total")}
        assert rated == counters - {"gatecount_repairs_total"}, expression


def test_units_are_those_of_what_is_shown(dashboard: Any) -> None:
    for panel in panels(dashboard):
        for target in panel.get("targets", []):
            expression = target["expr"]
            expected = {"short", "none"}
            if " / " in expression:
                expected = {"percentunit"}
            elif expression.startswith("rate("):
                expected = {"reqps"}
            elif "_seconds" in expression:
                expected = {"s"}
            assert panel["fieldConfig"]["defaults"]["unit"] in expected, panel["title"]


def test_every_variable_that_is_used_is_defined(dashboard: Any) -> None:
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = FILE.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?(\w+)\}?", text)) - {"__all", "__rate_interval"}
    assert used == defined
    assert all(
        panel["datasource"]["uid"] == "${datasource}"
        for panel in panels(dashboard)
        if "targets" in panel
    )


def test_panels_have_their_own_ids_and_places_and_say_what_they_show(dashboard: Any) -> None:
    every = list(panels(dashboard))
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["description"]
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["uid"]
    assert "id" not in dashboard
