"""What a client gets and the log says while the gate cannot be used, and that it is found again."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from gatecount import Gate, GateNotFound
from gatecount.gate import ENVIRONMENT
from gatecount.integrations import _source
from integrations.expected import expect_busy, only
from integrations.faces import FACES, Face
from integrations.middleware_servers import ask, becomes
from support import Crew, Remote, path_of, scaled, wait_until

NOBODY = 65534


def expect_unusable(face: Face, log: Any, gate: Any, cause: str, **options: Any) -> None:
    """Find the outcome of a gate that cannot be used: closed, open and in a dry run."""
    for policy, served in (
        ({}, False),
        ({"on_missing": "closed"}, False),
        ({"on_missing": "open"}, True),
        ({"on_missing": "closed", "dry_run": True}, True),
    ):
        seen, calls = len(log()), face.calls
        with face.serve(gate, **options, **policy) as port:
            answers = [ask(port, "/work") for _ in range(3)]
        for answer in answers:
            if served:
                assert (answer.status, answer.body) == (200, b"served")
            else:
                expect_busy(answer)
        assert face.calls - calls == 3 * served
        level, line = only(log()[seen:])
        assert level == logging.ERROR
        done = "lets in GET '/work' unlimited" if served else "refuses GET '/work' with 503"
        if "dry_run" in policy:
            done = "dry run: would refuse GET '/work' with 503"
        assert line.startswith(f"{done}: the gate cannot be used: {cause}")


def test_a_missing_gate_refuses_all_or_none(face: Face, gate_name: str, log: Any) -> None:
    expect_unusable(face, log, gate_name, f"GateNotFound: there is no gate {gate_name!r}")


def test_a_variable_that_names_no_gate_refuses_all_or_none(
    face: Face, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    expect_unusable(face, log, None, f"GateNotFound: the environment variable {ENVIRONMENT}")
    monkeypatch.setenv(ENVIRONMENT, "no/name")
    expect_unusable(face, log, None, f"ValueError: the environment variable {ENVIRONMENT}: name must")


def test_the_variable_names_the_gate(
    face: Face, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with face.serve() as port, Gate.create(gate_name, limits={"requests": 1}) as gate:
        monkeypatch.setenv(ENVIRONMENT, gate_name)
        assert ask(port).status == 200
        assert gate.statistics().caps["requests"].admitted == 1
        becomes(gate, 0)
        with gate.admit():
            assert ask(port).status == 503


@pytest.mark.parametrize("content", [b"", b"something else" * 500])
def test_a_file_that_is_not_a_gate_refuses_all_or_none(
    face: Face, gate_name: str, log: Any, content: bytes
) -> None:
    path_of(gate_name).write_bytes(content)
    expect_unusable(face, log, gate_name, "LayoutMismatch: ")
    assert path_of(gate_name).read_bytes() == content


def test_a_gate_without_the_cap_of_a_fixed_cost_refuses_all_or_none(face: Face, log: Any) -> None:
    with Gate.create(limits={"tokens": 5}) as gate:
        expect_unusable(
            face, log, gate, "UnknownCap: cap 'requests' does not exist; this gate has 'tokens'"
        )
        assert gate.statistics().slots == ()


def test_a_gate_that_was_closed_refuses_all_or_none(face: Face, log: Any, gate: Gate) -> None:
    gate.close()
    expect_unusable(face, log, gate, "GateClosed: ")


def test_a_gate_that_is_closed_while_in_use_refuses_from_then_on(
    face: Face, log: Any, gate: Gate
) -> None:
    with face.serve(gate) as port:
        assert ask(port).status == 200
        gate.close()
        expect_busy(ask(port))
        expect_busy(ask(port))
    level, line = only(log())
    assert level == logging.ERROR
    assert "the gate cannot be used: GateClosed: " in line


def test_more_workers_than_slots_refuse_all_or_none_and_one_gets_the_first_that_is_freed(
    face: Face, gate_name: str, log: Any
) -> None:
    with Gate.create(gate_name, limits={"requests": 9}, slots=1) as gate, Crew("fork") as crew:
        other = Remote(crew, Gate.open, gate_name)
        other.call("claim")
        expect_unusable(
            face, log, gate_name, "SlotsExhausted: all 1 slots are owned by living processes"
        )
        with face.serve(gate_name) as port:
            expect_busy(ask(port))
            other.kill()
            wait_until(lambda: ask(port).status == 200)
            becomes(gate, 0)
            assert [slot.pid for slot in gate.statistics().slots] == [os.getpid()]
            cap = gate.statistics().caps["requests"]
            assert (cap.in_flight, cap.refused) == (0, 0)
    assert "the gate can be used again, after SlotsExhausted: " in log()[-1].getMessage()


class Elsewhere:
    """A middleware in the process of another user, asked there."""

    def __init__(self, kind: str, name: str) -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        self._kind, self._name = kind, name

    def status(self, **options: Any) -> int:
        with FACES[self._kind]().serve(self._name, **options) as port:
            return ask(port).status


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", FACES)
def test_the_gate_of_another_user_refuses_all_or_none(kind: str, gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 9}) as gate, Crew("fork") as crew:
        other = Remote(crew, Elsewhere, kind, gate_name)
        assert other.call("status") == 503
        assert other.call("status", on_missing="open") == 200
        assert other.call("status", dry_run=True) == 200
        assert gate.statistics().slots == ()
        path_of(gate_name).chmod(0o666)
        assert other.call("status") == 200
        assert gate.statistics().caps["requests"].admitted == 1


def test_a_gate_that_comes_later_is_found_without_a_restart(
    face: Face, gate_name: str, log: Any
) -> None:
    with face.serve(gate_name) as port:
        assert ask(port).status == 503
        with Gate.create(gate_name, limits={"requests": 1}) as gate:
            wait_until(lambda: ask(port).status == 200)
            becomes(gate, 0)
            with gate.admit():
                assert ask(port).status == 503
    assert [line.getMessage()[:30] for line in log()] == [
        "refuses GET '/' with 503: the gate cannot be used"[:30],
        "the gate can be used again, after GateNotFound"[:30],
        "refuses GET '/' with 503: cap 'requests'"[:30],
    ]


def serves_by_the_next_of_its_name(port: int, gate_name: str) -> None:
    """Create the gate anew, and see that the first request that is served is counted there."""
    with Gate.create(gate_name, limits={"requests": 9}) as gate:
        wait_until(lambda: ask(port).status == 200)
        becomes(gate, 0)
        assert gate.statistics().caps["requests"].admitted == 1


def test_a_gate_that_could_not_be_used_is_given_up_for_the_next_of_its_name(
    face: Face, gate_name: str
) -> None:
    with face.serve(gate_name) as port, Gate.create(gate_name, limits={"tokens": 1}):
        assert ask(port).status == 503
        Gate.remove(gate_name)
        serves_by_the_next_of_its_name(port, gate_name)


def test_a_worker_that_found_no_slot_never_counts_in_a_gate_whose_name_is_gone(
    face: Face, gate_name: str
) -> None:
    with face.serve(gate_name) as port:
        with Gate.create(gate_name, limits={"requests": 9}, slots=1) as first:
            first.claim()
            assert ask(port).status == 503
            Gate.remove(gate_name)
        serves_by_the_next_of_its_name(port, gate_name)


def test_a_gate_that_cannot_be_used_is_not_looked_for_at_every_request(
    face: Face, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def look(name: str) -> Gate:
        looked.append(name)
        raise GateNotFound(name, "there is none")

    monkeypatch.setattr(Gate, "open", look)
    with face.serve(gate_name) as port:
        began = time.monotonic()
        for _ in range(20):
            assert ask(port).status == 503
        seconds = time.monotonic() - began
    assert len(looked) <= 1 + seconds, "more than once a second"


def test_an_attempt_that_has_blocked_is_made_again_after_ten_times_as_long(
    face: Face, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    looked: list[float] = []

    def look(name: str) -> Gate:
        nonlocal now
        looked.append(now)
        now += 0.5  # so long it takes
        raise GateNotFound(name, "there is none")

    monkeypatch.setattr(Gate, "open", look)
    monkeypatch.setattr("gatecount.integrations._source.time", SimpleNamespace(monotonic=lambda: now))
    with face.serve(gate_name) as port:
        for moment in (1000.0, 1002.0, 1005.4, 1005.6):
            now = max(now, moment)
            assert ask(port).status == 503
    assert looked == [1000.0, 1005.6]


def test_of_threads_that_try_at_once_each_is_told_that_the_gate_cannot_be_used(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for share in ("RETRY", "RETRY_SHARE"):
        monkeypatch.setattr(_source, share, 0)  # each tries
    source = _source.GateSource(gate_name, frozenset({"requests"}))
    told: list[type[BaseException]] = []

    def attempt() -> None:
        for _ in range(scaled(500)):
            try:
                source.ready()
            except Exception as error:  # noqa: BLE001 (of whatever type)
                told.append(type(error))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Gate.create(gate_name, limits={"tokens": 1}):
            threads = [threading.Thread(target=attempt) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert Counter(told) == {_source.Unusable: 4 * scaled(500)}
