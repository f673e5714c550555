"""The requests that a server has given to the engine, sample by sample.

A request with n samples is n requests to the engine, and holds n places until each has ended. The id
of sample i of request r is "i_r". After every change the number of unfinished samples is published:
an absolute number, so no path can count one sample off twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from gatecount.frontend.admission import Admission
from gatecount.frontend.errors import DuplicateRequest


class RequestTable:
    """The unfinished requests of this server. For the thread of the event loop alone.

    What it is told of ids that it does not know changes nothing: the engine's last word on a sample
    and a client's cancel may cross.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._samples: dict[str, list[str]] = {}  # of each request, those unfinished
        self._request: dict[str, str] = {}  # of each unfinished sample
        self._in_prefill: set[str] = set()  # samples

    def __len__(self) -> int:
        """Return how many requests are unfinished."""
        return len(self._samples)

    @property
    def unfinished(self) -> int:
        """How many samples are unfinished: what is published."""
        return len(self._request)

    def samples(self, request_id: str) -> list[str]:
        """Return the ids of a request's unfinished samples."""
        return list(self._samples.get(request_id, ()))

    def add_request(self, request_id: str, n: int = 1, prompt_tokens: int | None = None) -> list[str]:
        """Test admission for the second time, add a request, and return the ids of its n samples.

        Without a reservation from a first test this is the first and the second at once. prompt_tokens
        are those of one sample. Raises what `Admission.check_admission` raises, then nothing is held
        any more; DuplicateRequest if an unfinished request or sample has one of these ids.
        """
        if self._known(request_id) or any(self._known(f"{i}_{request_id}") for i in range(n)):
            raise DuplicateRequest(f"request {request_id!r} is unfinished: each needs an id of its own")
        self._admission.check_admission(n, request_id, prompt_tokens)
        samples = [f"{i}_{request_id}" for i in range(n)]
        self._samples[request_id] = list(samples)
        self._request.update(dict.fromkeys(samples, request_id))
        self._in_prefill.update(samples)
        self._admission.publish(self.unfinished, added=request_id)
        return samples

    def prefilled(self, sample_id: str) -> None:
        """Note a sample's first output: its prompt tokens are back. Later calls do nothing."""
        if sample_id in self._in_prefill:
            self._in_prefill.remove(sample_id)
            self._admission.prefilled(self._request[sample_id])

    def finish_request(self, request_id: str) -> None:
        """Note that a sample has ended, or a request with all its samples."""
        self._drop(request_id)
        self._admission.publish(self.unfinished)

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Drop samples, or requests with all their samples; return the ids of the samples dropped."""
        dropped = [sample for request_id in request_ids for sample in self._drop(request_id)]
        self._admission.publish(self.unfinished)
        return dropped

    def _known(self, some_id: str) -> bool:
        return some_id in self._samples or some_id in self._request

    def _drop(self, some_id: str) -> list[str]:
        samples = self.samples(some_id) or ([some_id] if some_id in self._request else [])
        for sample in samples:
            self.prefilled(sample)
            request_id = self._request.pop(sample)
            rest = self._samples[request_id]
            rest.remove(sample)
            if not rest:
                del self._samples[request_id]
                self._admission.release(request_id)  # nothing is left in it but the entry
        return samples
