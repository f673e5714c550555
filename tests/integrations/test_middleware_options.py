"""Options that cannot be right are refused when a middleware is made, which opens nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gatecount import Gate
from gatecount._core import MAX_LIMIT
from integrations.faces import Face

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"gate": 5}, TypeError, "gate must be a Gate, a name or None, not int"),
    ({"gate": "a/b"}, ValueError, "name must be 1 to 200 letters"),
    ({"gate": ""}, ValueError, "name must be 1 to 200 letters"),
    ({"cost": 0}, ValueError, "cost must be from 1"),
    ({"cost": -1}, ValueError, "cost must be from 1"),
    ({"cost": True}, TypeError, "cost must be an int, not bool"),
    ({"cost": "1"}, TypeError, "cost must be an int, not str"),
    ({"cost": float("nan")}, TypeError, "cost must be an int, not float"),
    ({"cost": {}}, ValueError, "cost must name at least one cap"),
    ({"cost": {"tokens": 0}}, ValueError, r"cost\['tokens'\] must be from 1"),
    ({"cost": {1: 1}}, TypeError, "the name of a cap must be a str, not int"),
    ({"cost": {"a b": 1}}, ValueError, "the name of a cap must be 1 to"),
    ({"cost": {"headroom": 1}}, ValueError, "no cap can be named 'headroom'"),
    ({"cost": MAX_LIMIT + 1}, ValueError, "cost must be at most 4,294,967,295"),
    ({"headroom": -1}, ValueError, "headroom must be from 0"),
    ({"headroom": None}, TypeError, "headroom must be an int"),
    ({"exempt": "/health"}, ValueError, "exempt must be paths"),
    ({"exempt": ("health",)}, ValueError, "exempt must be paths"),
    ({"exempt": (5,)}, ValueError, "exempt must be paths"),
    ({"exempt": None}, ValueError, "exempt must be paths"),
    ({"exempt": 5}, ValueError, "exempt must be paths"),
    ({"exempt": [["/health"]]}, ValueError, "exempt must be paths"),
    ({"timeout": -0.1}, ValueError, "timeout must be 0 or more seconds"),
    ({"timeout": float("nan")}, ValueError, "timeout must be 0 or more seconds"),
    ({"timeout": "1"}, TypeError, "timeout must be a number of seconds"),
    ({"timeout": True}, TypeError, "timeout must be a number of seconds"),
    ({"max_waiting": 5}, ValueError, "max_waiting needs a timeout"),
    ({"max_waiting": -1, "timeout": 1}, ValueError, "max_waiting must be from 0"),
    ({"max_waiting": 1.5, "timeout": 1}, TypeError, "max_waiting must be an int"),
    ({"status": 500}, ValueError, "status must be 503 or 429, not 500"),
    ({"status": "503"}, ValueError, "status must be 503 or 429, not '503'"),
    ({"status": 503.0}, ValueError, "status must be 503 or 429, not 503.0"),
    ({"retry_after": 5}, ValueError, "retry_after must be two whole numbers"),
    ({"retry_after": (5, 1)}, ValueError, "retry_after must be two whole numbers"),
    ({"retry_after": (-1, 1)}, ValueError, "retry_after must be two whole numbers"),
    ({"retry_after": (False, True)}, ValueError, "retry_after must be two whole numbers"),
    ({"retry_after": (1, MAX_LIMIT + 1)}, ValueError, "retry_after must be two whole numbers"),
    ({"retry_after": (1.5, 2)}, ValueError, "retry_after must be two whole numbers"),
    ({"body": "xml"}, ValueError, "body must be 'json' or 'plain', not 'xml'"),
    ({"body": ["json"]}, ValueError, "body must be 'json' or 'plain'"),
    ({"dry_run": "no"}, TypeError, "dry_run must be True or False, not 'no'"),
    ({"on_missing": "shut"}, ValueError, "on_missing must be 'closed' or 'open', not 'shut'"),
    ({"limit": 5}, TypeError, "limit"),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG, ids=[str(case[0]) for case in WRONG])
def test_a_wrong_option_is_refused_when_the_middleware_is_made(
    face: Face, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        face.build(**options)


def test_a_timeout_that_no_clock_can_count_is_refused_when_the_middleware_is_made(face: Face) -> None:
    with pytest.raises(ValueError, match="timeout must be 0 or more seconds"):
        face.build(timeout=10**400)


def test_a_function_that_is_a_coroutine_is_refused_when_the_middleware_is_made(face: Face) -> None:
    async def cost(_request: object) -> int:
        return 1

    class Cost:
        async def __call__(self, _request: object) -> int:
            return 1

    for option in ("cost", "headroom"):
        for wrong in (cost, Cost()):
            with pytest.raises(TypeError, match=f"{option} must be a plain function, not a coroutine"):
                face.build(**{option: wrong})


def test_a_middleware_that_is_only_made_opens_nothing(
    face: Face, gate: Gate, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(Gate, "open", opened.append)
    face.build(gate_name)
    face.build(gate)
    assert opened == []
    assert gate.statistics().slots == ()
