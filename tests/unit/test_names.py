"""Named gates: names, what stands under them, and who may take or remove them."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatecount import Gate, GateExists, GateNotFound, LayoutMismatch
from support import DEADLINE, path_of, python

LIMITS = {"requests": 10, "tokens": 1000}


def create(name: Any, **changes: Any) -> Gate:
    return Gate.create(name, **{"limits": LIMITS, "slots": 4, **changes})


# Names

BAD_NAMES: list[tuple[Any, type[Exception]]] = [
    ("", ValueError),
    (".", ValueError),
    ("..", ValueError),
    (".hidden", ValueError),
    ("-option", ValueError),
    ("a/b", ValueError),
    ("/a", ValueError),
    ("../a", ValueError),
    ("a\0b", ValueError),
    ("\0", ValueError),
    ("a b", ValueError),
    ("a\n", ValueError),
    ("ä", ValueError),
    ("\ud800", ValueError),
    ("x" * 201, ValueError),
    ("x" * 100_000, ValueError),
    (b"api", TypeError),
    (5, TypeError),
    (True, TypeError),
    (1.5, TypeError),
    (["api"], TypeError),
    (Path("api"), TypeError),
]

bad_names = pytest.mark.parametrize(("name", "error"), BAD_NAMES, ids=lambda value: repr(value)[:20])


@bad_names
@pytest.mark.parametrize("call", [create, Gate.open, Gate.remove])
def test_a_bad_name_is_refused_with_the_rule(
    call: Callable[[Any], object], name: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^name must be ") as caught:
        call(name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("call", [Gate.open, Gate.remove])
def test_none_is_no_name(call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="name must be a str"):
        call(None)


def test_the_longest_name_works(gate_name: str) -> None:
    name = gate_name.ljust(200, "x")
    try:
        with create(name), Gate.open(name) as gate:
            assert gate.name == name
    finally:
        Gate.remove(name)


def test_letters_digits_dots_dashes_and_underscores_work(gate_name: str) -> None:
    name = f"{gate_name}_A.b-C"
    with create(name) as gate:
        assert name in repr(gate)
        Gate.remove(name)


# Created, opened, removed


def test_a_created_gate_can_be_opened_by_name(gate_name: str) -> None:
    with create(gate_name) as gate:
        assert gate.try_acquire(3)
        with Gate.open(gate_name) as other:
            assert other.name == gate.name == gate_name
            assert other.statistics().caps == gate.statistics().caps
            assert other.try_acquire(7)
            assert not gate.try_acquire()


def test_a_name_that_is_taken_is_refused_and_what_stands_is_unharmed(gate_name: str) -> None:
    with create(gate_name) as gate:
        assert gate.try_acquire(3)
        with pytest.raises(GateExists, match=f"gate '{gate_name}' exists already") as caught:
            create(gate_name, limits={"requests": 99})
        assert caught.value.name == gate_name
        assert gate.statistics().caps["requests"].limit == 10
        assert gate.held() == 3


def test_a_gate_stands_until_it_is_removed(gate_name: str) -> None:
    create(gate_name).close()
    Gate.open(gate_name).close()
    Gate.remove(gate_name)
    with pytest.raises(GateNotFound, match=f"no gate '{gate_name}'") as caught:
        Gate.open(gate_name)
    assert caught.value.name == gate_name
    with pytest.raises(GateNotFound):
        Gate.remove(gate_name)


def test_a_gate_removed_while_it_is_open_goes_on_for_those_who_have_it(gate_name: str) -> None:
    with create(gate_name) as old, Gate.open(gate_name) as too:
        assert old.try_acquire(4)
        Gate.remove(gate_name)
        assert not too.try_acquire(7)
        assert too.try_acquire(6)
        with create(gate_name) as new:
            assert new.try_acquire(10)
            old.release(4)
            assert new.statistics().caps["requests"].in_flight == 10
            assert old.statistics().caps["requests"].in_flight == 6


def test_closing_an_old_gate_leaves_a_newer_one_of_the_same_name(gate_name: str) -> None:
    old = create(gate_name)
    Gate.remove(gate_name)
    new = create(gate_name)
    with pytest.raises(FileNotFoundError):
        old.segment.unlink(os.fsencode(path_of(gate_name)))
    old.close()
    del old
    assert path_of(gate_name).exists()
    new.close()


def test_an_anonymous_gate_has_no_name() -> None:
    with Gate.create(limits=LIMITS) as gate:
        assert gate.name is None
        assert os.readlink(f"/proc/self/fd/{gate.segment.fd}").startswith("/memfd:gatecount")


def test_from_env_opens_the_gate_that_the_environment_names(
    gate_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATECOUNT_GATE", gate_name)
    with pytest.raises(GateNotFound, match=gate_name):
        Gate.from_env()
    with create(gate_name), Gate.from_env() as gate:
        assert gate.name == gate_name


@pytest.mark.parametrize("value", [None, ""])
def test_from_env_without_a_name_says_which_variable_is_missing(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GATECOUNT_GATE", raising=False)
    if value is not None:
        monkeypatch.setenv("GATECOUNT_GATE", value)
    with pytest.raises(GateNotFound, match="GATECOUNT_GATE names no gate"):
        Gate.from_env()


def test_from_env_with_a_bad_name_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATECOUNT_GATE", "a/b")
    with pytest.raises(ValueError, match="GATECOUNT_GATE"):
        Gate.from_env()


# exist_ok


def test_exist_ok_creates_what_is_not_there(gate_name: str) -> None:
    with create(gate_name, exist_ok=True) as gate:
        assert gate.try_acquire(10)


def test_exist_ok_adopts_what_stands_with_the_new_limits(gate_name: str) -> None:
    with create(gate_name) as first:
        assert first.try_acquire(8)
        limits = {"tokens": 5, "requests": 9}
        with create(gate_name, limits=limits, exist_ok=True) as second:
            assert {c: one.limit for c, one in first.statistics().caps.items()} == limits
            assert second.try_acquire()
            assert not first.try_acquire()
            assert first.held() == 8


OTHER_LAYOUTS: list[dict[str, Any]] = [
    {"slots": 5},
    {"mode": "approximate"},
    {"limits": {"requests": 10}},
    {"limits": {"requests": 10, "tokens": 1, "more": 1}},
    {"limits": {"requests": 10, "token": 1000}},
]


@pytest.mark.parametrize("changes", OTHER_LAYOUTS, ids=str)
def test_exist_ok_refuses_another_layout_and_changes_nothing(
    gate_name: str, changes: dict[str, Any]
) -> None:
    with create(gate_name) as gate:
        assert gate.try_acquire(3)
        before = path_of(gate_name).read_bytes()
        with pytest.raises(LayoutMismatch, match="were asked for") as caught:
            create(gate_name, **changes, exist_ok=True)
        assert gate_name in caught.value.name
        assert path_of(gate_name).read_bytes() == before


# What is not a gate


def segment_bytes(name: str) -> bytes:
    """Return the bytes of a gate that stood under the name and is there no more."""
    create(name).close()
    whole = path_of(name).read_bytes()
    Gate.remove(name)
    return whole


def patched(whole: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(whole)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "foreign text": (lambda whole: b"hello, I am a log file\n" * 1000, "not a gatecount segment"),
    "one byte": (lambda whole: b"x", "not a gatecount segment|empty or"),
    "cut in the magic": (lambda whole: whole[:7], "not a gatecount segment|truncated"),
    "cut after the magic": (lambda whole: whole[:8], "not a gatecount segment|truncated"),
    "cut in the header": (lambda whole: whole[:127], "not a gatecount segment|truncated"),
    "cut after the header": (lambda whole: whole[:128], "truncated"),
    "cut in the owners": (lambda whole: whole[:200], "truncated"),
    "cut by half": (lambda whole: whole[: len(whole) // 2], "truncated"),
    "cut by one byte": (lambda whole: whole[:-1], "truncated"),
    "longer by one byte": (lambda whole: whole + b"\0", "not as large as its header says"),
    "longer by a page": (lambda whole: whole + bytes(4096), "not as large as its header says"),
    "another version": (lambda whole: patched(whole, 8, "=Q", 1), "another version"),
    "another size": (lambda whole: patched(whole, 16, "=Q", 1 << 40), "not as large"),
    "too many slots": (lambda whole: patched(whole, 24, "=I", 1024), "out of range"),
    "all slots": (lambda whole: patched(whole, 24, "=I", 2**32 - 1), "out of range"),
    "no slots": (lambda whole: patched(whole, 24, "=I", 0), "out of range"),
    "too many caps": (lambda whole: patched(whole, 28, "=I", 33), "out of range"),
    "no caps": (lambda whole: patched(whole, 28, "=I", 0), "out of range"),
    "more slots than bytes": (lambda whole: patched(whole, 24, "=I", 5), "not as large"),
    "too many words": (lambda whole: patched(whole, 32, "=Q", 2**64 - 1), "out of range"),
    "another mode": (lambda whole: patched(whole, 40, "=I", 3), "out of range"),
    "another boot": (lambda whole: patched(whole, 48, "=Q", 1), "last started"),
}


def expect_mismatch(name: str, reason: str) -> None:
    for call in (Gate.open, Gate.remove, lambda name: create(name, exist_ok=True)):
        began = time.monotonic()
        with pytest.raises(LayoutMismatch, match=reason) as caught:
            call(name)
        assert str(path_of(name)) in str(caught.value)
        assert time.monotonic() - began < 30
    with pytest.raises(GateExists):
        create(name)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_gate_is_refused_and_left_alone(gate_name: str, kind: str) -> None:
    make, reason = FILES[kind]
    content = make(segment_bytes(gate_name))
    path_of(gate_name).write_bytes(content)
    expect_mismatch(gate_name, reason)
    assert path_of(gate_name).read_bytes() == content


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_without_a_magic_is_waited_for_and_then_refused(gate_name: str, size: int) -> None:
    path_of(gate_name).write_bytes(bytes(size))
    with pytest.raises(LayoutMismatch, match="empty or was never finished by its creator"):
        Gate.open(gate_name)
    assert path_of(gate_name).read_bytes() == bytes(size)


def test_a_directory_is_refused(gate_name: str) -> None:
    path_of(gate_name).mkdir()
    expect_mismatch(gate_name, "is a directory")


def test_a_fifo_is_refused_without_waiting_for_a_writer(gate_name: str) -> None:
    os.mkfifo(path_of(gate_name))
    expect_mismatch(gate_name, "is not a regular file")


def test_a_socket_is_refused(gate_name: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path_of(gate_name)))
        expect_mismatch(gate_name, "is not a regular file")


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_is_refused(gate_name: str, dangling: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.write_bytes(segment_bytes(gate_name))
    path_of(gate_name).symlink_to(target)
    expect_mismatch(gate_name, "is a symbolic link")
    assert target.exists() is not dangling


# Permissions and room


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("permissions", [None, 0o600, 0o660, 0o666])
def test_the_permissions_are_those_asked_for_whatever_the_umask(
    gate_name: str, umask: int, permissions: int | None
) -> None:
    given = {} if permissions is None else {"permissions": permissions}
    before = os.umask(umask)
    try:
        create(gate_name, **given).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path_of(gate_name).stat().st_mode) == (permissions or 0o600)


SMALL = """
import errno, os, resource, sys
from gatecount import AdmissionCounters, AtomicArray, Gate

resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
for make in (
    lambda: Gate.create(sys.argv[1], limits={"requests": 1}, slots=1023),
    lambda: Gate.create(limits={"requests": 1}, slots=1023),
    lambda: AdmissionCounters(1023, 1),
    lambda: AtomicArray(5000),
):
    before = os.listdir("/proc/self/fd")
    try:
        make()
    except OSError as error:
        assert error.errno in (errno.EFBIG, errno.ENOSPC), error
    else:
        raise AssertionError("there was no room for that")
    assert os.listdir("/proc/self/fd") == before
Gate.create(sys.argv[1], limits={"requests": 1}, slots=2).close()
Gate.remove(sys.argv[1])
"""


def test_a_creation_without_room_is_an_error_and_leaves_nothing(gate_name: str) -> None:
    done = subprocess.run(
        python(SMALL, gate_name), timeout=DEADLINE, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not path_of(gate_name).exists()
