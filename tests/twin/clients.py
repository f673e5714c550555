"""Clients of a gate or a buffer, in this process and in others, called in the same way."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
from typing import Any

from gatecount import AdmissionCounters, Gate, NotOwner, Permit, SharedAdmissionStats
from support import Crew, Remote, wait_until


class GateClient:
    """A process's use of a gate: what it holds by number, and what it holds as permits."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.permits: list[Permit] = []

    def admit(self, amounts: dict[str, int], timeout: float) -> None:
        self.permits.append(self.gate.admit(timeout=timeout, **amounts))

    def acquire(self, cap: str, n: int, timeout: float, is_task: bool) -> None:
        if is_task:
            threads = _thread._count()
            try:
                asyncio.run(self.gate.acquire_async(n, cap=cap, timeout=timeout))
            finally:  # a watcher ends soon after the last task; until then it keeps the gate alive
                wait_until(lambda: _thread._count() <= threads)
        else:
            self.gate.acquire(n, cap=cap, timeout=timeout)

    def release_permit(self) -> None:
        self.permits.pop().release()

    def reserve(self, cap: str, n: int) -> bool:
        return self.gate.try_acquire(n, cap=cap)

    def release(self, cap: str, n: int) -> None:
        self.gate.release(n, cap=cap)

    def claim(self) -> int:
        return self.gate.claim()

    def held(self) -> list[int]:
        return [self.gate.held(cap=cap) for cap in self.gate.segment.caps]

    def set_limit(self, cap: str, limit: int) -> None:
        self.gate.set_limit(cap, limit)

    def reclaim(self) -> int:
        return self.gate.reclaim()

    def statistics(self) -> dict[str, Any]:
        return {cap: vars(told) for cap, told in self.gate.statistics().caps.items()}

    def close(self) -> None:
        self.gate.close()


def opened(name: str) -> GateClient:
    return GateClient(Gate.open(name))


class BufferClient:
    """A server's view of a buffer, under each of the indices that it uses."""

    def __init__(self, buffer: Any, clients: int) -> None:
        self.buffer = buffer
        self.clients = clients

    def _stats(self, index: int) -> SharedAdmissionStats:
        """Return a new object: over a hard buffer, all objects of one index share what they hold."""
        config = {"mp_admission_counters": self.buffer}
        return SharedAdmissionStats(config, self.clients, index)

    def try_reserve(self, index: int, n: int, bound: int | None) -> bool:
        return self._stats(index).try_reserve(n, bound)

    def release(self, index: int, n: int) -> None:
        self._stats(index).release(n)

    def set_num_requests(self, index: int, count: int) -> None:
        self._stats(index).set_num_requests(count)

    def get_num_requests(self) -> int:
        return self._stats(0).get_num_requests()

    def set_limit(self, limit: int) -> None:
        assert isinstance(self.buffer, AdmissionCounters)
        self.buffer.limit = limit

    def reclaim(self) -> int:
        assert isinstance(self.buffer, AdmissionCounters)
        return self.buffer.reclaim()


class PlainBufferClient(BufferClient):
    """Over a plain array an object keeps its own tally, so there is one for each index."""

    def __init__(self, buffer: Any, clients: int) -> None:
        super().__init__(buffer, clients)
        self._objects: dict[int, SharedAdmissionStats] = {}

    def _stats(self, index: int) -> SharedAdmissionStats:
        if index not in self._objects:
            self._objects[index] = super()._stats(index)
        return self._objects[index]


class Here:
    """A client in this process, with a slot of its own like that of any other process."""

    pid: int | None = None

    def __init__(self, client: object) -> None:
        self.client: Any = client

    def call(self, method: str, *arguments: object) -> Any:
        return getattr(self.client, method)(*arguments)

    def drop(self) -> None:
        """Forget it without closing the gate."""
        for permit in getattr(self.client, "permits", []):
            with contextlib.suppress(NotOwner):  # given back by number before
                permit.release()
        self.client = None
        gc.collect()  # a task's error is held by the task that it ended


class There(Remote):
    """A client in a forked process."""

    @property
    def pid(self) -> int | None:
        return self.process.pid


Client = Here | There


def end_together(crew: Crew, victims: list[There]) -> None:
    """Kill processes in the same moment: none is waited for before the last is killed."""
    for victim in victims:
        victim.process.kill()
    for victim in victims:
        crew.kill(victim.process)
