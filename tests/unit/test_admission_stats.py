"""SharedAdmissionStats: one suite over a RawArray and AdmissionCounters, then their differences."""

from __future__ import annotations

import array
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy
import pytest

from gatecount import AdmissionCounters, NotOwner, SharedAdmissionStats

CLIENTS = 4
LIMIT = 10

BUFFERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: RawArray("q", SharedAdmissionStats.num_counters(CLIENTS)),
    "hard": lambda: AdmissionCounters(client_count=CLIENTS, limit=LIMIT),
}


@pytest.fixture(params=BUFFERS)
def buffer(request: pytest.FixtureRequest) -> Any:
    return BUFFERS[request.param]()


@pytest.fixture
def hard() -> AdmissionCounters:
    return AdmissionCounters(client_count=CLIENTS, limit=LIMIT)


def server(buffer: Any, index: int = 0) -> SharedAdmissionStats:
    return SharedAdmissionStats({"mp_admission_counters": buffer}, CLIENTS, index)


def fits(stats: SharedAdmissionStats, n: int = 1, limit: int = LIMIT) -> bool:
    return stats.try_reserve(n, limit=limit)


class PlainHost:
    """A host that was written for RawArray: it knows nothing but `buf[i]` and `buf[i] = v`."""

    def __init__(self, buf: Any, index: int) -> None:
        self.buf, self.at = buf, 8 * index

    def publish(self, count: int) -> None:
        self.buf[self.at] = count

    def total(self) -> int:
        return sum(int(self.buf[8 * i]) for i in range(CLIENTS))


def test_every_server_reads_the_sum_of_what_all_publish(buffer: Any) -> None:
    servers = [server(buffer, i) for i in range(3)]
    for i, stats in enumerate(servers):
        stats.set_num_requests(i + 1)
    assert [stats.get_num_requests() for stats in servers] == [6, 6, 6]


def test_publishing_is_absolute_and_may_be_repeated(buffer: Any) -> None:
    stats = server(buffer)
    for count in (3, 3, 5, 5, 2, 2, 0, 0, 4):
        stats.set_num_requests(count)
        assert stats.get_num_requests() == count


def test_publishing_leaves_the_slots_of_others_alone(buffer: Any) -> None:
    first, second = server(buffer, 0), server(buffer, 3)
    first.set_num_requests(2)
    second.set_num_requests(5)
    first.set_num_requests(0)
    assert [buffer[8 * i] for i in range(CLIENTS)] == [0, 0, 0, 5]


def test_a_slot_nobody_has_claimed_is_in_no_sum(buffer: Any) -> None:
    assert server(buffer, 2).get_num_requests() == 0
    assert list(buffer) == [0] * (8 * CLIENTS)


def test_reserve_admits_up_to_the_limit_and_no_further(buffer: Any) -> None:
    first, second = server(buffer, 0), server(buffer, 1)
    assert sum(fits(stats) for _ in range(LIMIT) for stats in (first, second)) == LIMIT
    assert not fits(first)
    assert not fits(second)
    assert first.get_num_requests() == LIMIT
    first.release()
    assert fits(second)
    assert not fits(first)


def test_limit_0_refuses_all(buffer: Any) -> None:
    assert not fits(server(buffer), limit=0)
    assert server(buffer).get_num_requests() == 0


def test_three_of_a_cap_of_three_are_all_or_nothing(buffer: Any) -> None:
    first, second = server(buffer, 0), server(buffer, 1)
    assert fits(first, 1, limit=3)
    assert not fits(second, 3, limit=3)
    assert first.get_num_requests() == 1
    first.release(1)
    assert fits(second, 3, limit=3)
    second.release(3)
    assert second.get_num_requests() == 0


def test_release_gives_back_in_parts(buffer: Any) -> None:
    stats = server(buffer)
    assert fits(stats, 5)
    stats.release(2)
    stats.release()
    assert stats.get_num_requests() == 2
    stats.release(2)
    assert stats.get_num_requests() == 0


@pytest.mark.parametrize("held", [0, 2])
def test_release_of_more_than_is_held_raises_and_changes_nothing(buffer: Any, held: int) -> None:
    stats, other = server(buffer, 0), server(buffer, 1)
    assert fits(other, 4)
    if held:
        assert fits(stats, held)
    with pytest.raises(NotOwner, match=rf"n is 3, but this process has {held}") as caught:
        stats.release(3)
    assert (caught.value.requested, caught.value.held) == (3, held)
    assert stats.get_num_requests() == 4 + held
    if held:
        stats.release(held)
    assert stats.get_num_requests() == 4


def test_reservations_not_yet_counted_survive_publishing(buffer: Any) -> None:
    stats = server(buffer)
    stats.set_num_requests(2)
    assert fits(stats, 3)
    assert stats.get_num_requests() == 5
    stats.set_num_requests(2)  # nothing new in the table: the three are still on their way
    assert stats.get_num_requests() == 5
    stats.set_num_requests(1)  # one finished: the three are still on their way
    assert stats.get_num_requests() == 4
    stats.set_num_requests(3)  # two of them arrived
    assert stats.get_num_requests() == 4
    stats.set_num_requests(4)  # and the third
    assert stats.get_num_requests() == 4
    stats.set_num_requests(0)
    assert stats.get_num_requests() == 0


def test_a_reservation_whose_request_never_arrives_is_released(buffer: Any) -> None:
    stats = server(buffer)
    stats.set_num_requests(2)
    assert fits(stats, 3)
    stats.release(3)
    assert stats.get_num_requests() == 2
    stats.set_num_requests(2)
    assert stats.get_num_requests() == 2


def test_a_host_that_reserves_then_counts_ends_where_it_began(buffer: Any) -> None:
    stats = server(buffer)
    table = 0
    for burst in (1, 3, 2, 4):
        assert fits(stats, burst)
        for _ in range(burst):
            table += 1
            stats.set_num_requests(table)
        assert stats.get_num_requests() == table == burst
        while table:
            table -= 1
            stats.set_num_requests(table)
    assert stats.get_num_requests() == 0
    assert fits(stats, LIMIT)


def test_one_process_may_hold_two_slots(buffer: Any) -> None:
    first, second = server(buffer, 1), server(buffer, 2)
    assert fits(first, 6)
    assert fits(second, 4)
    assert not fits(second)
    assert [buffer[8], buffer[16]] == [6, 4]
    with pytest.raises(NotOwner):
        second.release(5)
    first.release(6)
    second.release(4)
    assert first.get_num_requests() == 0


def test_two_objects_of_one_index_share_what_is_reserved(buffer: Any) -> None:
    first, second = server(buffer, 1), server(buffer, 1)
    assert fits(first, 2)
    second.set_num_requests(1)  # one of the two arrived
    assert first.get_num_requests() == 2
    second.set_num_requests(2)
    assert first.get_num_requests() == 2
    assert fits(second, 3)
    first.release(3)
    assert second.get_num_requests() == 2


def test_an_unmodified_host_and_ours_read_each_other(buffer: Any) -> None:
    theirs, ours = PlainHost(buffer, 0), server(buffer, 1)
    theirs.publish(3)
    ours.set_num_requests(4)
    assert theirs.total() == ours.get_num_requests() == 7
    theirs.publish(0)
    assert theirs.total() == ours.get_num_requests() == 4


def test_two_unmodified_hosts_work_over_either(buffer: Any) -> None:
    hosts = [PlainHost(buffer, i) for i in range(3)]
    for i, host in enumerate(hosts):
        host.publish(i + 1)
    assert [host.total() for host in hosts] == [6, 6, 6]


def test_fewer_clients_than_the_buffer_has_room_for_read_their_slots_only(buffer: Any) -> None:
    stats = SharedAdmissionStats({"mp_admission_counters": buffer}, 2, 0)
    buffer[16] = 100
    stats.set_num_requests(1)
    assert stats.get_num_requests() == 1


@pytest.mark.parametrize("config", [{}, {"mp_admission_counters": None}, {"client_count": 3}])
def test_without_a_buffer_the_count_is_the_process_own(config: dict[str, Any]) -> None:
    first, second = (SharedAdmissionStats(config, CLIENTS, i) for i in (0, 1))
    first.set_num_requests(3)
    second.set_num_requests(4)
    assert (first.get_num_requests(), second.get_num_requests()) == (3, 4)
    assert not first.exact
    assert first.try_reserve(2, limit=5)
    assert not first.try_reserve(1, limit=5)


@pytest.mark.parametrize("clients", [1, 4, 1023])
def test_num_counters_is_a_line_of_eight_words_per_client(clients: int) -> None:
    assert SharedAdmissionStats.num_counters(clients) == 8 * clients


def test_a_buffer_tells_whether_it_is_exact() -> None:
    assert server(BUFFERS["hard"]()).exact is True
    assert server(BUFFERS["plain"]()).exact is False


def test_a_plain_buffer_needs_a_limit() -> None:
    stats = server(BUFFERS["plain"]())
    with pytest.raises(TypeError, match="limit is needed"):
        stats.try_reserve()
    assert stats.get_num_requests() == 0


def test_a_hard_buffer_has_a_limit_of_its_own(hard: AdmissionCounters) -> None:
    stats = server(hard)
    assert stats.try_reserve(LIMIT)
    assert not stats.try_reserve()


def test_a_larger_limit_does_not_lift_that_of_a_hard_buffer(hard: AdmissionCounters) -> None:
    stats = server(hard)
    assert not stats.try_reserve(LIMIT + 1, limit=1000)
    assert stats.try_reserve(LIMIT, limit=1000)
    assert not stats.try_reserve(1, limit=1000)


def test_a_smaller_limit_bounds_that_call_on_a_hard_buffer(hard: AdmissionCounters) -> None:
    stats = server(hard)
    assert stats.try_reserve(3, limit=3)
    assert not stats.try_reserve(1, limit=3)
    assert hard.in_flight == 3
    assert stats.try_reserve(1)
    assert hard.limit == LIMIT


def test_a_hard_buffer_charges_what_is_published(hard: AdmissionCounters) -> None:
    first, second = server(hard, 0), server(hard, 1)
    first.set_num_requests(8)
    assert hard.in_flight == 8
    assert not second.try_reserve(3)
    assert second.try_reserve(2)
    first.set_num_requests(5)
    assert hard.in_flight == 7
    assert second.try_reserve(3)


def test_a_count_that_was_never_reserved_is_charged_as_far_as_there_is_room(
    hard: AdmissionCounters,
) -> None:
    first, second = server(hard, 0), server(hard, 1)
    assert second.try_reserve(4)
    first.set_num_requests(9)
    assert first.get_num_requests() == 13
    assert hard.in_flight == LIMIT
    second.release(4)
    assert hard.in_flight == 6
    first.set_num_requests(9)  # said again, now that there is room
    assert hard.in_flight == 9
    first.set_num_requests(0)
    assert hard.in_flight == 0


def test_what_is_in_flight_is_reservations_and_counted_requests(hard: AdmissionCounters) -> None:
    stats = server(hard)
    assert stats.try_reserve(3)
    for count, in_flight in [(1, 3), (2, 3), (3, 3), (4, 4), (2, 2)]:
        stats.set_num_requests(count)
        assert (hard.in_flight, hard[0]) == (in_flight, in_flight)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: array.array("q", bytes(8 * n)),
        lambda n: memoryview(bytearray(8 * n)).cast("q"),
        lambda n: numpy.zeros(n, dtype=numpy.int64),
    ],
    ids=["array", "memoryview", "numpy"],
)
def test_any_buffer_of_signed_64_bit_words_will_do(make: Callable[[int], Any]) -> None:
    buffer = make(8 * CLIENTS)
    first, second = server(buffer, 0), server(buffer, 1)
    first.set_num_requests(2)
    assert fits(second, 3)
    assert first.get_num_requests() == 5
    assert [int(word) for word in buffer[:9]] == [2, 0, 0, 0, 0, 0, 0, 0, 3]


def test_a_read_only_buffer_can_be_read_and_not_written() -> None:
    words = array.array("q", [5] + [0] * 31)
    stats = server(memoryview(words).toreadonly())
    assert stats.get_num_requests() == 5
    for write in (
        lambda: stats.set_num_requests(1),
        lambda: stats.try_reserve(1, limit=9),
        lambda: stats.release(1),
    ):
        with pytest.raises(TypeError, match="read-only"):
            write()
    assert words[0] == 5


def test_its_repr_tells_the_sum() -> None:
    stats = server(BUFFERS["hard"]())
    stats.set_num_requests(3)
    assert repr(stats) == "<SharedAdmissionStats (exact): 3 requests>"
