"""The collector for client_python: what it tells, of whom, and how soon."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from gatecount import Gate, GateStatistics, GateTimeout
from gatecount.integrations.prometheus import GateCollector
from integrations.scraping import LIMITS, Scrape, read, registry, scrape, wait_in_line
from support import DEADLINE, Crew, Remote, path_of, python, wait_until


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=4) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


# What is told


def test_one_scrape_tells_what_all_processes_hold(gate: Gate, gate_name: str, crew: Crew) -> None:
    first, second = (Remote(crew, Gate.open, gate_name) for _ in range(2))
    assert first.call("try_acquire", 3)
    assert second.call("try_acquire", 4)
    assert second.call("try_acquire", 100, cap="tokens")
    second.call("release", 2)
    told = scrape(gate_name)
    requests = {"gate": gate_name, "cap": "requests"}
    tokens = {"gate": gate_name, "cap": "tokens"}
    for labels, in_flight, limit, peak, admitted in (
        (requests, 5, 10, 7, 2),
        (tokens, 100, 1000, 100, 1),
    ):
        assert told("gatecount_in_flight", **labels) == in_flight
        assert told("gatecount_limit", **labels) == limit
        assert told("gatecount_peak", **labels) == peak
        assert told("gatecount_admitted_total", **labels) == admitted
        assert told("gatecount_reclaimed_total", **labels) == 0
        assert told("gatecount_repairs_total", **labels) == 0
        assert told("gatecount_waiting", **labels) == 0
    assert told("gatecount_up", gate=gate_name) == 1
    assert told("gatecount_slots", gate=gate_name) == 4
    assert told("gatecount_slots_used", gate=gate_name) == 2


def test_refusals_are_told_by_reason(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(8)
    assert not gate.try_acquire(3)
    assert not gate.try_acquire(3)
    assert not gate.try_acquire(11)
    with pytest.raises(GateTimeout):
        gate.acquire(3, timeout=0.01)
    told = scrape(gate_name)
    for reason, count in {"full": 2, "too_large": 1, "timeout": 1}.items():
        labels = {"gate": gate_name, "cap": "requests", "reason": reason}
        assert told("gatecount_refused_total", **labels) == count
    assert told.all("gatecount_refused_total", cap="tokens") == [0, 0, 0]


def test_what_waits_is_told_until_it_dies(gate: Gate, gate_name: str, crew: Crew) -> None:
    assert gate.try_acquire(10)
    source = registry(gate_name)
    labels = {"gate": gate_name, "cap": "requests"}
    waiter = crew.start(wait_in_line, gate_name)
    wait_until(lambda: read(source)("gatecount_waiting", **labels) == 1)
    crew.kill(waiter)
    assert read(source)("gatecount_waiting", **labels) == 0


@pytest.mark.parametrize("mode", ["hard", "approximate"])
@pytest.mark.parametrize("given", ["by name", "as an object"])
def test_a_killed_worker_is_gone_from_the_very_next_scrape(
    gate_name: str, crew: Crew, mode: str, given: str
) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=4, mode=mode) as gate:
        source = registry(gate_name if given == "by name" else gate, per_slot=True)
        doomed, other = (Remote(crew, Gate.open, gate_name) for _ in range(2))
        assert doomed.call("try_acquire", 6)
        assert other.call("try_acquire", 1)
        labels = {"gate": gate_name, "cap": "requests"}
        assert read(source)("gatecount_in_flight", **labels) == 7
        doomed.kill()
        told = read(source)
        assert told("gatecount_in_flight", **labels) == 1
        assert told("gatecount_reclaimed_total", **labels) == 6
        assert told("gatecount_admitted_total", **labels) == 2
        assert told("gatecount_slots_used", gate=gate_name) == 1
        assert told.all("gatecount_slot_pid", gate=gate_name) == [other.process.pid]


def test_slots_are_told_by_choice_and_apart_from_the_sums(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    workers = [Remote(crew, Gate.open, gate_name) for _ in range(2)]
    slots = [str(worker.call("claim")) for worker in workers]
    assert workers[0].call("try_acquire", 3)
    assert workers[1].call("try_acquire", 2)
    assert not workers[1].call("try_acquire", 9)
    plain, told = scrape(gate_name), scrape(gate_name, per_slot=True)
    assert not [name for name in plain.names if name.startswith("gatecount_slot_")]
    requests = {"gate": gate_name, "cap": "requests"}
    assert told("gatecount_in_flight", **requests) == 5
    for slot, worker, held, refused in zip(slots, workers, (3, 2), (0, 1), strict=True):
        assert told("gatecount_slot_pid", gate=gate_name, slot=slot) == worker.process.pid
        assert 0 <= told("gatecount_slot_age_seconds", gate=gate_name, slot=slot) < DEADLINE
        assert told("gatecount_slot_in_flight", **requests, slot=slot) == held
        assert told("gatecount_slot_waiting", **requests, slot=slot) == 0
        assert told("gatecount_slot_admitted_total", **requests, slot=slot) == 1
        assert told("gatecount_slot_refused_total", **requests, slot=slot) == refused
        assert told("gatecount_slot_in_flight", gate=gate_name, cap="tokens", slot=slot) == 0


def test_repairs_are_told_apart_from_what_was_taken_back(
    gate: Gate, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = Gate.statistics

    def repaired(self: Gate) -> GateStatistics:
        told = statistics(self)
        caps = {name: replace(cap, repairs=3, reclaimed=5) for name, cap in told.caps.items()}
        return replace(told, caps=caps)

    monkeypatch.setattr(Gate, "statistics", repaired)
    told = scrape(gate_name)
    assert told.all("gatecount_repairs_total") == [3, 3]
    assert told.all("gatecount_reclaimed_total") == [5, 5]


def test_a_limit_set_by_another_process_is_told_at_once(gate: Gate, gate_name: str, crew: Crew) -> None:
    source = registry(gate_name)
    Remote(crew, Gate.open, gate_name).call("set_limit", "requests", 0)
    assert read(source)("gatecount_limit", gate=gate_name, cap="requests") == 0


# Of which gates


def test_a_gate_given_by_name_may_come_go_and_be_replaced(gate_name: str) -> None:
    source = registry(gate_name)
    told = read(source)
    assert told("gatecount_up", gate=gate_name) == 0
    assert told.of_gate(gate_name) == {"gatecount_up"}
    for limit in (3, 4):
        with Gate.create(gate_name, limits={"requests": limit}) as gate:
            assert gate.try_acquire(limit - 1)
            told = read(source)
            assert told("gatecount_up", gate=gate_name) == 1
            assert told("gatecount_limit", gate=gate_name, cap="requests") == limit
            assert told("gatecount_in_flight", gate=gate_name, cap="requests") == limit - 1
            Gate.remove(gate_name)
        assert read(source)("gatecount_up", gate=gate_name) == 0


def test_without_arguments_every_gate_is_told_of_and_nothing_else(gate_name: str) -> None:
    source = registry()
    others = [f"{gate_name}-{number}" for number in range(2)]
    damaged = path_of(f"{gate_name}-damaged")
    try:
        damaged.write_bytes(b"no gate at all")
        path_of(f"{gate_name}-unfinished").touch()
        gates = [Gate.create(name, limits={"requests": 5}) for name in others]
        mine = [label for label in _gates_of(read(source)) if label.startswith(gate_name)]
        assert mine == others
        gates[0].close()
        Gate.remove(others[0])
        mine = [label for label in _gates_of(read(source)) if label.startswith(gate_name)]
        assert mine == others[1:]
        gates[1].close()
    finally:
        for name in (*others, f"{gate_name}-damaged", f"{gate_name}-unfinished"):
            path_of(name).unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_user_s_gate_is_told_of_only_by_name(gate: Gate, gate_name: str) -> None:
    """Its owner could truncate it under a reader, which nothing survives."""
    assert gate_name in _gates_of(scrape())
    os.chown(path_of(gate_name), 65534, 65534)
    assert gate_name not in _gates_of(scrape())
    assert scrape(gate_name)("gatecount_up", gate=gate_name) == 1


def _gates_of(told: Scrape) -> list[str]:
    return [sample.labels["gate"] for sample in told.samples if sample.name == "gatecount_limit"]


def test_gates_may_be_given_as_objects_and_under_labels_of_ones_own(gate: Gate, gate_name: str) -> None:
    with Gate.create(limits={"uploads": 3}) as first, Gate.create(limits={"uploads": 4}) as second:
        assert first.try_acquire(1, cap="uploads")
        told = scrape(gate, first, {"disk": second})
        assert told("gatecount_limit", gate=gate_name, cap="requests") == 10
        assert told("gatecount_in_flight", gate="anonymous", cap="uploads") == 1
        assert told("gatecount_limit", gate="disk", cap="uploads") == 4


def test_a_gate_that_cannot_be_read_is_logged_once_and_hides_no_other(
    gate: Gate, gate_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gatecount.metrics")
    closed = Gate.create(limits={"requests": 1})
    closed.close()
    missing = f"{gate_name}-missing"
    source = registry({"closed": closed}, missing, gate_name)
    for _ in range(3):
        told = read(source)
        assert told.all("gatecount_up") == [0, 0, 1]
        assert told("gatecount_limit", gate=gate_name, cap="requests") == 10
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("gate 'closed' cannot be read: this gate is closed")
    assert caplog.messages[1].startswith(f"gate {missing!r} cannot be read: there is no gate")


def test_a_gate_that_fails_anew_is_logged_anew(gate_name: str, caplog: pytest.LogCaptureFixture) -> None:
    source = registry(gate_name)
    for number in (1, 2):
        read(source)
        assert len(caplog.messages) == number
        Gate.create(gate_name, limits=LIMITS).close()
        assert read(source)("gatecount_up", gate=gate_name) == 1
        Gate.remove(gate_name)


def test_registering_reads_no_gate(gate_name: str, caplog: pytest.LogCaptureFixture) -> None:
    source = registry(gate_name)
    assert caplog.messages == []
    read(source)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("wrong", [7, None, b"api", ["api"], {"api": "api"}, {7: "api"}])
def test_what_is_no_gate_is_refused_when_the_collector_is_made(wrong: Any) -> None:
    with pytest.raises(TypeError, match="gates"):
        GateCollector(wrong)


@pytest.mark.parametrize("wrong", ["", "a/b", "../a", "a b", "x" * 201])
def test_what_can_be_no_name_is_refused_when_the_collector_is_made(wrong: str) -> None:
    with pytest.raises(ValueError, match="name must be"):
        GateCollector(wrong)


def test_two_gates_of_one_label_are_refused(gate: Gate, gate_name: str) -> None:
    with pytest.raises(ValueError, match=gate_name):
        GateCollector(gate_name, gate)


def test_a_directory_that_cannot_be_read_hides_no_other_metric(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()  # root may read every directory
    source = registry()
    Counter("app_served", "Requests served.", registry=source)
    for number in (1, 2):
        monkeypatch.setattr("gatecount.listing.DIRECTORY", str(nowhere))
        for _ in range(2):
            assert read(source).names == {"app_served_total", "app_served_created"}
        assert len(caplog.messages) == number
        assert str(nowhere) in caplog.messages[-1]
        monkeypatch.setattr("gatecount.listing.DIRECTORY", str(tmp_path))
        read(source)


# In which process


def test_the_collector_works_in_a_child_forked_after_it_was_made(gate: Gate, crew: Crew) -> None:
    assert gate.try_acquire(4)
    source = registry(gate)
    child = Remote(crew, Reader, source, gate.name)
    assert child.call("in_flight") == 4
    gate.release(3)
    assert child.call("in_flight") == 1
    assert gate.held() == 1


class Reader:
    """Scrapes a registry that it was handed."""

    def __init__(self, source: CollectorRegistry, gate: str) -> None:
        self.source = source
        self.gate = gate

    def in_flight(self) -> float:
        return read(self.source)("gatecount_in_flight", gate=self.gate, cap="requests")


# Without it


def test_without_client_python_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gatecount\[prometheus\]'"):
        GateCollector("api")


IMPORTS = """
import json, sys
import gatecount.integrations.prometheus, gatecount.integrations.opentelemetry
print(json.dumps([name for name in sys.modules if name.startswith(("prometheus", "opentelemetry"))]))
"""


def test_what_a_collector_is_for_is_imported_only_when_one_is_made() -> None:
    done = subprocess.run(python(IMPORTS), capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert json.loads(done.stdout) == []
