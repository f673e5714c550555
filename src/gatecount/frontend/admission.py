"""Whether a request may come in: tested twice by a server, charged once, over all servers.

A server tests before it renders a prompt, so that a refusal is cheap, and again when it adds the
request to its table, because rendering takes time. If both were only tests, everybody who passed the
first while there was one place would pass it together. So the first test reserves, keyed by the
request's id, and the second finds that reservation:

    check_admission(n, id)         n requests reserved                 refused: nothing is held
    check_admission(n, id, tokens) found; prompt tokens charged        refused: nothing is held any more
    publish(unfinished, id)        the reservation becomes part of the published count
    prefilled(id)                  one sample's prompt tokens are back
    release(id)                    whatever is still held is back; of an unknown id, nothing

A request that dies between the two tests is released like any other. What this process shows to the
others is at any time: requests reserved and not yet in the table + requests in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gatecount._core import MAX_LIMIT, check_int
from gatecount.counters import SharedAdmissionStats, SharedTokenStats
from gatecount.frontend.errors import MaxQueuedTokensError, QueueOverflowError


@dataclass(slots=True)
class _Holding:
    """What one request holds."""

    n: int
    uncounted: int
    """Requests reserved and not yet part of the published count: n, then 0."""
    prompt_tokens: int | None = None
    """Of each sample; None until the prompt has been rendered."""
    prefilling: int = 0
    """Samples whose prompt tokens are charged."""

    @property
    def tokens(self) -> int:
        return self.prefilling * (self.prompt_tokens or 0)


class Admission:
    """The two caps on what all servers have in flight: requests, and prompt tokens in prefill.

    client_config is what the process manager handed this server: "client_count", "client_index" and,
    if the caps are shared, "mp_admission_counters". Over `AdmissionCounters` they are exact; over a
    plain array each other server may add one admission of its own on top; without the key they bound
    this server alone. A cap that is None refuses nothing.

    The slot is claimed here, so make it in the server's own process: raises NotOwner if another living
    process has it. For the thread of the event loop alone. Raises TypeError, ValueError.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        *,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
    ) -> None:
        self.max_num_queued_reqs = _limit(max_num_queued_reqs, "max_num_queued_reqs")
        self.max_num_queued_tokens = _limit(max_num_queued_tokens, "max_num_queued_tokens")
        count, index = client_config["client_count"], client_config["client_index"]
        self._requests = SharedAdmissionStats(client_config, count, index)
        # A hard buffer that was made without a token limit has no such cap to count in.
        shared = client_config if max_num_queued_tokens is not None else {}
        self._tokens = SharedTokenStats(shared, count, index)
        self._holdings: dict[str, _Holding] = {}
        self._requests.set_num_requests(0)

    @property
    def exact(self) -> bool:
        """Whether no interleaving of servers can exceed a cap."""
        return self._requests.exact

    @property
    def requests_in_flight(self) -> int:
        """Requests reserved or unfinished, of all servers that share the cap; not a snapshot."""
        return self._requests.get_num_requests()

    @property
    def tokens_in_flight(self) -> int:
        """Prompt tokens charged and not yet through prefill, of all servers that share the cap."""
        return self._tokens.get_num_tokens()

    def holds(self, request_id: str) -> bool:
        """Tell whether anything was reserved under that id and not yet released."""
        return request_id in self._holdings

    def check_admission(
        self, n: int = 1, request_id: str | None = None, prompt_tokens: int | None = None
    ) -> None:
        """Admit a request of n samples or raise, all or nothing.

        Raises QueueOverflowError if the requests in flight and n are more than max_num_queued_reqs; else
        MaxQueuedTokensError if the prompt tokens in prefill have reached max_num_queued_tokens. The
        incoming prompt is not added in that test, so a long one can always run: the limit is passed by
        one request at most, and by n times its prompt.

        Without request_id this only looks. With one, the first call reserves n and every later one
        finds that, so nothing is charged twice; the first that knows prompt_tokens, from 0, those of
        each sample, charges them n times. What a refused request had reserved is given back before
        this raises. Raises TypeError; ValueError also if n or prompt_tokens differ from those that
        are charged, and then changes nothing.
        """
        n = check_int(n, "n", 1, MAX_LIMIT)
        if prompt_tokens is not None:
            prompt_tokens = check_int(prompt_tokens, "prompt_tokens", 0, MAX_LIMIT // n)
        if request_id is None:
            self._look(n)
            return
        holding = self._holdings.get(request_id)
        if holding is not None:
            _same(holding.n, n, "n", request_id)
        else:
            holding = self._reserve(request_id, n)
            if prompt_tokens is None and self._tokens_reached():
                self.release(request_id)
                raise self._tokens_refused(0)
        if prompt_tokens is None:
            return
        if holding.prompt_tokens is not None:
            _same(holding.prompt_tokens, prompt_tokens, "prompt_tokens", request_id)
        elif self._charge(n * prompt_tokens):
            holding.prompt_tokens, holding.prefilling = prompt_tokens, n
        else:
            self.release(request_id)
            raise self._tokens_refused(n * prompt_tokens)

    def publish(self, unfinished: int, added: str | None = None) -> None:
        """Publish how many samples the table has unfinished; `added` is the request just added to it."""
        if added is not None:
            self._holdings[added].uncounted = 0  # the rise uses its reservation up
        self._requests.set_num_requests(unfinished)

    def prefilled(self, request_id: str) -> None:
        """Give the prompt tokens of one sample back: it is through prefill, or will never be."""
        holding = self._holdings.get(request_id)
        if holding is not None and holding.prefilling:
            holding.prefilling -= 1
            if holding.prompt_tokens:
                self._tokens.release(holding.prompt_tokens)

    def release(self, request_id: str) -> None:
        """Give back all that is held under that id, but for what the published count holds.

        Of an unknown id, one that was refused or one that was released before, it does nothing.
        """
        holding = self._holdings.pop(request_id, None)
        if holding is None:
            return
        if holding.uncounted:
            self._requests.release(holding.uncounted)
        if holding.tokens:
            self._tokens.release(holding.tokens)

    def _look(self, n: int) -> None:
        limit = _or_most(self.max_num_queued_reqs)
        seen = self._requests.get_num_requests() + n <= limit
        if not seen and not _has_room(self._requests, n, limit):
            raise self._requests_refused(n)
        if self._tokens_reached():
            raise self._tokens_refused(0)

    def _reserve(self, request_id: str, n: int) -> _Holding:
        if not self._requests.try_reserve(n, _or_most(self.max_num_queued_reqs)):
            raise self._requests_refused(n)
        holding = self._holdings[request_id] = _Holding(n, uncounted=n)
        return holding

    def _charge(self, tokens: int) -> bool:
        if not tokens:
            return not self._tokens_reached()
        return self._tokens.try_reserve(tokens, _or_most(self.max_num_queued_tokens))

    def _tokens_reached(self) -> bool:
        limit = _or_most(self.max_num_queued_tokens)
        return self._tokens.get_num_tokens() >= limit and not _has_room(self._tokens, 1, limit)

    def _requests_refused(self, n: int) -> QueueOverflowError:
        limit, current = _or_most(self.max_num_queued_reqs), self.requests_in_flight
        return QueueOverflowError(
            f"The server is busy, try again later: {current} requests are in flight, and {n} more do "
            f"not fit under max_num_queued_reqs = {limit}.",
            limit=limit,
            current=current,
            requested=n,
        )

    def _tokens_refused(self, tokens: int) -> MaxQueuedTokensError:
        limit, current = _or_most(self.max_num_queued_tokens), self.tokens_in_flight
        return MaxQueuedTokensError(
            f"The server is busy, try again later: {current} prompt tokens are in prefill, and "
            f"max_num_queued_tokens = {limit}.",
            limit=limit,
            current=current,
            requested=tokens,
        )


def _limit(value: int | None, name: str) -> int | None:
    return None if value is None else check_int(value, name, 0, MAX_LIMIT)


def _has_room(stats: SharedAdmissionStats | SharedTokenStats, n: int, limit: int) -> bool:
    """Tell whether n more fit, for certain: what was read may be a dead server's.

    A reserve looks for the dead before it is refused; what it got is given back at once.
    """
    if not stats.try_reserve(n, limit):
        return False
    stats.release(n)
    return True


def _or_most(limit: int | None) -> int:
    return MAX_LIMIT if limit is None else limit


def _same(charged: int, given: int, name: str, request_id: str) -> None:
    if charged != given:
        raise ValueError(
            f"{name} is {given}, but request {request_id!r} is charged with {name} = {charged}: an id "
            "stands for one request"
        )
