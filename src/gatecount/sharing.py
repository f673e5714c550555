"""Hand a segment to a child process while it is being started, and only then."""

from __future__ import annotations

from multiprocessing import context, reduction
from typing import TYPE_CHECKING, Any

from gatecount import _core

if TYPE_CHECKING:
    from collections.abc import Callable


def reduce_to_descriptor(
    shared: object, segment: _core.Segment, rebuild: Callable[..., Any], *details: object
) -> tuple[Callable[..., Any], tuple[object, ...]]:
    """Reduce an object over a segment to the descriptor that its child process inherits.

    Raises RuntimeError unless a child is being started: the memory has no name that a pickle could
    carry anywhere else.
    """
    context.assert_spawning(shared)
    return rebuild, (reduction.DupFd(segment.fd), *details)


def attach(descriptor: Any) -> _core.Segment:
    """Map the segment whose descriptor this child process has inherited."""
    return _core.Segment.attach(descriptor.detach())
