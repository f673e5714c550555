"""Whether a request may come in, and what becomes of it otherwise: the same for ASGI and WSGI.

                              client                             log        counts
no room                       status, Retry-After                warning    refused
too large by its own cost     413, no Retry-After                warning    refused
gate cannot be used           closed: status, Retry-After        error      none
                              open: let in, unlimited            error      none
cost cannot be told           500, no Retry-After                error      none
dry run                       let in, unlimited, in each case    the same   the same

In each case nothing is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal, TypedDict

from gatecount._core import MAX_LIMIT, check_int
from gatecount.errors import GatecountError, GateFull, GateTimeout
from gatecount.gate import Gate, Permit
from gatecount.integrations._cost import Cost, CostError, Headroom, Price
from gatecount.integrations._journal import Journal
from gatecount.integrations._refusal import BodyKind, Refusal, Refusals
from gatecount.integrations._source import GateSource, Unusable

BUSY: Final = "The server is busy, try again later."
TOO_LARGE: Final = "This request asks for more than the server can ever take at a time."
UNKNOWN_COST: Final = "Internal server error."


class Options(TypedDict, total=False):
    """The keywords of both middlewares. A request is an ASGI scope or a WSGI environ."""

    cost: Cost
    """Units that a request holds: a number under cap "requests", or a mapping from caps to numbers; or a
    function of the request that returns either. 0 under every cap: nothing is held. 1 if left out."""
    headroom: Headroom
    """Units that must stay free beside those, or a function of the request: the lower the priority, the
    more. 0 if left out."""
    exempt: Iterable[str]
    """Paths that are never limited, each exactly as the server tells it: health checks, metrics."""
    timeout: float | None
    """Seconds that a request may wait for room before it is refused; None: for ever. 0 if left out."""
    max_waiting: int | None
    """How many requests may wait at a time; one more is refused at once. None: any number."""
    status: Literal[503, 429]
    """Of a refusal; 503 if left out."""
    retry_after: tuple[int, int] | None
    """The least and the most seconds of Retry-After, of which each refusal draws its own; (1, 5) if left
    out. None: there is no such header."""
    body: BodyKind
    """Of a refusal; "json" if left out."""
    dry_run: bool
    """Refuse nothing, and let nothing wait: count and log what would have been refused."""
    on_missing: Literal["closed", "open"]
    """Refuse every request while the gate cannot be used ("closed", if left out), or none ("open")."""


class Policy:
    """What a middleware asks about each request. describe names a request in the log.

    Safe from any thread; made before a fork, it works in each child, where it claims a slot at the first
    request. Raises TypeError, ValueError.
    """

    def __init__(
        self,
        gate: Gate | str | None,
        describe: Callable[[Any], str],
        *,
        cost: Cost = 1,
        headroom: Headroom = 0,
        exempt: Iterable[str] = (),
        timeout: float | None = 0.0,
        max_waiting: int | None = None,
        status: int = 503,
        retry_after: tuple[int, int] | None = (1, 5),
        body: BodyKind = "json",
        dry_run: bool = False,
        on_missing: str = "closed",
    ) -> None:
        self._price = Price(cost, headroom)
        self._source = GateSource(gate, self._price.needs)
        self._refusals = Refusals(body, retry_after)
        self._journal = Journal()
        self._describe = describe
        self.exempt = _check_paths(exempt)
        """Paths that are not to be asked about."""
        timeout = _check_timeout(timeout)
        self._patience: dict[str, Any] = {
            "timeout": timeout,
            "max_waiting": _check_waiting(max_waiting, timeout),
        }
        self._dry_run = check_bool(dry_run, "dry_run")
        self.waits = timeout != 0 and not self._dry_run
        """Whether a request may have to wait: in an event loop, ask by `admit_async` then."""
        if not isinstance(status, int) or status not in (503, 429):
            raise ValueError(f"status must be 503 or 429, not {status!r}")
        self._status = status
        if on_missing not in ("closed", "open"):
            raise ValueError(f"on_missing must be 'closed' or 'open', not {on_missing!r}")
        self._open = on_missing == "open"

    def prepare(self) -> None:
        """Claim a slot now rather than at the first request, and log it if that cannot be done."""
        try:
            self._source.ready()
        except Unusable as error:
            self._judge(error, None)

    def admit(self, request: Any) -> Permit | Refusal | None:
        """Return a request's permit, what it is refused with, or None: it comes in and holds nothing.

        Blocks the thread while it waits, if it `waits`.
        """
        try:
            gate, amounts, headroom = self._ask(request)
            if not amounts:
                return None
            if not self.waits:
                return gate.admit(headroom=headroom, **amounts)
            return gate.admit(headroom=headroom, **self._patience, **amounts)
        except _REASONS as error:
            return self._judge(error, request)

    async def admit_async(self, request: Any) -> Permit | Refusal | None:
        """Do as `admit`, but let the event loop go on meanwhile. Cancelled, it holds nothing."""
        try:
            gate, amounts, headroom = self._ask(request)
            if not amounts:
                return None
            return await gate.admit_async(headroom=headroom, **self._patience, **amounts)
        except _REASONS as error:
            return self._judge(error, request)

    def _ask(self, request: Any) -> tuple[Gate, dict[str, int], int]:
        gate = self._source.ready()
        return gate, *(self._price.fixed or self._price.of(request, gate.segment.caps))

    def _judge(self, error: Exception, request: Any) -> Refusal | None:
        """Return what the client gets, or None if its request comes in all the same; and log it."""
        let_in = self._dry_run
        if isinstance(error, GateFull | GateTimeout):
            kind = "full"
            if self._too_large(error):
                kind = "too large"
                refusal = self._refusals.make(413, TOO_LARGE)
            else:
                refusal = self._refusals.make(self._status, BUSY, retry=True)
        elif isinstance(error, CostError):
            kind = "its cost cannot be told"
            refusal = self._refusals.make(500, UNKNOWN_COST)
        else:
            kind = "the gate cannot be used"
            if not isinstance(error, Unusable):  # it was usable until now
                error = self._source.lost(error)
            refusal = self._refusals.make(self._status, BUSY, retry=True)
            let_in = let_in or self._open
        if self._journal.due(kind):
            self._say(kind, error, request, refusal.status, let_in)
        return None if let_in else refusal

    def _say(self, kind: str, error: Exception, request: Any, status: int, let_in: bool) -> None:
        what = "the first request" if request is None else self._describe(request)
        if self._dry_run:
            done = f"dry run: would refuse {what} with {status}"
        else:
            done = f"lets in {what} unlimited" if let_in else f"refuses {what} with {status}"
        if isinstance(error, GateFull | GateTimeout):
            self._journal.say(logging.WARNING, kind, f"{done}: {error}")
        else:
            cause = error.__cause__ if isinstance(error, CostError) else None
            self._journal.say(logging.ERROR, kind, f"{done}: {kind}: {error}", cause)

    def _too_large(self, error: Exception) -> bool:
        # A limit of 0 is a closed door, and a fixed cost above the limit is none of the client's doing:
        # both may come again.
        if not (isinstance(error, GateFull) and self._price.varies):
            return False
        if error.requested == error.headroom == MAX_LIMIT:  # more than can be counted, see `Price.of`
            return True
        return error.requested > error.limit > 0


_REASONS = (GatecountError, OSError, CostError, Unusable)


def _check_paths(paths: object) -> frozenset[str]:
    given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [None]
    checked = [path for path in given if isinstance(path, str) and path.startswith("/")]
    if checked != given:
        raise ValueError(
            f"exempt must be paths that begin with '/', such as ('/health',): not {paths!r}"
        )
    return frozenset(checked)


def _check_timeout(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    with suppress(OverflowError):  # of an int beyond every float
        if float(timeout) >= 0:  # nor nan
            return timeout
    raise ValueError(f"timeout must be 0 or more seconds, or None, not {timeout!r}")


def _check_waiting(max_waiting: int | None, timeout: float | None) -> int | None:
    if max_waiting is None:
        return None
    if timeout == 0:
        raise ValueError("max_waiting needs a timeout: without one, no request waits")
    return check_int(max_waiting, "max_waiting", 0, MAX_LIMIT)


def check_bool(value: object, name: str) -> bool:
    """Return value if it is a bool. Raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value
