"""AtomicArray: what it adds to a shared array."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from gatecount import AtomicArray
from support import Crew, descriptors_and_mappings, mapping_of, scaled

LOWEST, HIGHEST = -(2**63), 2**63 - 1


@pytest.mark.parametrize("values", [[5, -6, 7], (1,), range(100), iter([3, 4]), {1: "a", 2: "b"}])
def test_it_begins_with_the_given_values(values: Any) -> None:
    expected = list(values) if not hasattr(values, "__next__") else [3, 4]
    assert list(AtomicArray(values)) == expected


def test_it_is_copied_from_another_array() -> None:
    first = AtomicArray([1, 2, 3])
    second = AtomicArray(first)
    second[0] = 9
    assert list(first) == [1, 2, 3]
    assert list(second) == [9, 2, 3]


@pytest.mark.parametrize("nothing", [0, [], ()])
def test_it_may_be_empty(nothing: Any) -> None:
    words = AtomicArray(nothing)
    assert len(words) == 0
    assert list(words) == []
    with pytest.raises(IndexError):
        words.load(0)
    with pytest.raises(IndexError):
        words[-1]


def test_load_sees_what_store_wrote() -> None:
    words = AtomicArray(3)
    words.store(1, -7)
    assert words.load(1) == words[1] == words.load(-2) == -7
    assert words.load(0) == words.load(2) == 0


def test_fetch_add_returns_what_was_there() -> None:
    words = AtomicArray([10])
    assert words.fetch_add(0, 5) == 10
    assert words.fetch_add(0, -20) == 15
    assert words.load(0) == -5


def test_fetch_add_wraps_at_64_bits() -> None:
    words = AtomicArray([HIGHEST, LOWEST])
    assert words.fetch_add(0, 1) == HIGHEST
    assert words.load(0) == LOWEST
    assert words.fetch_add(1, -1) == LOWEST
    assert words.load(1) == HIGHEST


def test_exchange_returns_what_was_there() -> None:
    words = AtomicArray([1])
    assert words.exchange(0, HIGHEST) == 1
    assert words.exchange(0, LOWEST) == HIGHEST
    assert words.load(0) == LOWEST


def test_compare_exchange_writes_only_over_what_was_expected() -> None:
    words = AtomicArray([1])
    assert words.compare_exchange(0, 2, 3) is False
    assert words.load(0) == 1
    assert words.compare_exchange(0, 1, 3) is True
    assert words.load(0) == 3


@pytest.mark.parametrize(
    ("operation", "operands"),
    [
        ("load", ()),
        ("store", (1,)),
        ("fetch_add", (1,)),
        ("exchange", (1,)),
        ("compare_exchange", (0, 1)),
    ],
)
class TestEachOperation:
    def test_takes_negative_indices(self, operation: str, operands: tuple[int, ...]) -> None:
        words = AtomicArray(4)
        getattr(words, operation)(-1, *operands)
        assert words[:3] == [0, 0, 0]

    @pytest.mark.parametrize("index", [4, -5, 2**63, 10**30])
    def test_refuses_an_index_out_of_range(
        self, operation: str, operands: tuple[int, ...], index: int
    ) -> None:
        words = AtomicArray(4)
        with pytest.raises(IndexError):
            getattr(words, operation)(index, *operands)
        assert list(words) == [0] * 4

    @pytest.mark.parametrize("index", [1.0, "1", None, slice(0, 1)], ids=str)
    def test_refuses_an_index_of_a_wrong_type(
        self, operation: str, operands: tuple[int, ...], index: Any
    ) -> None:
        words = AtomicArray(4)
        with pytest.raises(TypeError):
            getattr(words, operation)(index, *operands)
        assert list(words) == [0] * 4

    @pytest.mark.parametrize(
        ("value", "error"),
        [(1.0, TypeError), ("1", TypeError), (None, TypeError), (2**63, OverflowError)],
    )
    def test_refuses_a_value_that_is_no_word(
        self, operation: str, operands: tuple[int, ...], value: Any, error: type[Exception]
    ) -> None:
        words = AtomicArray(4)
        for i in range(len(operands)):
            wrong = [*operands]
            wrong[i] = value
            with pytest.raises(error):
                getattr(words, operation)(0, *wrong)
        assert list(words) == [0] * 4


def _add(words: AtomicArray, times: int) -> None:
    for _ in range(times):
        words.fetch_add(0, 1)


def _add_by_compare_exchange(words: AtomicArray, times: int) -> None:
    for _ in range(times):
        seen = words.load(0)
        while not words.compare_exchange(0, seen, seen + 1):
            seen = words.load(0)


def _move(words: AtomicArray, times: int) -> None:
    """Carry a token around: whoever takes it puts it back, so it is never lost or doubled."""
    for _ in range(times):
        while words.exchange(0, 0) == 0:
            os.sched_yield()
        words.fetch_add(8, 1)
        words.store(0, 1)


@pytest.mark.parametrize("work", [_add, _add_by_compare_exchange])
def test_no_addition_of_contending_processes_is_lost(work: Any) -> None:
    words, times = AtomicArray(1), scaled(50_000)
    with Crew("fork") as crew:
        for _ in range(4):
            crew.start(work, words, times)
        crew.join()
    assert words.load(0) == 4 * times


def test_exchange_hands_a_token_to_one_process_at_a_time() -> None:
    words, times = AtomicArray([1] + [0] * 8), scaled(3_000)
    with Crew("fork") as crew:
        for _ in range(4):
            crew.start(_move, words, times)
        crew.join()
    assert words[0] == 1
    assert words[8] == 4 * times


def test_the_memory_has_no_name_and_cannot_be_resized() -> None:
    words = AtomicArray(100)
    assert mapping_of(words.address).startswith("/memfd:gatecount")
    with pytest.raises(PermissionError):
        os.ftruncate(words.segment.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(words.segment.fd, 1 << 20)


def test_arrays_that_are_dropped_leave_no_descriptor_and_no_mapping() -> None:
    AtomicArray(1)
    gc.collect()
    descriptors, mappings = descriptors_and_mappings()
    for _ in range(300):
        AtomicArray(1)
    gc.collect()
    # No more than were there: of the tests before, a thread may just be ending.
    assert descriptors_and_mappings()[0] <= descriptors
    assert descriptors_and_mappings()[1] <= mappings


def test_a_subclass_is_built_by_the_same_arguments() -> None:
    class Load(AtomicArray):
        pass

    words = Load([1, 2])
    assert isinstance(words, Load)
    assert list(words) == [1, 2]


def test_its_repr_tells_its_length() -> None:
    assert repr(AtomicArray(12)) == "<AtomicArray of 12 words>"
