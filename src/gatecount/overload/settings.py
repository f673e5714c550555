"""What an experiment can be asked to do."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["off", "approximate", "hard"]

MODES: tuple[Mode, ...] = ("off", "approximate", "hard")

MEANING: dict[Mode, str] = {
    "off": "each process limits itself",
    "approximate": "shared counters: check, then publish",
    "hard": "one exact limit for all processes",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One experiment. Times are in seconds; `port` 0 means a free one for each mode."""

    modes: tuple[Mode, ...] = MODES
    limit: int = 10
    servers: int = 4
    connections: int = 80
    duration: float = 4.0
    service_time: float = 0.05
    host: str = "127.0.0.1"
    port: int = 0

    pause: float = 0.12
    """Mean pause of a refused client: long enough that retries do not starve the servers."""

    aftermath: float = 1.0
    """For how long the load goes on once the others could use what a killed server held."""

    patience: float = 5.0
    """How long to wait for anything that ought to happen at once, before giving up on it."""
