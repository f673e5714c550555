"""Kill processes that share a gate, at random, again and again: no limit is passed, nothing is lost.

    python tests/soak/soak.py --kills 1000 --seed 7 --json

Workers, forked and spawned, some with forked children of their own, reserve under one and under two
caps, release, reclaim, close and open again, and set limits. They are killed with SIGKILL one by one,
two in the same moment, the parent without its child, while they reclaim what another left, and while
they are stopped. In between all are paused and the books are compared to the unit. Exit code 1 if
anything was wrong."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from soak.supervisor import Soak


def report(soak: Soak, seconds: float, as_json: bool) -> None:
    """Print what was done: one line, or all figures."""
    totals = soak.board.totals()
    for what in soak.wrong:
        print(what, file=sys.stderr)
    if not as_json:
        print(
            f"{soak.done:,} kills, {totals['operations']:,} operations, {soak.violations} violations "
            f"(seed {soak.seed}, {seconds:.0f} s)"
        )
        return
    figures = {
        "kills": soak.done,
        "operations": totals["operations"],
        "violations": soak.violations,
        "wrong": soak.wrong,
        "seed": soak.seed,
        "seconds": round(seconds, 1),
        **totals,
        "grants_at_the_limit": {
            cap: witness.times_at_limit for cap, witness in soak.board.witnesses.items()
        },
        "kills_by_kind": dict(soak.by_kind),
        "kills_by_stage": dict(soak.by_stage),
        "killed_with_a_slot_half_reclaimed": soak.half_reclaimed,
        "times_compared": soak.checkpoints,
    }
    print(json.dumps(figures, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="how many processes to kill")
    parser.add_argument("--seed", type=int, help="of whom is killed, and how; else chosen at random")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(10**6)
    soak = Soak(kills=chosen.kills, seed=seed)
    begin = time.monotonic()
    soak.run()
    report(soak, time.monotonic() - begin, chosen.json)
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
