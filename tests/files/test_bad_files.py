"""Files that are no gate, whatever they are: one typed error that names them, no crash, no write."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from files.gatefile import CALLS, HEADER, LIMITS, create, error_of, expect_refusal, good_bytes, identity
from gatecount import Gate, LayoutMismatch
from support import path_of, scaled

HARMLESS = ("creator", "time", "room for later")


@pytest.fixture
def file(gate_name: str) -> Path:
    return path_of(gate_name)


@pytest.fixture
def good(gate_name: str) -> bytes:
    return good_bytes(gate_name)


def patched(whole: bytes, **fields: int) -> bytes:
    """Return a header, or a file that begins with one, with other numbers in it."""
    changed = bytearray(whole)
    for field, value in fields.items():
        at = HEADER[field]
        changed[at.start : at.stop] = (value % (1 << 8 * len(at))).to_bytes(len(at), "little")
    return bytes(changed)


def size_of(slots: int, caps: int, words: int) -> int:
    return 128 + 64 * slots + 128 * caps + 128 * slots * caps + 8 * words


def test_a_gate_is_as_large_as_these_tests_think(good: bytes) -> None:
    slots, caps, words = struct.unpack_from("=IIQ", good, 24)
    assert (slots, caps, words) == (4, 2, 0)
    assert len(good) == size_of(slots, caps, words) == struct.unpack_from("=Q", good, 16)[0]


# Cut short, or longer


def test_a_file_cut_short_at_any_offset_is_refused(gate_name: str, file: Path, good: bytes) -> None:
    ends = [*range(1, 130), *range(130, len(good), 61), len(good) - 1]
    for end in ends:
        file.write_bytes(good[:end])
        expect_refusal(gate_name, "truncated" if end >= 128 else "not a gatecount segment|truncated")


def test_a_file_longer_than_its_header_says_is_refused(gate_name: str, file: Path, good: bytes) -> None:
    for more in (1, 7, 8, 64, 4096, 1 << 20):
        file.write_bytes(good + bytes(more))
        expect_refusal(gate_name, "not as large as its header says")


def test_a_gate_that_is_truncated_while_it_is_open_can_be_opened_no_more(gate_name: str) -> None:
    with create(gate_name):
        for size in (1000, 128, 100):
            os.truncate(path_of(gate_name), size)
            expect_refusal(gate_name)


# Damaged headers


@pytest.mark.parametrize("field", [field for field in HEADER if field not in HARMLESS])
def test_a_header_with_a_flipped_bit_is_refused(
    field: str, gate_name: str, file: Path, good: bytes
) -> None:
    for at in HEADER[field]:
        for flip in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            file.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            expect_refusal(gate_name)


@pytest.mark.parametrize("field", HARMLESS)
def test_a_flipped_bit_where_nothing_depends_on_it_does_no_harm(
    field: str, gate_name: str, file: Path, good: bytes
) -> None:
    for at in HEADER[field]:
        for flip in (1, 128, 255):
            file.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            with Gate.open(gate_name) as gate:
                assert gate.try_acquire(10)
                assert not gate.try_acquire()


def test_a_header_of_zeros_ones_or_anything_is_refused(gate_name: str, file: Path, good: bytes) -> None:
    for field in (field for field in HEADER if field not in HARMLESS and field != "magic"):
        for value in (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
            header = patched(good, **{field: value})
            if header != good:
                file.write_bytes(header)
                expect_refusal(gate_name)


def test_the_layout_of_another_version_is_refused_as_such(
    gate_name: str, file: Path, good: bytes
) -> None:
    for other in range(20):
        file.write_bytes(patched(good, **{"layout hash": other}))
        expect_refusal(gate_name, "has the layout of another version of gatecount")


@pytest.mark.parametrize(
    "counts",
    [
        (1023, 32, 0),
        (1023, 32, 1 << 40),
        (1024, 2, 0),
        (4, 33, 0),
        (4, 2, (1 << 40) + 1),
        (4, 2, 1 << 61),  # 8 times that is 0 in 64 bits
        (2**32 - 1, 2**32 - 1, 2**64 - 1),
        (0, 0, 1 << 40),
    ],
    ids=str,
)
@pytest.mark.parametrize("honest", [True, False])
def test_counts_that_the_file_has_no_room_for_are_refused(
    counts: tuple[int, int, int], honest: bool, gate_name: str, file: Path, good: bytes
) -> None:
    """Whether or not the size in the header is what they come to."""
    slots, caps, words = counts
    size = size_of(slots, caps, words) if honest else len(good)
    file.write_bytes(patched(good, slots=slots, caps=caps, words=words, size=size))
    expect_refusal(gate_name, "out of range|not as large as its header says")


def test_a_file_of_eight_terabytes_of_nothing_is_no_way_to_crash_us(
    gate_name: str, file: Path, good: bytes
) -> None:
    words = 1 << 40
    size = size_of(0, 0, words)
    file.write_bytes(patched(good[:128], slots=0, caps=0, words=words, size=size, mode=0))
    try:
        os.truncate(file, size)
    except OSError:
        pytest.skip("this file system has no files of that size")
    before = file.lstat()
    for call in CALLS.values():
        error, text = error_of(call, gate_name)
        assert issubclass(error, (LayoutMismatch, OSError))
        assert str(file) in text
    assert file.lstat() == before


def test_an_array_under_the_name_of_a_gate_is_refused(gate_name: str, file: Path, good: bytes) -> None:
    size = size_of(0, 0, 16)
    header = patched(good[:128], slots=0, caps=0, words=16, size=size, mode=0)
    file.write_bytes(header + bytes(size - 128))
    expect_refusal(gate_name, "has no caps")


@pytest.mark.parametrize("known", [0, 8, 16, 24])
def test_random_bytes_are_refused(known: int, gate_name: str, file: Path, good: bytes) -> None:
    """From the beginning, or behind a good magic, hash, and size."""
    chance = random.Random(known)
    for _ in range(scaled(150)):
        size = chance.choice([chance.randrange(1, 300), len(good), chance.randrange(1, 9000)])
        content = good[:known] + chance.randbytes(max(size - known, 1))
        file.write_bytes(content)
        expect_refusal(gate_name)


@pytest.mark.parametrize("text", [b"x", b"hello\n" * 1000, b"\x7fELF" + bytes(5000), b"\xff" * 4096])
def test_the_file_of_another_program_is_refused(text: bytes, gate_name: str, file: Path) -> None:
    file.write_bytes(text)
    expect_refusal(gate_name, "is not a gatecount segment")


@pytest.mark.parametrize("size", [0, 8, 127, 1664])
def test_a_file_that_nobody_ever_finishes_is_waited_for_a_second_and_then_refused(
    size: int, gate_name: str, file: Path
) -> None:
    file.write_bytes(bytes(size))
    before = identity(file)
    began = time.monotonic()
    with pytest.raises(LayoutMismatch) as caught:
        Gate.open(gate_name)
    took = time.monotonic() - began
    assert str(file) in str(caught.value)
    assert identity(file) == before
    if size in (0, 1664):
        assert "empty or was never finished by its creator" in str(caught.value)
        assert 0.9 < took < 30


# What is no file at all


def nothing(_path: Path) -> None:
    return None


def device(major: int, minor: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        try:
            os.mknod(path, 0o666 | 0o020000, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("this user may not make device nodes")

    return make


KINDS: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "a directory": (Path.mkdir, LayoutMismatch, "is a directory"),
    "a pipe": (os.mkfifo, LayoutMismatch, "is not a regular file"),
    "the null device": (device(1, 3), OSError, ""),
    "the zero device": (device(1, 5), OSError, ""),
    "a device without a driver": (device(240, 77), OSError, ""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, gate_name: str, file: Path) -> None:
    make, error, reason = KINDS[kind]
    make(file)
    expect_refusal(gate_name, reason, (error, LayoutMismatch), within=5.0)


def test_a_pipe_that_somebody_has_open_is_refused_and_gets_nothing(gate_name: str, file: Path) -> None:
    os.mkfifo(file)
    end = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    try:
        expect_refusal(gate_name, "is not a regular file", within=5.0)
        with pytest.raises(BlockingIOError):
            os.read(end, 1)
    finally:
        os.close(end)


def target_of(kind: str, link: Path, tmp_path: Path, good: bytes) -> Path:
    target = tmp_path / "target"
    if kind == "a gate elsewhere":
        target.write_bytes(good)
    elif kind == "a gate beside it":
        target = link.with_name(link.name + "-target")
        target.write_bytes(good)
    elif kind == "a directory":
        target.mkdir()
    elif kind == "itself":
        return link
    return target


@pytest.mark.parametrize(
    "kind", ["a gate elsewhere", "a gate beside it", "a directory", "nothing", "itself"]
)
def test_a_symbolic_link_is_refused_and_so_is_left_what_it_leads_to(
    kind: str, gate_name: str, file: Path, good: bytes, tmp_path: Path
) -> None:
    target = target_of(kind, file, tmp_path, good)
    file.symlink_to(target)
    stood = kind in ("a gate elsewhere", "a gate beside it", "a directory")
    before = identity(target) if stood else None
    try:
        expect_refusal(gate_name, "is a symbolic link")
        assert file.is_symlink()
        assert (identity(target) if stood else None) == before
    finally:
        if kind == "a gate beside it":
            target.unlink()


def test_limits_beyond_any_range_in_a_file_that_is_otherwise_good_are_no_way_to_crash_us(
    gate_name: str, file: Path, good: bytes
) -> None:
    """What stands behind the header is the owner's business; it must not lead out of the segment."""
    chance = random.Random(5)
    for _ in range(scaled(60)):
        file.write_bytes(good[:128] + chance.randbytes(len(good) - 128))
        with Gate.open(gate_name) as gate:
            told = gate.statistics()
            assert len(told.caps) <= len(LIMITS)
            gate.reclaim()
            gate.owners()
            for cap in told.caps:
                gate.set_limit(cap, 5)
