"""A picture of the requests running over time, one panel for each mode."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gatecount.overload.experiment import ModeResult
from gatecount.overload.settings import MEANING, Mode, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by people of any colour vision (the palette of Okabe and Ito).
COLOUR: dict[Mode, str] = {"off": "#D55E00", "approximate": "#E69F00", "hard": "#0072B2"}


def draw(path: Path, settings: Settings, results: Sequence[ModeResult]) -> None:
    """Draw `results` into `path`, in the format that its ending names. Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.9 + 3.7 * len(results), 4.2), dpi=150, layout="constrained")
    figure.suptitle(
        f"{settings.connections} connections, {settings.servers} server processes on one socket",
        fontsize=10,
        color="0.35",
    )
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for panel, result in zip(panels, results, strict=True):
        _draw_mode(panel, result)
    panels[0].set_ylabel("requests running")
    # Room above the highest peak for the words at the line of the kill.
    panels[0].set_ylim(0, 1.2 * max(settings.limit, *(result.peak for result in results)))
    figure.savefig(path)


def _draw_mode(panel: "Axes", result: ModeResult) -> None:
    times = [at for at, _ in result.measured.samples]
    running = [value for _, value in result.measured.samples]
    killed_at, colour = result.measured.killed_at, COLOUR[result.mode]
    panel.fill_between(times, running, step="post", color=colour, alpha=0.25, linewidth=0)
    panel.step(times, running, where="post", color=colour, linewidth=0.9)

    panel.axhline(result.limit, color="black", linestyle="--", linewidth=1)
    panel.annotate(
        f"limit {result.limit}",
        (0, result.limit),
        textcoords="offset points",
        xytext=(4, 4),
        fontsize=8,
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1},
    )

    panel.axvline(killed_at, color="0.3", linestyle=":", linewidth=1)
    panel.annotate(
        "one server killed",
        (killed_at, 1),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        xytext=(-4, -10),
        ha="right",
        fontsize=8,
        color="0.3",
    )

    panel.set_title(f"{result.mode}: at most {result.peak}", fontsize=12, weight="bold", loc="left")
    panel.set_xlabel(f"seconds\n{MEANING[result.mode]}")
    panel.set_xlim(0, times[-1] if times else 1)
    panel.spines[["top", "right"]].set_visible(False)
