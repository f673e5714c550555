"""The sequence contract of RawArray("q"), held by all three kinds of shared words alike.

Whatever is asserted here of the package's arrays is asserted of the RawArray too, so that a host may
exchange one for the other. Where they differ on purpose, the tests at the end say so.
"""

from __future__ import annotations

import ctypes
import math
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy
import pytest

from gatecount import AdmissionCounters, AtomicArray

N = 16
LOWEST, HIGHEST = -(2**63), 2**63 - 1

OURS: dict[str, Callable[[], Any]] = {
    "AtomicArray": lambda: AtomicArray(N),
    "AdmissionCounters": lambda: AdmissionCounters(client_count=N // 8, limit=10),
}
KINDS: dict[str, Callable[[], Any]] = {"RawArray": lambda: RawArray("q", N), **OURS}


@pytest.fixture(params=KINDS)
def words(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


@pytest.fixture(params=OURS)
def our_words(request: pytest.FixtureRequest) -> Any:
    return OURS[request.param]()


def test_begins_with_zeros(words: Any) -> None:
    assert len(words) == N
    assert list(words) == [0] * N


@pytest.mark.parametrize("index", [0, 1, N - 1, -1, -N, True, numpy.int64(3)])
def test_an_index_reads_what_was_written(words: Any, index: Any) -> None:
    words[index] = 7
    assert words[index] == 7
    expected = [0] * N
    expected[index] = 7
    assert list(words) == expected


@pytest.mark.parametrize("value", [LOWEST, -1, 0, 1, HIGHEST, True, numpy.int64(5)])
def test_any_64_bit_value_can_be_stored(words: Any, value: Any) -> None:
    words[3] = value
    assert words[3] == int(value)
    assert type(words[3]) is int


@pytest.mark.parametrize("index", [N, -N - 1, 2**31, 2**63, -(2**64), 10**30])
def test_an_index_out_of_range_raises_index_error_and_changes_nothing(words: Any, index: int) -> None:
    with pytest.raises(IndexError):
        words[index]
    with pytest.raises(IndexError):
        words[index] = 1
    assert list(words) == [0] * N


@pytest.mark.parametrize("index", [1.0, "1", None, (1,), [1], b"1", 1j])
def test_an_index_of_a_wrong_type_raises_type_error_and_changes_nothing(words: Any, index: Any) -> None:
    with pytest.raises(TypeError):
        words[index]
    with pytest.raises(TypeError):
        words[index] = 1
    assert list(words) == [0] * N


@pytest.mark.parametrize("value", [1.0, math.nan, "1", None, b"1", [1], 1j, int, object()])
def test_a_value_of_a_wrong_type_raises_type_error_and_changes_nothing(words: Any, value: Any) -> None:
    words[2] = 9
    with pytest.raises(TypeError):
        words[2] = value
    assert words[2] == 9


SLICES = [
    slice(None),
    slice(2, 5),
    slice(5, 2),
    slice(-3, None),
    slice(None, -3),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(12, 2, -3),
    slice(1, 100, 4),
    slice(-100, 100),
    slice(10**30),
]


@pytest.mark.parametrize("at", SLICES, ids=str)
def test_a_slice_reads_as_of_a_list(words: Any, at: slice) -> None:
    model = [i * i - 20 for i in range(N)]
    for i, value in enumerate(model):
        words[i] = value
    assert words[at] == model[at]


@pytest.mark.parametrize("at", SLICES, ids=str)
def test_a_slice_is_written_as_to_a_list(words: Any, at: slice) -> None:
    model = [0] * N
    values = [100 + i for i in range(len(model[at]))]
    model[at] = values
    words[at] = values
    assert list(words) == model


@pytest.mark.parametrize("at", [slice(2, 5), slice(None, None, 2), slice(None, None, -1)], ids=str)
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_slice_takes_no_other_number_of_values(words: Any, at: slice, difference: int) -> None:
    values = [1] * (len(range(*at.indices(N))) + difference)
    with pytest.raises(ValueError):  # noqa: PT011 (ctypes words its message differently)
        words[at] = values
    assert list(words) == [0] * N


def test_a_slice_can_be_written_from_another_of_the_same_words(words: Any) -> None:
    for i in range(N):
        words[i] = i
    words[1:5] = words[0:4]
    assert list(words)[:6] == [0, 0, 1, 2, 3, 5]


@pytest.mark.parametrize("at", [slice("a", 2), slice(0, 1.5), slice(None, None, "2")], ids=str)
def test_a_slice_with_wrong_bounds_raises_type_error(words: Any, at: slice) -> None:
    with pytest.raises(TypeError):
        words[at]
    with pytest.raises(TypeError):
        words[at] = [1, 2]


def test_a_slice_with_step_zero_raises_value_error(words: Any) -> None:
    with pytest.raises(ValueError, match="step cannot be zero"):
        words[::0]


def test_iteration_goes_forward_backward_and_more_than_once(words: Any) -> None:
    words[0], words[N - 1] = 1, 2
    assert list(words) == [1] + [0] * (N - 2) + [2]
    assert list(reversed(words)) == [2] + [0] * (N - 2) + [1]
    assert sum(words) == sum(words) == 3


def test_in_compares_by_value(words: Any) -> None:
    words[5] = 42
    assert 42 in words
    assert 42.0 in words
    assert 43 not in words
    assert "42" not in words
    assert None not in words


def test_words_cannot_be_deleted(words: Any) -> None:
    with pytest.raises(TypeError):
        del words[0]
    with pytest.raises(TypeError):
        del words[0:2]
    assert len(words) == N


def test_words_cannot_be_added_or_multiplied(words: Any) -> None:
    with pytest.raises(TypeError):
        words + words
    with pytest.raises(TypeError):
        words * 2


def test_the_buffer_is_writable_and_of_signed_64_bit_words(words: Any) -> None:
    with memoryview(words) as view:
        assert not view.readonly
        assert view.itemsize == 8
        assert view.ndim == 1
        assert view.shape == (N,)
        assert view.strides == (8,)
        assert view.nbytes == 8 * N
        assert view.contiguous
        assert view.format.lstrip("<@=") in ("q", "l")


def test_a_memoryview_shares_the_memory(words: Any) -> None:
    with memoryview(words).cast("B").cast("q") as view:
        view[3] = -5
        assert words[3] == -5
        words[4] = HIGHEST
        assert view[4] == HIGHEST


def test_numpy_shares_the_memory(words: Any) -> None:
    seen = numpy.frombuffer(words, dtype=numpy.int64)
    assert seen.flags.writeable
    seen[:] = range(N)
    assert list(words) == list(range(N))
    words[2] = -9
    assert seen[2] == -9
    assert seen.sum() == sum(words)


def test_numpy_keeps_the_memory_when_its_maker_is_gone(words: Any) -> None:
    words[0] = 8
    seen = numpy.frombuffer(words, dtype=numpy.int64)
    del words
    assert seen[0] == 8


def test_ctypes_shares_the_memory(words: Any) -> None:
    seen = (ctypes.c_int64 * N).from_buffer(words)
    seen[1] = 77
    assert words[1] == 77


def test_a_memoryview_can_be_filled_by_bytes(words: Any) -> None:
    memoryview(words).cast("B")[:16] = (1).to_bytes(8, "little") + (-2).to_bytes(
        8, "little", signed=True
    )
    assert words[:3] == [1, -2, 0]


def test_pickling_is_refused_unless_a_child_is_being_started(words: Any) -> None:
    with pytest.raises(RuntimeError, match="should only be shared between processes through inh"):
        ForkingPickler.dumps(words)
    with pytest.raises((RuntimeError, pickle.PicklingError)):
        pickle.dumps(words)


# What differs, and on purpose.


@pytest.mark.parametrize("value", [HIGHEST + 1, LOWEST - 1, 2**64, 10**30, -(10**30)])
def test_a_value_outside_64_bits_raises_overflow_error_and_changes_nothing(
    our_words: Any, value: int
) -> None:
    our_words[0] = 5
    with pytest.raises(OverflowError):
        our_words[0] = value
    with pytest.raises(OverflowError):
        our_words[0:2] = [1, value]
    assert our_words[:2] == [5, 0]


def test_a_raw_array_wraps_a_value_outside_64_bits() -> None:
    words: Any = RawArray("q", 1)
    words[0] = 2**63
    assert words[0] == -(2**63)


@pytest.mark.parametrize("values", [[1, "a"], [1, 2.0], [1, None], [1, 2**63]], ids=str)
def test_a_slice_write_that_fails_changes_nothing(our_words: Any, values: list[Any]) -> None:
    our_words[:2] = [8, 9]
    with pytest.raises((TypeError, OverflowError)):
        our_words[:2] = values
    assert our_words[:2] == [8, 9]


def test_a_slice_takes_its_values_from_any_iterable(our_words: Any) -> None:
    our_words[:3] = (i for i in (1, 2, 3))
    our_words[3:5] = {4: "a", 5: "b"}
    assert our_words[:6] == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("value", [5, None, 1.5])
def test_a_slice_takes_no_single_value(our_words: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        our_words[0:1] = value
    assert our_words[0] == 0


def test_the_format_is_q_so_that_a_memoryview_can_be_indexed(our_words: Any) -> None:
    with memoryview(our_words) as view:
        assert view.format == "q"
        view[0] = 4
        assert view[0] == our_words[0] == 4
        assert view.tolist() == list(our_words)


def test_the_first_word_begins_a_cache_line(our_words: Any) -> None:
    assert our_words.address % 64 == 0
    assert numpy.frombuffer(our_words, dtype=numpy.int64).ctypes.data == our_words.address


def test_words_are_equal_to_nothing_but_themselves(our_words: Any) -> None:
    assert our_words == our_words
    assert our_words != list(our_words)
    assert len({our_words, our_words}) == 1
