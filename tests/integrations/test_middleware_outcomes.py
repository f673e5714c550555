"""What a client gets, the log says and is counted when there is no room, or would be none."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from gatecount import Gate
from gatecount._core import MAX_LIMIT
from integrations.expected import expect_busy, only
from integrations.faces import Face, query
from integrations.middleware_servers import HOST, ask, becomes, in_flight

# Full
from support import DEADLINE


def test_a_full_gate_is_503_and_a_warning_and_counted_and_holds_nothing(
    face: Face, gate: Gate, log: Any
) -> None:
    with face.serve(gate) as port, gate.admit(requests=2):
        answer = ask(port, "/work")
        expect_busy(answer)
        assert answer.headers["content-type"] == "application/json"
        assert answer.error["type"] == "Service Unavailable"
        assert in_flight(gate) == 2
    level, line = only(log())
    assert level == logging.WARNING
    assert line.startswith("refuses GET '/work' with 503: cap 'requests' is full: 2 of 2 in flight")
    assert face.calls == 0
    assert gate.statistics().caps["requests"].refused == 1


def test_a_refusal_may_be_429_and_plain_and_say_nothing_of_when(face: Face, gate: Gate) -> None:
    with (
        face.serve(gate, status=429, body="plain", retry_after=None) as port,
        gate.admit(requests=2),
    ):
        answer = ask(port)
    assert answer.status == 429
    assert answer.body == b"The server is busy, try again later.\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "retry-after" not in answer.headers


def test_head_is_refused_without_a_body(face: Face, gate: Gate) -> None:
    with face.serve(gate) as port, gate.admit(requests=2):
        whole = ask(port)
        with socket.create_connection((HOST, port), timeout=DEADLINE) as client:
            client.sendall(b"HEAD / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            head, _, body = b"".join(iter(lambda: client.recv(1000), b"")).partition(b"\r\n\r\n")
    assert head.split()[1] == b"503"
    assert f"content-length: {len(whole.body)}".encode() in head.lower()
    assert body == b""


def test_refused_clients_are_not_told_to_come_back_together(face: Face, gate: Gate) -> None:
    with face.serve(gate, retry_after=(2, 11)) as port, gate.admit(requests=2):
        told = [int(ask(port).headers["retry-after"]) for _ in range(200)]
    # 10 different seconds, 20 clients each on average: 50 in one second is no accident (p < 1e-9).
    assert set(told) == set(range(2, 12))
    assert max(told.count(second) for second in range(2, 12)) < 50


def test_a_flood_of_refusals_is_one_line_and_the_next_tells_how_many_it_stands_for(
    face: Face, gate: Gate, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with face.serve(gate) as port, gate.admit(requests=2):
        for _ in range(30):
            ask(port)
        only(log())
        clock = time.monotonic
        for later, count in ((60, 2), (120, 1)):
            monkeypatch.setattr(
                "gatecount.integrations._journal.time.monotonic", lambda later=later: clock() + later
            )
            for _ in range(count):
                ask(port)
    assert [line.getMessage().partition(" in flight, no room for 1 more")[2] for line in log()] == [
        "",
        " (and 29 more like it since the last such line)",
        " (and 1 more like it since the last such line)",
    ]


def test_exempt_paths_are_served_when_the_gate_is_full_and_exactly_those(face: Face, gate: Gate) -> None:
    with face.serve(gate, exempt=("/health", "/métriques")) as port, gate.admit(requests=2):
        assert ask(port, "/health").status == 200
        assert ask(port, "/health?verbose=1").status == 200
        assert ask(port, "/m%C3%A9triques").status == 200
        assert ask(port, "/health/").status == 503
        assert ask(port, "/healthy").status == 503
        assert ask(port, "/").status == 503
    assert gate.statistics().caps["requests"].admitted == 1  # the test's own


def test_a_rejected_request_releases_nothing(face: Face, gate: Gate) -> None:
    with face.serve(gate) as port:
        with gate.admit(requests=2):
            for _ in range(20):
                assert ask(port).status == 503
            assert in_flight(gate) == gate.held() == 2
        assert in_flight(gate) == 0
        assert ask(port).status == 200
        becomes(gate, 0)


# Limits


def test_a_limit_of_0_refuses_all_who_may_come_again_and_a_raised_one_lets_them_in(
    face: Face, gate: Gate, log: Any
) -> None:
    gate.set_limit("requests", 0)
    with face.serve(gate, cost=lambda _: {"requests": 1}) as port:
        expect_busy(ask(port))
        assert gate.statistics().caps["requests"].refused == 1
        gate.set_limit("requests", 1)
        assert ask(port).status == 200
    level, line = only(log())
    assert level == logging.WARNING
    assert "0 of 0 in flight" in line


@pytest.mark.parametrize("tokens", [101, MAX_LIMIT, MAX_LIMIT + 1, 10**30])
def test_a_request_that_asks_for_more_than_the_limit_is_413_without_an_invitation_to_come_again(
    face: Face, gate: Gate, log: Any, tokens: int
) -> None:
    with face.serve(gate, cost=lambda r: {"requests": 1, "tokens": int(query(r))}) as port:
        answer = ask(port, f"/?{tokens}")
        assert ask(port, "/?100").status == 200
    assert answer.status == 413
    assert "retry-after" not in answer.headers
    assert answer.error["message"] == (
        "This request asks for more than the server can ever take at a time."
    )
    level, line = only(log())
    assert level == logging.WARNING
    assert line.startswith("refuses GET '/' with 413: cap 'tokens' is full: 0 of 100")
    caps = gate.statistics().caps
    assert (caps["tokens"].refused, caps["tokens"].in_flight, caps["requests"].in_flight) == (1, 0, 0)
    assert face.calls == 1


@pytest.mark.parametrize("number", [int, numpy.int64])
def test_more_than_can_be_counted_is_refused_under_the_highest_limit_too(
    face: Face, number: Callable[[str], int]
) -> None:
    with Gate.create(limits={"requests": MAX_LIMIT}, slots=1) as gate:
        with face.serve(gate, cost=lambda r: number(query(r))) as port:
            assert ask(port, f"/?{MAX_LIMIT + 1}").status == 413
            assert ask(port, f"/?{MAX_LIMIT}").status == 200
        assert (gate.statistics().caps["requests"].refused, in_flight(gate)) == (1, 0)


def test_the_highest_headroom_is_none_of_the_requests_doing_and_it_may_come_again(
    face: Face, gate: Gate
) -> None:
    with face.serve(gate, cost=lambda _: 1, headroom=MAX_LIMIT) as port:
        expect_busy(ask(port))


def test_what_is_too_large_is_logged_in_an_overload_too(face: Face, gate: Gate, log: Any) -> None:
    with face.serve(gate, cost=lambda r: {"tokens": int(query(r))}) as port, gate.admit(tokens=100):
        for tokens, status in ((1, 503), (101, 413)) * 3:
            assert ask(port, f"/?{tokens}").status == status
    assert [line.getMessage()[:28] for line in log()] == [
        "refuses GET '/' with 503: ca",
        "refuses GET '/' with 413: ca",
    ]


def test_a_fixed_cost_above_the_limit_is_the_operators_doing_and_may_come_again(
    face: Face, gate: Gate
) -> None:
    with face.serve(gate, cost=3) as port:
        expect_busy(ask(port))
        gate.set_limit("requests", 3)
        assert ask(port).status == 200


# The dry run


def test_a_dry_run_refuses_nothing_and_counts_and_logs_what_it_would_refuse(
    face: Face, gate: Gate, log: Any
) -> None:
    with face.serve(gate, dry_run=True) as port:
        assert ask(port).status == 200
        becomes(gate, 0)
        with gate.admit(requests=2):
            assert [ask(port, "/work").status for _ in range(3)] == [200] * 3
            assert in_flight(gate) == 2
    cap = gate.statistics().caps["requests"]
    assert (cap.admitted, cap.refused, cap.in_flight, face.calls) == (2, 3, 0, 4)
    level, line = only(log())
    assert level == logging.WARNING
    assert line.startswith("dry run: would refuse GET '/work' with 503: cap 'requests' is full")


def test_a_dry_run_lets_in_whose_cost_cannot_be_told_or_is_too_high(
    face: Face, gate: Gate, log: Any
) -> None:
    with face.serve(gate, dry_run=True, cost=lambda r: int(query(r))) as port:
        assert ask(port, "/?many").status == 200
        assert ask(port, "/?3").status == 200
    assert [line.getMessage().split(":")[1] for line in log()] == [
        " would refuse GET '/' with 500",
        " would refuse GET '/' with 413",
    ]
    assert in_flight(gate) == 0
