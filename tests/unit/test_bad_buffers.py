"""Buffers that are not what SharedAdmissionStats needs: refused by name and rule, and unharmed."""

from __future__ import annotations

import array
import ctypes
import multiprocessing
import subprocess
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy
import pytest

from gatecount import AdmissionCounters, SharedAdmissionStats
from support import DEADLINE, python


def server(buffer: Any, clients: int = 2, index: int = 0) -> SharedAdmissionStats:
    return SharedAdmissionStats({"mp_admission_counters": buffer}, clients, index)


NO_BUFFERS: list[Any] = [[0] * 16, (0,) * 16, 5, "0" * 128, object(), range(16), {}, iter([0])]


@pytest.mark.parametrize("buffer", NO_BUFFERS, ids=lambda value: type(value).__name__)
def test_what_is_no_buffer_is_refused(buffer: Any) -> None:
    with pytest.raises(TypeError, match=r"mp_admission_counters must be .*RawArray"):
        server(buffer)


def test_an_array_with_a_lock_is_refused() -> None:
    buffer = multiprocessing.get_context("spawn").Array("q", 16)
    with pytest.raises(TypeError, match=r"mp_admission_counters must be .*RawArray"):
        server(buffer)


WRONG_WORDS: dict[str, Any] = {
    "bytes": bytes(128),
    "bytearray": bytearray(128),
    "RawArray('i')": RawArray("i", 32),
    "RawArray('Q')": RawArray("Q", 16),
    "RawArray('d')": RawArray("d", 16),
    "array('Q')": array.array("Q", bytes(128)),
    "float64": numpy.zeros(16),
    "int32": numpy.zeros(32, dtype=numpy.int32),
    "uint64": numpy.zeros(16, dtype=numpy.uint64),
    "big endian": numpy.zeros(16, dtype=">i8"),
    "two dimensions": numpy.zeros((2, 8), dtype=numpy.int64),
    "none": numpy.array(5, dtype=numpy.int64),
    "structs": ((ctypes.c_int64 * 2) * 8)(),
}


@pytest.mark.parametrize("kind", WRONG_WORDS)
def test_a_buffer_of_other_words_is_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="mp_admission_counters must be a buffer of signed 64-bit"):
        server(WRONG_WORDS[kind])


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="mp_admission_counters must be"):
        server(numpy.zeros(64, dtype=numpy.int64)[::2])


def test_a_buffer_that_is_not_aligned_is_refused() -> None:
    words = numpy.frombuffer(bytearray(8 * 17), dtype=numpy.uint8)[1 : 1 + 8 * 16].view(numpy.int64)
    with pytest.raises(ValueError, match="mp_admission_counters must be aligned to 8 bytes"):
        server(words)


@pytest.mark.parametrize("words", [0, 1, 8, 15])
def test_a_buffer_with_too_few_words_is_refused(words: int) -> None:
    with pytest.raises(ValueError, match=rf"has {words} words, but .* needs num_counters\(2\) = 16"):
        server(RawArray("q", words))


def test_a_hard_buffer_for_fewer_clients_is_refused() -> None:
    buffer = AdmissionCounters(client_count=1, limit=5)
    with pytest.raises(ValueError, match=r"has 8 words, but .* needs num_counters\(2\) = 16"):
        server(buffer, clients=2, index=1)
    assert server(buffer, clients=1).try_reserve(5)


def test_a_refused_buffer_is_let_go() -> None:
    buffer = bytearray(128)
    with pytest.raises(TypeError):
        server(buffer)
    buffer.extend(b"x")  # possible only while nobody exports it


def test_a_buffer_in_use_is_kept() -> None:
    buffer = array.array("q", bytes(128))
    stats = server(buffer)
    with pytest.raises(BufferError):
        buffer.append(1)
    del stats
    buffer.append(1)


UNINITIALISED = """
from gatecount import SharedAdmissionStats

class Mine(SharedAdmissionStats):
    def __init__(self):
        pass

def expect(call):
    try:
        outcome = call()
    except (TypeError, ValueError, RuntimeError):
        return
    assert outcome == 0, outcome

for stats in (Mine(), SharedAdmissionStats.__new__(SharedAdmissionStats)):
    expect(stats.get_num_requests)
    expect(lambda: stats.set_num_requests(1))
    expect(lambda: stats.try_reserve(1, limit=5))
    expect(lambda: stats.release(1))
    expect(lambda: len(repr(stats)) and 0)
"""


def test_a_subclass_that_forgets_its_base_gets_an_error_and_no_crash() -> None:
    done = subprocess.run(
        python(UNINITIALISED), timeout=DEADLINE, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_initialising_twice_uses_the_second_buffer_and_lets_the_first_go() -> None:
    first, second = array.array("q", bytes(128)), array.array("q", bytes(128))
    stats = server(first)
    SharedAdmissionStats.__init__(stats, {"mp_admission_counters": second}, 2, 1)
    stats.set_num_requests(3)
    assert (first[8], second[8]) == (0, 3)
    del stats
    for words in (first, second):
        words.append(1)
