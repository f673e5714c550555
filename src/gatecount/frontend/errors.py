"""What a host refuses, and what can go wrong in it."""

from __future__ import annotations

from gatecount.errors import GatecountError


class AdmissionRefused(GatecountError):
    """A cap has no room for a request; nothing is held for it, or not any more."""

    cap: str
    """ "requests" or "tokens"."""

    def __init__(self, message: str, *, limit: int, current: int, requested: int) -> None:
        super().__init__(message)
        self.limit = limit
        self.current = current
        self.requested = requested

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.limit, self.current, self.requested)


class QueueOverflowError(AdmissionRefused):
    """The requests in flight and the n more that came would be over max_num_queued_reqs."""

    cap = "requests"


class MaxQueuedTokensError(AdmissionRefused):
    """The prompt tokens still in prefill have reached max_num_queued_tokens."""

    cap = "tokens"


class DuplicateRequest(GatecountError, ValueError):
    """A request of that id is in the table already."""


class EngineDead(GatecountError):
    """The engine has ended, or the connection to it: no request can be served any more."""


class StartError(GatecountError):
    """A process of the host failed before it was ready; all that had been started was ended."""


def _rebuild(
    kind: type[AdmissionRefused], message: str, limit: int, current: int, requested: int
) -> AdmissionRefused:
    return kind(message, limit=limit, current=current, requested=requested)
