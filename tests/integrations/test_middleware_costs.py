"""What a request costs, and what becomes of it if that cannot be told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gatecount import Gate
from gatecount._core import MAX_LIMIT
from integrations.expected import expect_busy, only
from integrations.faces import Face, query
from integrations.middleware_servers import ask


def _raise(_request: Any) -> Any:
    raise RuntimeError("no such model")


NONSENSE: dict[str, Any] = {
    "RuntimeError: no such model": _raise,
    "ValueError: cost must be from 0 to 4,294,967,295, not -1": lambda _: -1,
    "TypeError: cost must be an int, not bool (True)": lambda _: True,
    "TypeError: cost must be an int, not str ('1')": lambda _: "1",
    "TypeError: cost must be an int, not float (nan)": lambda _: float("nan"),
    "TypeError: cost must be an int, not float (1.0)": lambda _: 1.0,
    "TypeError: cost must be an int, not NoneType (None)": lambda _: None,
    "TypeError: cost must be an int, not list ([1])": lambda _: [1],
    "TypeError: cost must be an int, not Refused": lambda _: type("Refused", (), {})(),
    "UnknownCap: cap 'tokns' does not exist; this gate has 'requests', 'tokens'": lambda _: {"tokns": 1},
    "UnknownCap: cap 'timeout' does not exist": lambda _: {"requests": 1, "timeout": 1},
    "UnknownCap: cap 'headroom' does not exist": lambda _: {"headroom": 1},
    "UnknownCap: cap 7 does not exist": lambda _: {7: 1},
    "ValueError: cost must name at least one cap": lambda _: {},
    "ValueError: cost['tokens'] must be from 0": lambda _: {"requests": 1, "tokens": -5},
    "TypeError: cost['tokens'] must be an int, not bool": lambda _: {"requests": 1, "tokens": False},
}


@pytest.mark.parametrize("cause", NONSENSE)
def test_a_cost_that_cannot_be_told_is_500_and_an_error_with_its_traceback(
    face: Face, gate: Gate, log: Any, cause: str
) -> None:
    before = gate.statistics().caps
    with face.serve(gate, cost=NONSENSE[cause], exempt=("/health",), on_missing="open") as port:
        answer = ask(port, "/work")
        assert ask(port, "/health").status == 200
    assert (answer.status, answer.error["message"]) == (500, "Internal server error.")
    assert "retry-after" not in answer.headers
    level, line = only(log())
    assert level == logging.ERROR
    assert line.startswith(f"refuses GET '/work' with 500: its cost cannot be told: {cause}")
    assert log()[0].exc_info
    assert face.calls == 1
    assert gate.statistics().caps == before


@pytest.mark.parametrize("headroom", [-1, True, "1", None, MAX_LIMIT + 1])
def test_a_headroom_that_cannot_be_told_is_500(face: Face, gate: Gate, log: Any, headroom: Any) -> None:
    with face.serve(gate, headroom=lambda _: headroom) as port:
        assert ask(port).status == 500
    assert "its cost cannot be told" in only(log())[1]
    assert "headroom must be" in only(log())[1]
    assert gate.statistics().caps["requests"].admitted == 0


@pytest.mark.parametrize("cost", [0, {"requests": 0}, {"requests": 0, "tokens": 0}])
def test_a_cost_of_0_holds_nothing_and_is_never_refused(face: Face, gate: Gate, cost: Any) -> None:
    with face.serve(gate, cost=lambda _: cost) as port, gate.admit(requests=2, tokens=100):
        assert ask(port).status == 200
    assert gate.statistics().caps["requests"].admitted == 1


def test_a_cap_of_which_nothing_is_asked_may_be_full(face: Face, gate: Gate) -> None:
    with face.serve(gate, cost=lambda _: {"requests": 1, "tokens": 0}) as port, gate.admit(tokens=100):
        assert ask(port).status == 200


def test_a_request_refused_by_one_cap_leaves_the_other_untouched(face: Face, gate: Gate) -> None:
    with face.serve(gate, cost={"requests": 1, "tokens": 60}) as port, gate.admit(tokens=50):
        expect_busy(ask(port))
        caps = gate.statistics().caps
        assert (caps["requests"].in_flight, caps["tokens"].in_flight) == (0, 50)


def test_headroom_may_be_the_requests_own_so_that_low_priority_stops_first(
    face: Face, gate: Gate
) -> None:
    with (
        face.serve(gate, headroom=lambda r: 1 if query(r) == "low" else 0) as port,
        gate.admit(requests=1),
    ):
        assert ask(port, "/?low").status == 503
        assert ask(port, "/?high").status == 200
    with face.serve(gate, headroom=1) as port, gate.admit(requests=1):
        assert ask(port).status == 503
