"""A gate for a program that runs uvicorn, granian or hypercorn, whose parent processes have no hooks.

with gate_for_workers("api", limits={"requests": 10}, slots=2 * workers):
    uvicorn.run("app:app", workers=workers)
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from gatecount.gate import ENVIRONMENT, Gate
from gatecount.names import path_of


@contextmanager
def gate_for_workers(
    name: str,
    *,
    limits: Mapping[str, int],
    slots: int = 16,
    mode: str = "hard",
    permissions: int = 0o600,
) -> Iterator[Gate]:
    """Create a gate, or adopt the one that stands under the name, for the workers that run in the block.

    Its name travels to them by GATECOUNT_GATE. At the end of the block, however it ends, those of
    `multiprocessing`'s children that own slots are waited for, and the name is removed; unless other
    living processes own slots, for then another start of the service goes on with the gate, and the
    last of them removes it. A program ended by a signal that it does not catch leaves the name, and
    the next start adopts it. Yields the gate, which is closed afterwards; the block need not use it.

    slots must be at least twice the number of workers where a reload has both generations at a time.
    For the main thread of the program that starts the workers. Raises what `Gate.create` does.
    """
    with Gate.create(
        name, limits=limits, slots=slots, mode=mode, permissions=permissions, exist_ok=True
    ) as gate:
        os.environ[ENVIRONMENT] = name
        try:
            yield gate
        finally:
            for worker in multiprocessing.active_children():
                if worker.pid in _owners(gate):
                    worker.join()
            if _owners(gate) <= {os.getpid()}:
                with suppress(FileNotFoundError):  # somebody else has removed it
                    gate.segment.unlink(os.fsencode(path_of(name)))


def _owners(gate: Gate) -> set[int]:
    return {slot.pid for slot in gate.statistics().slots}
