"""What the admission tests share, and what their server processes do: importable by any start method."""

from __future__ import annotations

from multiprocessing.sharedctypes import RawArray
from typing import Any

from gatecount import AdmissionCounters, SharedAdmissionStats
from gatecount._core import MAX_LIMIT
from gatecount.frontend.admission import Admission
from gatecount.frontend.errors import AdmissionRefused, MaxQueuedTokensError, QueueOverflowError
from gatecount.frontend.requests import RequestTable
from support import DEADLINE

SERVERS, LIMIT, TOKENS = 4, 10, 100


def buffer_of(kind: str, limit: int = LIMIT, token_limit: int = TOKENS) -> Any:
    if kind == "hard":
        return AdmissionCounters(SERVERS, limit, token_limit)
    return RawArray("q", SharedAdmissionStats.num_counters(SERVERS))


def both(config: dict[str, Any], limit: int | None = LIMIT, tokens: int | None = TOKENS) -> Admission:
    return Admission(config, max_num_queued_reqs=limit, max_num_queued_tokens=tokens)


def config_of(buffer: Any, index: int) -> dict[str, Any]:
    return {"client_count": SERVERS, "client_index": index, "mp_admission_counters": buffer}


def shared(buffer: Any, index: int) -> Admission:
    return both(config_of(buffer, index))


def admits(admission: Admission, *arguments: Any) -> bool:
    try:
        admission.check_admission(*arguments)
    except AdmissionRefused:
        return False
    return True


def in_flight(admission: Admission) -> tuple[int, int]:
    return admission.requests_in_flight, admission.tokens_in_flight


def burst(start: Any, tested: Any, results: Any, config: dict[str, Any], requests: int) -> None:
    """Test every request once; when all servers have, add those that passed; say how many came in."""
    admission = Admission(config, max_num_queued_reqs=166)
    table = RequestTable(admission)
    start.wait(DEADLINE)
    passed = []
    for number in range(requests):
        try:
            admission.check_admission(1, str(number))
        except QueueOverflowError:
            continue
        passed.append(str(number))
    tested.wait(DEADLINE)
    for request_id in passed:
        table.add_request(request_id, 1, 0)
    results.send((table.unfinished, admission.requests_in_flight))
    tested.wait(DEADLINE)


def fill_with_prompts(start: Any, done: Any, config: dict[str, Any], length: int) -> None:
    """Admit prompts until the token cap refuses one, and hold what was admitted."""
    admission = Admission(config, max_num_queued_reqs=MAX_LIMIT, max_num_queued_tokens=1000)
    start.wait(DEADLINE)
    for number in range(10_000):
        try:
            admission.check_admission(1, str(number), length)
        except MaxQueuedTokensError:
            break
    done.wait(DEADLINE)


class Holder:
    """A server that admits whatever it is asked."""

    def __init__(self, config: dict[str, Any], limit: int, token_limit: int) -> None:
        self.admission = Admission(config, max_num_queued_reqs=limit, max_num_queued_tokens=token_limit)
        self.check_admission = self.admission.check_admission
