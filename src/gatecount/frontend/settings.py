"""What a host is told when it starts: frozen, and picklable for its child processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Admission = Literal["hard", "approximate", "off"]
OnExit = Literal["respawn", "stop"]
Accept = Literal["least-loaded", "any"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the reference engine behaves. Times in seconds."""

    service_time: float = 0.2
    """How long one sample runs after its prefill, spread evenly over its tokens."""
    prefill_time: float = 0.0
    """How long the prefill of 1,000 prompt tokens takes."""
    concurrency: int = 1024
    """How many samples run at once; more wait inside the engine, and do not count as running."""
    load_time: float = 0.0
    """How long it loads before it is ready."""

    def __post_init__(self) -> None:
        """Refuse what no engine could do."""
        for name in ("service_time", "prefill_time", "load_time"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a time of 0 s or more, not {getattr(self, name)}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a server process serves. Times in seconds."""

    app: str | None = None
    """`package.module:attribute` of an ASGI application; None for the reference app."""
    workers: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    admission: Admission = "hard"
    accept: Accept | None = None
    """None: least-loaded where a cap is set, for then the servers share memory anyhow; else any."""
    shutdown_timeout: float = 5.0
    """How long running requests may take to end once a stop was asked for."""
    start_timeout: float = 60.0
    """How long a server may take to be ready, beyond the time that engine and warm-up are told to."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    warmup_time: float = 0.0
    """How long the reference app's start-up work takes: made longer to see it overlap with loading."""
