"""The collector for client_python beside what that has itself: its server, and its multiprocess mode."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import start_http_server

from gatecount import Gate
from integrations.scraping import LIMITS, Scrape, registry
from support import DEADLINE, python


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=4) as made:
        yield made


def test_it_is_served_by_the_server_of_client_python(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(2)
    server, thread = start_http_server(0, "127.0.0.1", registry(gate_name))
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
            told = Scrape(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)
    assert told("gatecount_in_flight", gate=gate_name, cap="requests") == 2


WORKER = """
import sys
from prometheus_client import REGISTRY, Counter
from gatecount import Gate
from gatecount.integrations.prometheus import GateCollector

served = Counter("app_served", "Requests served.")
REGISTRY.register(GateCollector(sys.argv[1]))
gate = Gate.open(sys.argv[1])
assert gate.try_acquire(int(sys.argv[2]))
served.inc(int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""

SCRAPER = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from gatecount.integrations.prometheus import GateCollector

registry = CollectorRegistry()
MultiProcessCollector(registry)
registry.register(GateCollector(sys.argv[1]))
sys.stdout.write(generate_latest(registry).decode())
"""


def test_beside_the_multiprocess_mode_each_tells_the_truth_of_its_own(
    gate: Gate, gate_name: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def start(units: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            python(WORKER, gate_name, str(units)),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def scraped() -> Scrape:
        command = python(SCRAPER, gate_name)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=True
        )
        return Scrape(done.stdout)

    workers = [start(units) for units in (2, 5)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        told = scraped()
        assert told("app_served_total") == 7
        assert told("gatecount_in_flight", gate=gate_name, cap="requests") == 7
        workers[1].kill()
        workers[1].wait(DEADLINE)
        told = scraped()
        assert told("app_served_total") == 7
        assert told("gatecount_in_flight", gate=gate_name, cap="requests") == 2
        assert told("gatecount_reclaimed_total", gate=gate_name, cap="requests") == 5
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate(timeout=DEADLINE)
    written = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert {file.name.partition("_")[0] for file in written} == {"counter"}
    assert not [file for file, content in written.items() if b"gatecount" in content]
