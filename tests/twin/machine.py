"""What both machines share: how much is tried, clients that come and go, and lists of what they do.

The environment variable HYPOTHESIS_PROFILE says how much: "fast" (as in `make test`) or "verify", which
also looks for a smaller example when it has found one that fails.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine

from support import Crew, scaled
from twin.clients import Client, Here

PROFILES = {"fast": (24, 20), "verify": (120, 40)}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
EXAMPLES, STEPS = PROFILES[PROFILE]
SETTINGS = settings(
    max_examples=scaled(EXAMPLES),
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    phases=[*Phase] if PROFILE == "verify" else [Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


Steps = list[tuple[str, tuple[Any, ...]]]

units = st.integers(1, 4)
limit_values = st.sampled_from([6, 8, 5, 4, 3, 2, 1, 0])
sizes = st.sampled_from([4, 3, 2, 1])
shares = st.sampled_from(["one", "all", "too many"])
timeouts = st.sampled_from([0, 0.001, 0.003])
endings = st.sampled_from(["is killed", "is killed", "ends"])
WEIGHTS = {"reserve": 3, "admit": 3, "try_reserve": 3, "release": 2, "set_num_requests": 3}
"""How often a client does what it does more often than other things."""


def how_many(share: str, held: int) -> int:
    return {"one": 1, "all": max(held, 1), "too many": held + 1}[share]


def steps(**kinds: st.SearchStrategy[tuple[Any, ...]]) -> Any:
    """Return lists of what a client does in a row: the name of a step, and its arguments."""
    names = st.sampled_from([kind for kind in kinds for _ in range(WEIGHTS.get(kind, 1))])
    step = names.flatmap(lambda kind: st.tuples(st.just(kind), kinds[kind]))
    return st.lists(step, min_size=3, max_size=9)


class Machine(RuleBasedStateMachine):
    """Clients that come, and go in one of several ways."""

    clients = Bundle("clients")
    most = 5

    def __init__(self) -> None:
        super().__init__()
        self.crew = Crew("fork")
        self.members: list[Client] = []

    def has_room(self) -> bool:
        return len(self.members) < self.most

    def join(self, client: Client) -> Client:
        self.members.append(client)
        return client

    def die(self, client: Client, how: str) -> None:
        """Let a client go without a word, but those of this process, which cannot."""
        self.members.remove(client)
        if isinstance(client, Here):
            client.drop()
        elif how == "is killed":
            client.kill()
        else:
            client.end()

    def teardown(self) -> None:
        for client in self.members:
            if isinstance(client, Here):
                client.drop()
        self.crew.__exit__()
