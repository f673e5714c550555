"""The commands that change a gate, over real workers: set-limit, reclaim, remove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gatecount import Gate
from gatecount._core import MAX_LIMIT
from host.commands import LIMITS, cli, json_of
from support import Crew, Remote, path_of


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=8) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


# set-limit


@pytest.mark.parametrize(
    ("written", "limit"),
    [("50", 50), ("32k", 32_000), ("1K", 1024), ("0", 0), ("4294967295", MAX_LIMIT)],
)
def test_set_limit_holds_for_every_process_at_once(
    gate: Gate, gate_name: str, crew: Crew, written: str, limit: int
) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    told = json_of("set-limit", gate_name, "requests", written)
    assert told == {"name": gate_name, "cap": "requests", "limit": limit, "previous": 10}
    if limit < MAX_LIMIT:
        assert not worker.call("try_acquire", limit + 1)
    if limit > 0:
        assert worker.call("try_acquire", limit)


def test_set_limit_says_what_was_and_what_must_drain(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(7)
    done = cli("set-limit", gate_name, "requests", "5")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{gate_name}: limit of requests is 5, was 10",
        "7 are in flight: none is admitted until they have drained",
    ]
    assert "drained" not in cli("set-limit", gate_name, "requests", "7").output


@pytest.mark.parametrize("wrong", ["1.5K", "ten", "", "4294967296", "5G", "1e3", "1_000", "-5"])
def test_a_bad_limit_is_a_usage_error_and_changes_nothing(
    gate: Gate, gate_name: str, wrong: str
) -> None:
    done = cli("set-limit", gate_name, "requests", "--", wrong)
    assert done.exit_code == 2
    assert "Invalid value for 'N'" in done.stderr
    assert gate.statistics().caps["requests"].limit == 10


def test_a_cap_that_is_not_there_is_said_with_those_that_are(gate: Gate, gate_name: str) -> None:
    done = cli("set-limit", gate_name, "uploads", "5")
    assert done.exit_code == 1
    assert done.stderr == "Error: cap 'uploads' does not exist; this gate has 'requests', 'tokens'\n"
    assert done.stdout == ""


# reclaim


def test_reclaim_gives_back_what_the_dead_held_and_counts_them(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    workers = [Remote(crew, Gate.open, gate_name) for _ in range(3)]
    for worker in workers:
        assert worker.call("try_acquire", 3)
    assert json_of("reclaim", gate_name) == {"name": gate_name, "dead_owners": 0}
    workers[0].kill()
    assert cli("reclaim", gate_name).output == f"{gate_name}: 1 dead owner cleaned up\n"
    workers[1].kill()
    assert json_of("reclaim", gate_name) == {"name": gate_name, "dead_owners": 1}
    cap = gate.statistics().caps["requests"]
    assert (cap.in_flight, cap.reclaimed) == (3, 6)


# remove


def test_remove_refuses_while_an_owner_lives_and_not_after(
    gate: Gate, gate_name: str, crew: Crew
) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    worker.call("claim")
    done = cli("remove", gate_name)
    assert done.exit_code == 3
    assert str(worker.process.pid) in done.stderr
    assert "--force" in done.stderr
    assert path_of(gate_name).exists()
    worker.kill()
    assert json_of("remove", gate_name) == {"name": gate_name, "removed": True, "living_owners": []}
    assert not path_of(gate_name).exists()


def test_remove_by_force_leaves_the_living_their_gate(gate: Gate, gate_name: str, crew: Crew) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    assert worker.call("try_acquire", 4)
    done = cli("remove", gate_name, "--force")
    assert done.exit_code == 0
    assert f"1 living process (pid {worker.process.pid}) goes on with it" in done.output
    assert not path_of(gate_name).exists()
    assert worker.call("try_acquire", 6)
    assert not gate.try_acquire()


def test_remove_leaves_a_newer_gate_of_that_name_alone(
    gate: Gate, gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(self: Gate) -> Any:
        monkeypatch.undo()
        Gate.remove(gate_name)
        Gate.create(gate_name, limits={"uploads": 3}).close()
        return self.statistics()

    monkeypatch.setattr(Gate, "statistics", replaced)
    done = cli("remove", gate_name)
    assert done.exit_code == 1
    with Gate.open(gate_name) as newer:
        assert list(newer.statistics().caps) == ["uploads"]


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_remove_leaves_a_file_alone_that_is_no_gate(gate_name: str, options: list[str]) -> None:
    path_of(gate_name).write_bytes(b"something else")
    done = cli("remove", gate_name, *options)
    assert done.exit_code == 1
    assert str(path_of(gate_name)) in done.stderr
    assert path_of(gate_name).read_bytes() == b"something else"
