"""The commands that look at gates, over real workers: what they say; and how all of them fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gatecount import Gate, GateStatistics
from gatecount.cli.group import main
from host.commands import LIMITS, cli, json_of
from host.terminal import Terminal
from support import DEADLINE, Crew, Remote, path_of, wait_until

NOBODY = 65534
OF_ONE_GATE = ("show", "reclaim", "remove")

CAP_SHAPE = {
    "in_flight",
    "limit",
    "peak",
    "admitted",
    "refused",
    "reclaimed",
    "repairs",
    "waiting",
    "refused_by",
}
GATE_SHAPE = {"name", "mode", "slot_count", "caps", "slots"}
SLOT_SHAPE = {"slot", "pid", "age", "held", "admitted", "refused", "waiting"}
FOUND_SHAPE = {"name", "path", "status", "problem", "user", "permissions", "statistics"}


@pytest.fixture
def gate(gate_name: str) -> Iterator[Gate]:
    with Gate.create(gate_name, limits=LIMITS, slots=8) as made:
        yield made


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew("fork") as made:
        yield made


def listed(name: str) -> Any:
    """Return what list tells of a name: there may be other gates on the machine."""
    return {one["name"]: one for one in json_of("list")["gates"]}.get(name)


def row_of(shown: str, first: str) -> list[str]:
    """Return the words of the line that begins with a word."""
    return next(line.split() for line in shown.splitlines() if line.split()[:1] == [first])


# list


def test_list_tells_of_every_gate_and_of_files_that_are_none(gate: Gate, gate_name: str) -> None:
    damaged = path_of(f"{gate_name}-damaged")
    assert gate.try_acquire(7)
    try:
        damaged.write_bytes(b"no gate")
        shown, told = cli("list").output, listed(f"{gate_name}-damaged")
    finally:
        damaged.unlink()
    assert row_of(shown, gate_name)[1:] == ["requests", "7", "10", "1", "of", "8", "hard", "███████░░░"]
    assert row_of(shown, f"{gate_name}-damaged")[3:] == ["is", "not", "a", "gatecount", "segment"]
    assert (told["status"], told["statistics"]) == ("invalid", None)


def test_list_in_json_has_the_shape_that_is_documented(gate: Gate, gate_name: str) -> None:
    gate.claim()
    one = listed(gate_name)
    assert set(one) == FOUND_SHAPE
    assert (one["status"], one["permissions"], one["path"]) == ("ok", "0600", str(path_of(gate_name)))
    assert set(one["statistics"]) == GATE_SHAPE
    assert set(one["statistics"]["slots"][0]) == SLOT_SHAPE
    assert set(one["statistics"]["caps"]["requests"]) == CAP_SHAPE


def test_list_says_it_when_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gatecount.listing.DIRECTORY", str(tmp_path))
    done = cli("list")
    assert done.exit_code == 0
    assert done.output.startswith("There are no gates on this machine")
    assert json_of("list") == {"gates": []}


def test_a_name_from_a_foreign_file_cannot_write_to_the_terminal(gate_name: str) -> None:
    hostile = path_of(f"{gate_name}-\x1b[2Jx[red]\n\udcff")
    try:
        hostile.touch()
        done = subprocess.run(
            [sys.executable, "-m", "gatecount.cli", "list"],
            capture_output=True,
            timeout=DEADLINE,
            check=True,
        )
    finally:
        hostile.unlink()
    assert b"\x1b" not in done.stdout
    assert rf"{gate_name}-\x1b[2Jx[red]\n\udcff".encode() in done.stdout


# show


def test_show_tells_of_caps_and_workers(gate: Gate, gate_name: str, crew: Crew) -> None:
    workers = [Remote(crew, Gate.open, gate_name) for _ in range(3)]
    for number, worker in enumerate(workers, start=1):
        assert worker.call("try_acquire", number)
        assert worker.call("try_acquire", 1000 * number, cap="tokens")
    assert not workers[0].call("try_acquire", 9)
    lines = [" ".join(line.split()) for line in cli("show", gate_name).output.splitlines()]
    assert lines[0] == f"{gate_name} hard 3 of 8 slots used"
    for line in ("requests tokens", "in flight 6 6,000", "limit 10 200,000", "admitted 3 3", "full 1 0"):
        assert line in lines
    for number, worker in enumerate(workers, start=1):
        row = row_of("\n".join(lines), str(worker.process.pid))
        assert (row[1], row[3], row[4]) == (str(number - 1), str(number), f"{number},000")
        assert row[5:7] == ["1", "1"]  # admitted under each cap
        assert row[7:9] == ["1" if number == 1 else "0", "0"]


def test_show_in_json_is_statistics_and_the_dead(gate: Gate, gate_name: str, crew: Crew) -> None:
    worker = Remote(crew, Gate.open, gate_name)
    assert worker.call("try_acquire", 4)
    told = json_of("show", gate_name)
    assert set(told) == GATE_SHAPE | {"dead"}
    assert told["caps"]["requests"]["refused_by"] == {"full": 0, "timeout": 0, "too_large": 0}
    assert [slot["pid"] for slot in told["slots"]] == [worker.process.pid]
    assert told["dead"] == []
    worker.kill()
    told = json_of("show", gate_name)
    assert told["slots"] == []
    assert told["dead"] == [{"slot": 0, "pid": worker.process.pid, "held": {"requests": 4, "tokens": 0}}]
    assert told["caps"]["requests"]["in_flight"] == 4
    assert f"gatecount reclaim {gate_name} takes back" in cli("show", gate_name).output


def test_who_dies_or_comes_while_it_is_read_is_not_told_of_twice_nor_as_dead(
    gate: Gate, gate_name: str, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed, newcomer = (Remote(crew, Gate.open, gate_name) for _ in range(2))
    doomed.call("claim")
    read = Gate.statistics

    def interrupted(self: Gate) -> GateStatistics:
        told = read(self)
        doomed.kill()
        newcomer.call("claim")
        return told

    monkeypatch.setattr(Gate, "statistics", interrupted)
    told = json_of("show", gate_name)
    assert [slot["pid"] for slot in told["slots"]] == [doomed.process.pid]
    assert told["dead"] == []


def test_top_in_json_is_a_list_of_what_show_tells(gate: Gate, gate_name: str) -> None:
    assert gate.try_acquire(4)
    one = json_of("top", gate_name)["gates"]
    every = json_of("top")["gates"]
    assert [told["name"] for told in one] == [gate_name]
    assert set(one[0]) == GATE_SHAPE | {"dead"}
    assert gate_name in [told["name"] for told in every]


@pytest.mark.parametrize("columns", [30, 80, 120])
def test_tables_fit_the_terminal_with_any_number_of_caps(gate_name: str, columns: int) -> None:
    limits = {f"cap-{number}-with-a-long-name": 4_000_000_000 for number in range(32)}
    with Gate.create(gate_name, limits=limits, slots=8) as gate:
        gate.claim()
        with Terminal("show", gate_name, columns=columns, rows=50) as terminal:
            assert terminal.wait() == 0
            lines = terminal.plain().splitlines()
    assert all(
        len(line) <= columns for line in lines if "too narrow" not in line and gate_name not in line
    )
    if columns >= 80:
        for cap in limits:
            assert any(cap in line for line in lines[:-5])
    assert any(str(os.getpid()) in line for line in lines)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_list_in_a_narrow_terminal_cuts_no_name_and_no_number(gate_name: str, columns: int) -> None:
    name = gate_name + "-" + "n" * 60

    def shows_the_number() -> bool:
        with Terminal("list", columns=columns, rows=50) as terminal:
            assert terminal.wait() == 0
            lines = terminal.plain().splitlines()
        assert name in "".join(line[1:].partition(" ")[0] for line in lines)
        assert max(map(len, lines)) <= columns
        return "4,000,000,000" in terminal.plain()

    try:
        Gate.create(name, limits={"requests": 4_000_000_000}).close()
        # A cap of another test's gate may have so long a name that there is no room beside it.
        wait_until(shows_the_number)
    finally:
        Gate.remove(name)


# What goes wrong


@pytest.mark.parametrize("command", [*OF_ONE_GATE, "top", "set-limit"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_gate_that_is_missing_is_one_line_and_exit_code_1(
    gate_name: str, command: str, options: list[str]
) -> None:
    done = cli(command, gate_name, *(["requests", "5"] if command == "set-limit" else []), *options)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"Error: there is no gate {gate_name!r} on this machine (gatecount list shows those there are)\n"
    )


@pytest.mark.parametrize("command", [*OF_ONE_GATE, "top", "set-limit"])
def test_a_damaged_gate_is_one_line_and_exit_code_1(gate_name: str, command: str) -> None:
    Gate.create(gate_name, limits=LIMITS).close()
    os.truncate(path_of(gate_name), 100)
    done = cli(command, gate_name, *(["requests", "5"] if command == "set-limit" else []))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert re.fullmatch(rf"Error: {path_of(gate_name)} .*\n", done.stderr)


@pytest.mark.parametrize("command", [*OF_ONE_GATE, "top"])
@pytest.mark.parametrize("name", ["a/b", "", "..", "-x", "a b", "x" * 201])
def test_what_can_be_no_name_is_a_usage_error_that_says_the_rule(command: str, name: str) -> None:
    done = cli(command, "--", name)
    assert done.exit_code == 2
    assert "letters, digits" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_gate_of_another_user_is_listed_and_refused_without_a_crash(gate_name: str) -> None:
    with Gate.create(gate_name, limits=LIMITS, slots=2):
        for arguments in (["list"], ["list", "--json"], ["top", "--json"]):
            done = _as_nobody(*arguments)
            assert done.returncode == 0, done.stderr
        told = {one["name"]: one for one in json.loads(_as_nobody("list", "--json").stdout)["gates"]}
        one = told[gate_name]
        assert (one["status"], one["user"], one["permissions"]) == ("denied", "root", "0600")
        assert one["statistics"] is None
        assert gate_name in _as_nobody("list").stdout
        for command in (*OF_ONE_GATE, "top"):
            done = _as_nobody(command, gate_name)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"Error: gate {gate_name!r} may not be used by this user")
            assert len(done.stderr.splitlines()) == 1
        Gate.remove(gate_name)


def _as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    # In a fork, which has everything imported: another user may not read where it is installed.
    assert CliRunner().invoke(main, ["list"]).exit_code == 0
    read, write = os.pipe()
    errors_read, errors_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.dup2(write, 1)
            os.dup2(errors_write, 2)
            done = CliRunner().invoke(main, arguments)
            os.write(1, done.stdout.encode())
            os.write(2, done.stderr.encode())
            code = done.exit_code
        finally:
            os._exit(code)
    for end in (write, errors_write):
        os.close(end)
    with open(read, encoding="utf-8") as output, open(errors_read, encoding="utf-8") as errors:
        told, complaints = output.read(), errors.read()
    return subprocess.CompletedProcess(
        arguments, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told, complaints
    )


def test_a_directory_that_may_not_be_read_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()  # root may read every directory
    monkeypatch.setattr("gatecount.listing.DIRECTORY", str(nowhere))
    for command in ("list", "top"):
        for options in ([], ["--json"]):
            done = cli(command, *options)
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr == f"Error: {nowhere}: Not a directory\n"


def test_top_says_it_when_there_is_nothing_to_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gatecount.listing.DIRECTORY", str(tmp_path))
    done = cli("top")
    assert (done.exit_code, done.stderr) == (0, "")
    assert (
        done.stdout == "no gate that may be read: gatecount list tells of the others, if there are any\n"
    )
    assert json_of("top") == {"gates": []}


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", ["list", "show", "top", "set-limit", "reclaim", "remove"])
def test_output_without_room_is_one_line_and_exit_code_1(
    gate: Gate, gate_name: str, command: str, options: list[str]
) -> None:
    arguments = {"list": [], "set-limit": [gate_name, "requests", "5"]}.get(command, [gate_name])
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gatecount.cli", command, *arguments, *options],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"Error: No space left on device\n")


@pytest.mark.parametrize("command", ["list", "show", "top", "reclaim"])
def test_without_any_output_it_runs_all_the_same(gate: Gate, gate_name: str, command: str) -> None:
    arguments = [] if command == "list" else [gate_name]
    done = subprocess.run(
        [
            *("sh", "-c", 'exec "$@" >&-', "sh"),
            *(sys.executable, "-W", "error", "-m", "gatecount.cli", command, *arguments),
        ],
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


# Help


@pytest.mark.parametrize("command", ["list", "show", "top", "set-limit", "reclaim", "remove"])
def test_help_documents_json_and_the_exit_codes(command: str) -> None:
    text = cli(command, "--help").output
    assert "--json" in text
    codes = text.partition("Exit codes:\n")[2]
    expected = {"0", "1", "2"} | {"remove": {"3"}, "top": {"143"}}.get(command, set())
    assert set(re.findall(r"^ +(\d+)  ", codes, re.MULTILINE)) == expected
    assert max(map(len, text.splitlines())) <= 80


def test_every_command_of_a_gate_is_one_of_the_group() -> None:
    context = click.Context(main)
    assert {"list", "show", "top", "set-limit", "reclaim", "remove"} <= set(main.list_commands(context))


@pytest.mark.parametrize("command", ["show", "reclaim"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_into_a_closed_pipe_ends_it_without_a_word(
    gate: Gate, gate_name: str, command: str, options: list[str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.Popen(
        [sys.executable, "-m", "gatecount.cli", command, gate_name, *options],
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    _, errors = done.communicate(timeout=DEADLINE)
    assert errors == b""
    assert done.returncode in (1, -signal.SIGPIPE)
