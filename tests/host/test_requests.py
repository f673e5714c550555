"""The request table: what it holds is what is published, sample by sample, on every way out."""

from __future__ import annotations

from multiprocessing.sharedctypes import RawArray
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatecount import AdmissionCounters
from gatecount.frontend.admission import Admission
from gatecount.frontend.errors import (
    AdmissionRefused,
    DuplicateRequest,
    MaxQueuedTokensError,
    QueueOverflowError,
)
from gatecount.frontend.requests import RequestTable

LIMIT, TOKENS = 6, 100


def table_over(kind: str) -> tuple[RequestTable, Admission]:
    config: dict[str, Any] = {"client_count": 2, "client_index": 0}
    if kind == "hard":
        config["mp_admission_counters"] = AdmissionCounters(2, LIMIT, TOKENS)
    elif kind == "approximate":
        config["mp_admission_counters"] = RawArray("q", 16)
    admission = Admission(config, max_num_queued_reqs=LIMIT, max_num_queued_tokens=TOKENS)
    return RequestTable(admission), admission


@pytest.fixture(params=["hard", "approximate", "local"])
def made(request: pytest.FixtureRequest) -> tuple[RequestTable, Admission]:
    return table_over(request.param)


Made = tuple[RequestTable, Admission]


def in_flight(admission: Admission) -> tuple[int, int]:
    return admission.requests_in_flight, admission.tokens_in_flight


def test_adding_a_request_uses_its_reservation_up(made: Made) -> None:
    table, admission = made
    admission.check_admission(3, "r")
    assert (len(table), table.unfinished, in_flight(admission)) == (0, 0, (3, 0))
    assert table.add_request("r", 3, 5) == ["0_r", "1_r", "2_r"]
    assert (len(table), table.unfinished, in_flight(admission)) == (1, 3, (3, 15))


def test_what_a_server_shows_is_what_it_has_reserved_and_what_it_has_in_its_table(made: Made) -> None:
    table, admission = made
    admission.check_admission(2, "waiting")
    table.add_request("a", 1, 0)
    table.add_request("b", 1, 0)
    assert in_flight(admission) == (4, 0)
    table.finish_request("0_a")
    table.finish_request("b")
    assert (table.unfinished, in_flight(admission)) == (0, (2, 0))
    with pytest.raises(QueueOverflowError):
        admission.check_admission(LIMIT - 1, "more")
    table.add_request("waiting", 2, 0)
    assert (table.unfinished, in_flight(admission)) == (2, (2, 0))
    table.finish_request("waiting")
    assert in_flight(admission) == (0, 0)


def test_a_request_of_three_that_does_not_fit_whole_is_not_added(made: Made) -> None:
    table, admission = made
    table.add_request("first", LIMIT - 2, 0)
    with pytest.raises(QueueOverflowError):
        table.add_request("r", 3, 5)
    assert (len(table), table.samples("r"), in_flight(admission)) == (1, [], (LIMIT - 2, 0))


def test_a_cancel_half_way_frees_every_sample_at_once(made: Made) -> None:
    table, admission = made
    table.add_request("r", 3, 5)
    table.finish_request("1_r")
    table.prefilled("0_r")
    assert in_flight(admission) == (2, 5)
    assert table.abort_requests(["r"]) == ["0_r", "2_r"]
    assert (len(table), table.unfinished, in_flight(admission)) == (0, 0, (0, 0))
    assert not admission.holds("r")


def test_a_sample_can_be_aborted_alone(made: Made) -> None:
    table, admission = made
    table.add_request("r", 3, 5)
    assert table.abort_requests(["2_r", "unknown", "2_r"]) == ["2_r"]
    assert (table.samples("r"), in_flight(admission)) == (["0_r", "1_r"], (2, 10))
    assert table.abort_requests(["0_r", "r"]) == ["0_r", "1_r"]
    assert in_flight(admission) == (0, 0)


def test_finishing_a_request_or_its_samples_frees_the_same(made: Made) -> None:
    table, admission = made
    table.add_request("whole", 2, 1)
    table.add_request("apart", 2, 1)
    table.finish_request("whole")
    assert in_flight(admission) == (2, 2)
    table.finish_request("0_apart")
    assert (len(table), in_flight(admission)) == (1, (1, 1))
    table.finish_request("1_apart")
    assert (len(table), in_flight(admission)) == (0, (0, 0))


def test_prompt_tokens_leave_with_each_samples_first_output_or_with_its_end(made: Made) -> None:
    table, admission = made
    table.add_request("r", 3, 30)
    table.prefilled("0_r")
    table.prefilled("0_r")
    assert in_flight(admission) == (3, 60)
    table.finish_request("0_r")
    assert in_flight(admission) == (2, 60)
    table.finish_request("1_r")
    assert in_flight(admission) == (1, 30)
    table.finish_request("2_r")
    assert in_flight(admission) == (0, 0)


def test_what_the_second_test_refuses_holds_nothing_any_more(made: Made) -> None:
    table, admission = made
    admission.check_admission(3, "r")
    table.add_request("long", 1, TOKENS)
    with pytest.raises(MaxQueuedTokensError):
        table.add_request("r", 3, 5)
    assert (len(table), in_flight(admission)) == (1, (1, TOKENS))
    admission.release("r")
    assert table.abort_requests(["r"]) == []
    assert in_flight(admission) == (1, TOKENS)


def test_a_release_does_not_touch_what_is_in_the_table(made: Made) -> None:
    table, admission = made
    table.add_request("r", 2, 5)
    admission.release("r")
    assert (table.unfinished, in_flight(admission)) == (2, (2, 0))
    table.prefilled("0_r")
    table.finish_request("r")
    assert in_flight(admission) == (0, 0)


def test_what_is_told_late_twice_or_of_strangers_changes_nothing(made: Made) -> None:
    table, admission = made
    table.add_request("other", 1, 5)
    table.add_request("r", 1, 5)
    for _ in range(3):
        table.finish_request("0_r")
        table.finish_request("r")
        table.finish_request("unknown")
        table.prefilled("0_r")
        assert table.abort_requests(["r", "0_r", "unknown"]) == []
    assert (len(table), table.unfinished, in_flight(admission)) == (1, 1, (1, 5))


def test_an_id_in_use_is_refused_and_its_owner_undisturbed(made: Made) -> None:
    table, admission = made
    table.add_request("r", 2, 5)
    table.add_request("0_s", 1, 5)
    for request_id in ("r", "1_r", "s"):
        with pytest.raises(DuplicateRequest, match=request_id):
            table.add_request(request_id, 1, 5)
    assert (len(table), table.unfinished, in_flight(admission)) == (2, 3, (3, 15))
    table.finish_request("r")
    assert table.add_request("r", 1, 5) == ["0_r"]


@pytest.mark.parametrize("n", [0, -1])
def test_a_request_of_no_samples_is_refused(made: Made, n: int) -> None:
    table, admission = made
    with pytest.raises(ValueError, match="n must be from 1"):
        table.add_request("r", n)
    assert (len(table), in_flight(admission)) == (0, (0, 0))


@pytest.mark.parametrize("kind", ["hard", "approximate", "local"])
@settings(deadline=None)  # a machine may be busy
@given(data=st.data())
def test_whatever_happens_in_whatever_order_only_what_is_alive_is_held(
    kind: str, data: st.DataObject
) -> None:
    table, admission = table_over(kind)
    ids = [f"{number}" for number in range(4)]
    sizes: dict[str, int] = {}  # of what was reserved or added and has not ended
    added: set[str] = set()
    for _ in range(data.draw(st.integers(1, 30))):
        request_id = data.draw(st.sampled_from(ids))
        step = data.draw(st.sampled_from(["test", "add", "prefilled", "finish", "abort", "release"]))
        if step == "test":
            n = sizes.get(request_id) or data.draw(st.integers(1, LIMIT))
            if fits(lambda n=n, r=request_id: admission.check_admission(n, r)):
                sizes[request_id] = n
        elif step == "add" and request_id not in added:
            n = sizes.get(request_id) or data.draw(st.integers(1, LIMIT))
            tokens = data.draw(st.integers(0, 60))
            sizes.pop(request_id, None)
            if fits(lambda n=n, r=request_id, t=tokens: table.add_request(r, n, t)):
                sizes[request_id] = n
                added.add(request_id)
        elif step == "prefilled":
            table.prefilled(f"0_{request_id}")
        elif step == "finish":
            table.finish_request(request_id)
        elif step == "abort":
            table.abort_requests([request_id])
        elif request_id not in added:
            admission.release(request_id)
            sizes.pop(request_id, None)
        if step in ("finish", "abort") and request_id in added:
            added.remove(request_id)
            del sizes[request_id]
        assert admission.requests_in_flight == sum(sizes.values()) <= LIMIT
        assert table.unfinished == sum(sizes[each] for each in added)
        assert len(admission._holdings) == len(sizes)
    for request_id in ids:
        table.abort_requests([request_id])
        admission.release(request_id)
    assert in_flight(admission) == (0, 0)


def fits(admit: Any) -> bool:
    try:
        admit()
    except AdmissionRefused:
        return False
    return True
