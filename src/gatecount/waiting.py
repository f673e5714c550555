"""How tasks of asyncio wait for room.

No descriptor tells when memory changes, so an event loop cannot wait for it. All tasks that wait for
the same therefore share a thread, the watcher, which tries and sleeps for whichever of them is the
oldest, and tells the task's loop what came of it. It is started when the first of them has to wait and
ends soon after the last.

The steps that must not be interrupted are compiled (ext/_wait.pxi), and so is a thread's way of waiting.
"""

from __future__ import annotations

import asyncio

from gatecount._core import Line, PermitCore, Waiter


async def wait_for(waiter: Waiter) -> PermitCore:
    """Return the waiter's permit once it is granted, or raise what `Gate.acquire` raises.

    However this ends otherwise (a cancel, a closed loop), the waiter is out of line and holds nothing.
    """
    loop = asyncio.get_running_loop()
    waiter.future = loop.create_future()
    timer: asyncio.TimerHandle | None = None
    try:
        if not waiter.join(watch):
            if waiter.timeout < float("inf"):
                timer = loop.call_later(waiter.timeout, _give_up, waiter)
            await waiter.future
            if not waiter.granted:
                raise waiter.time_up()
        return waiter.take()
    finally:
        waiter.leave()
        if timer is not None:
            timer.cancel()
        if waiter.future.done() and not waiter.future.cancelled():
            waiter.future.exception()  # or asyncio would complain that a dropped task has not seen it


def watch(line: Line) -> None:
    """Try and sleep for the tasks of a line, until there are none: what the watcher does."""
    while _serve(line.next_task()):
        pass


def _serve(waiter: Waiter | None) -> bool:
    if waiter is None:
        return False
    if waiter.future.get_loop().is_closed():
        waiter.leave()  # nobody is left to be told
        return True
    try:
        if not waiter.attempt():
            waiter.sleep(float("inf"))
            return True
    except Exception as error:  # noqa: BLE001 (the task is to raise it)
        waiter.leave()
        _tell(waiter, error)
    else:
        _tell(waiter, None)
    return True


def _tell(waiter: Waiter, error: Exception | None) -> None:
    """Let a task go on, or raise; if its loop was closed meanwhile, give back what was granted."""
    try:
        waiter.future.get_loop().call_soon_threadsafe(_settle, waiter, error)
    except RuntimeError:
        waiter.leave()


def _settle(waiter: Waiter, error: Exception | None) -> None:
    if waiter.future.done():  # cancelled: it gives back what it was granted when it comes to run
        return
    if error is None:
        waiter.future.set_result(None)
    else:
        waiter.future.set_exception(error)


def _give_up(waiter: Waiter) -> None:
    waiter.expire()
    _settle(waiter, None)
