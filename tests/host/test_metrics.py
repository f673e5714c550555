"""Metrics: the names and labels that dashboards know, true over all servers, whichever answers."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from gatecount import AdmissionCounters
from gatecount.frontend.admission import Admission
from gatecount.frontend.board import Board
from gatecount.frontend.engine import EngineStatistics
from gatecount.frontend.engine_client import InprocEngineClient
from gatecount.frontend.errors import EngineDead
from gatecount.frontend.metrics import Metrics
from gatecount.frontend.settings import EngineSettings
from host.serving import Host, Server, completion, get

CAPS = {'cap="requests"', 'cap="tokens"'}


def lines(text: str) -> dict[str, dict[str, float]]:
    """Return the values of a page by name and by labels."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def page(metrics: Metrics) -> dict[str, dict[str, float]]:
    return lines(asyncio.run(metrics.render()).decode())


class Engine(InprocEngineClient):
    """Says what a test wants it to say, or what goes wrong when it is asked."""

    def __init__(self, says: EngineStatistics | Exception) -> None:
        super().__init__(EngineSettings())
        self.says = says

    async def statistics(self, timeout: float = 1.0) -> EngineStatistics:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def test_the_names_and_labels_are_these() -> None:
    host = Host(limit=10, token_limit=100)
    host.row.connections = 2
    assert {name: set(values) for name, values in page(host.metrics).items()} == {
        "gatecount_limit": CAPS,
        "gatecount_in_flight": CAPS,
        "gatecount_admitted_total": CAPS,
        "gatecount_refused_total": CAPS,
        "gatecount_connections": {'server="0"'},
        "gatecount_engine_running": {""},
        "gatecount_engine_running_peak": {""},
        "gatecount_engine_waiting": {""},
        "gatecount_engine_prefill_tokens": {""},
        "gatecount_engine_prefill_tokens_peak": {""},
        "gatecount_overshoot": {'cap="requests"'},
    }
    host.close()


def test_any_server_tells_the_numbers_of_all() -> None:
    buffer, board = AdmissionCounters(2, 10, 100), Board(2)
    servers = []
    for index in range(2):
        config = {"client_count": 2, "client_index": index, "mp_admission_counters": buffer}
        servers.append(Admission(config, max_num_queued_reqs=10, max_num_queued_tokens=100))
        row = board.at(index)
        row.connections = 3 + index
        for _ in range(index + 1):
            row.count_admitted()
            row.count_refused("requests")
        row.count_refused("tokens")
    servers[0].check_admission(3, "a", 20)
    servers[1].check_admission(1, "b", 5)
    for admission in servers:
        told = page(Metrics(admission, board))
        assert told["gatecount_limit"] == {'cap="requests"': 10, 'cap="tokens"': 100}
        assert told["gatecount_in_flight"] == {'cap="requests"': 4, 'cap="tokens"': 65}
        assert told["gatecount_admitted_total"] == {'cap="requests"': 3, 'cap="tokens"': 3}
        assert told["gatecount_refused_total"] == {'cap="requests"': 3, 'cap="tokens"': 2}
        assert told["gatecount_connections"] == {'server="0"': 3, 'server="1"': 4}
        assert "gatecount_engine_running" not in told


def test_a_server_that_does_not_accept_has_no_connections_line() -> None:
    board = Board(2)
    board.at(1).connections = 0
    admission = Admission({"client_count": 2, "client_index": 0})
    assert page(Metrics(admission, board))["gatecount_connections"] == {'server="1"': 0}


def test_a_cap_that_is_not_set_has_no_limit_line_but_is_counted() -> None:
    host = Host(token_limit=7)
    host.admission.check_admission(2, "r", 3)
    told = page(host.metrics)
    assert told["gatecount_limit"] == {'cap="tokens"': 7}
    assert told["gatecount_in_flight"] == {'cap="requests"': 2, 'cap="tokens"': 6}
    assert "gatecount_overshoot" not in told
    host.close()


def test_the_engine_bears_witness_and_what_it_ran_over_the_limit_is_the_overshoot() -> None:
    for peak, overshoot in ((12, 2), (10, 0), (4, 0)):
        says = EngineStatistics(
            running=1, running_peak=peak, waiting=2, prefill_tokens=3, prefill_tokens_peak=4
        )
        host = Host(limit=10, engine=Engine(says))
        told = page(host.metrics)
        assert told["gatecount_engine_running"] == {"": 1}
        assert told["gatecount_engine_running_peak"] == {"": peak}
        assert told["gatecount_engine_waiting"] == {"": 2}
        assert told["gatecount_engine_prefill_tokens"] == {"": 3}
        assert told["gatecount_engine_prefill_tokens_peak"] == {"": 4}
        assert told["gatecount_overshoot"] == {'cap="requests"': overshoot}
        host.close()


def test_an_engine_that_is_late_or_dead_leaves_only_its_own_lines_out() -> None:
    host = Host(limit=10)
    host.client.shutdown()
    for client in (host.client, Engine(TimeoutError())):
        told = page(Metrics(host.admission, host.board, client))
        assert told["gatecount_limit"] == {'cap="requests"': 10}
        assert not [name for name in told if name.startswith("gatecount_engine")]
    host.close()


def test_an_engine_that_is_late_or_dead_is_trouble_and_none_at_all_is_not() -> None:
    host = Host(limit=10)
    troubles = [
        (None, None),
        (host.client, None),
        (Engine(TimeoutError()), "The engine does not answer."),
        (Engine(EngineDead("the engine has ended")), "The engine is dead."),
    ]
    for client, said in troubles:
        assert asyncio.run(Metrics(host.admission, host.board, client).trouble()) == said
    host.close()


def test_everything_refused_still_shows_in_both_counts() -> None:
    host = Host(limit=0)
    with Server(host.app) as server:
        assert [completion(server.url, n=n).status_code for n in (1, 3, 9)] == [503] * 3
        response = get(server.url, "/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        told = lines(response.text)
    assert told["gatecount_refused_total"] == {'cap="requests"': 3, 'cap="tokens"': 0}
    assert told["gatecount_admitted_total"] == {'cap="requests"': 0, 'cap="tokens"': 0}
    assert told["gatecount_in_flight"] == {'cap="requests"': 0, 'cap="tokens"': 0}
    host.close()
