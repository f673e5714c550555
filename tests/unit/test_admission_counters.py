"""AdmissionCounters: what stands behind the array. Its sequence contract is in test_words.py."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from gatecount import AdmissionCounters, SharedAdmissionStats, _core
from support import descriptors_and_mappings, mapping_of


def stats_over(buffer: AdmissionCounters, index: int = 0) -> SharedAdmissionStats:
    clients = len(buffer) // 8
    return SharedAdmissionStats({"mp_admission_counters": buffer}, clients, index)


@pytest.mark.parametrize("clients", [1, 2, 64, 1023])
def test_it_has_a_line_of_eight_words_per_client(clients: int) -> None:
    buffer = AdmissionCounters(client_count=clients, limit=1)
    assert len(buffer) == SharedAdmissionStats.num_counters(clients) == 8 * clients


@pytest.mark.parametrize("limit", [0, 1, 2**32 - 1])
def test_it_tells_its_limit_and_what_is_in_flight(limit: int) -> None:
    buffer = AdmissionCounters(client_count=2, limit=limit)
    assert (buffer.limit, buffer.in_flight) == (limit, 0)


def test_the_limit_can_be_changed_while_it_is_in_use() -> None:
    buffer = AdmissionCounters(client_count=2, limit=1)
    stats = stats_over(buffer)
    assert stats.try_reserve()
    assert not stats.try_reserve()
    buffer.limit = 2
    assert stats.try_reserve()
    buffer.limit = 0
    assert buffer.in_flight == 2
    assert not stats.try_reserve()


def test_a_host_that_scribbles_over_every_word_cannot_corrupt_the_cap() -> None:
    buffer = AdmissionCounters(client_count=3, limit=5)
    mine, other = stats_over(buffer, 0), stats_over(buffer, 1)
    assert mine.try_reserve(2)
    assert other.try_reserve(1)
    buffer[:] = [-(2**63) + i for i in range(len(buffer))]
    assert (buffer.limit, buffer.in_flight) == (5, 3)
    assert not other.try_reserve(3)
    assert other.try_reserve(2)
    assert not mine.try_reserve()
    mine.release(2)
    other.release(3)
    assert buffer.in_flight == 0
    assert buffer.reclaim() == 0


def test_the_count_of_a_client_is_word_0_of_its_line() -> None:
    buffer = AdmissionCounters(client_count=3, limit=10)
    stats_over(buffer, 1).set_num_requests(4)
    assert list(buffer) == [0] * 8 + [4] + [0] * 15


def test_the_other_words_of_a_line_are_left_to_the_host() -> None:
    buffer = AdmissionCounters(client_count=2, limit=10)
    stats = stats_over(buffer, 1)
    buffer[9:16] = range(1, 8)
    stats.set_num_requests(3)
    assert stats.try_reserve(2)
    stats.release(1)
    assert buffer[8:] == [4, 1, 2, 3, 4, 5, 6, 7]
    assert stats.get_num_requests() == 4


def test_reclaim_leaves_the_living_alone() -> None:
    buffer = AdmissionCounters(client_count=2, limit=10)
    stats = stats_over(buffer)
    assert stats.try_reserve(3)
    assert buffer.reclaim() == 0
    assert buffer.in_flight == 3


def test_what_is_reserved_comes_back_when_the_buffer_is_dropped_with_its_stats() -> None:
    buffer = AdmissionCounters(client_count=1, limit=3)
    stats = stats_over(buffer)
    assert stats.try_reserve(3)
    fd = os.dup(buffer.segment.fd)
    try:
        del stats, buffer
        gc.collect()
        segment = _core.Segment.attach(os.dup(fd))
        again: Any = _core.CounterWords.__new__(AdmissionCounters, segment)
        assert again.in_flight == 0
        assert stats_over(again).try_reserve(3)
    finally:
        os.close(fd)


def test_the_memory_has_no_name_and_cannot_be_resized() -> None:
    buffer = AdmissionCounters(client_count=4, limit=1)
    assert mapping_of(buffer.address).startswith("/memfd:gatecount")
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.segment.fd, 0)


@pytest.mark.parametrize("clients", [1, 64, 1023])
def test_a_segment_takes_at_most_200_bytes_per_client_and_4_kib(clients: int) -> None:
    assert AdmissionCounters(clients, limit=1).segment.size <= 200 * clients + 4096


def test_buffers_that_are_dropped_leave_no_descriptor_and_no_mapping() -> None:
    gc.collect()
    descriptors, mappings = descriptors_and_mappings()
    for _ in range(100):
        buffer = AdmissionCounters(client_count=2, limit=2)
        assert stats_over(buffer, 1).try_reserve()
        assert stats_over(buffer, 0).try_reserve()
    del buffer
    gc.collect()
    # No more than were there: of the tests before, a thread may just be ending.
    assert descriptors_and_mappings()[0] <= descriptors
    assert descriptors_and_mappings()[1] <= mappings


def test_its_repr_tells_what_is_in_flight() -> None:
    buffer = AdmissionCounters(client_count=4, limit=10)
    stats = stats_over(buffer)
    assert stats.try_reserve(3)
    assert repr(buffer) == "<AdmissionCounters of 4 clients: 3 of 10>"
