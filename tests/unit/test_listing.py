"""`gatecount.gates`: the gates of this machine, and what only looks like one."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

import pytest

import gatecount
from gatecount import FoundGate, Gate
from gatecount.listing import look
from support import path_of


def found(prefix: str) -> dict[str, FoundGate]:
    """Return what is found under names that begin with a prefix: other tests may have gates, too."""
    return {one.name: one for one in gatecount.gates() if one.name.startswith(prefix)}


def test_gates_are_found_by_name_in_order_with_what_they_tell(gate_name: str) -> None:
    names = [f"{gate_name}-{letter}" for letter in "cab"]
    try:
        for name in names:
            Gate.create(name, limits={"requests": 3}, permissions=0o640).close()
        with Gate.open(names[0]) as gate:
            assert gate.try_acquire(2)
            told = found(gate_name)
            assert list(told) == sorted(names)
            one = told[names[0]]
            assert (one.status, one.problem, one.path) == ("ok", None, str(path_of(names[0])))
            assert one.permissions == 0o640
            assert one.user == path_of(names[0]).owner()
            assert one.statistics is not None
            assert one.statistics.caps["requests"].in_flight == 2
            assert [slot.pid for slot in one.statistics.slots] == [os.getpid()]
    finally:
        for name in names:
            Gate.remove(name)


def test_looking_writes_nothing(gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 3}) as gate:
        assert gate.try_acquire(2)
        before = path_of(gate_name).read_bytes()
        assert found(gate_name)
        assert path_of(gate_name).read_bytes() == before
        Gate.remove(gate_name)


def test_what_is_no_gate_is_told_of_as_such_and_at_once(gate_name: str) -> None:
    whole = _bytes_of_a_gate(gate_name)
    path = {
        kind: path_of(f"{gate_name}-{kind}") for kind in ("cut", "empty", "foreign", "link", "socket")
    }
    directory = path_of(f"{gate_name}-directory")
    spoken = path_of(f"{gate_name}-a b\x1b[31m")
    try:
        path["cut"].write_bytes(whole[:-1])
        path["empty"].touch()
        path["foreign"].write_bytes(b"#" * len(whole))
        path["link"].symlink_to(path["foreign"])
        spoken.write_bytes(whole)
        directory.mkdir()
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path["socket"]))
        told = found(gate_name)
        seconds = []
        while not seconds or (min(seconds) >= 0.9 and len(seconds) < 5):  # a busy machine may take long
            began = time.monotonic()
            found(gate_name)
            seconds.append(time.monotonic() - began)
    finally:
        for file in (*path.values(), spoken):
            file.unlink(missing_ok=True)
        directory.rmdir()
    assert len(told) == 7
    for one in told.values():
        assert one.status == "invalid"
        assert one.problem
        assert one.statistics is None
    assert "truncated" in str(told[f"{gate_name}-cut"].problem)
    assert "name" in str(told[f"{gate_name}-a b\x1b[31m"].problem)
    assert min(seconds) < 0.9, "it waited for a file that nobody finishes"


def _bytes_of_a_gate(name: str) -> bytes:
    Gate.create(name, limits={"requests": 3}).close()
    whole = path_of(name).read_bytes()
    Gate.remove(name)
    return whole


def test_a_directory_that_does_not_exist_holds_no_gates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gatecount.listing.DIRECTORY", str(tmp_path / "none"))
    assert gatecount.gates() == ()


def test_running_out_of_descriptors_is_not_called_a_damaged_gate(gate_name: str) -> None:
    with Gate.create(gate_name, limits={"requests": 3}):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            with pytest.raises(OSError, match="Too many open files"):
                look(gate_name)  # gates() would find none left to list the directory with
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        Gate.remove(gate_name)
