"""What the experiment makes of its counts: means, percentiles, JSON, tables, picture."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gatecount.overload import report
from gatecount.overload.admission import PerProcessLimit
from gatecount.overload.experiment import ModeResult
from gatecount.overload.load import Tally
from gatecount.overload.measure import Measured, mean_between
from gatecount.overload.plot import draw
from gatecount.overload.settings import Mode, Settings


def result(mode: Mode, peak: int, *, recovery: float | None = 0.0213, mean: float = 9.6) -> ModeResult:
    latencies = [0.05 + 0.001 * step for step in range(100)]
    return ModeResult(
        mode=mode,
        limit=10,
        peak=peak,
        peak_after_kill=min(peak, 30),
        measured=Measured(
            tally=Tally(refused=1234, latencies=latencies),
            failed=3,
            mean=mean,
            samples=((0.0, 0), (0.1, peak), (0.2, 9), (0.3, 4), (0.4, 9)),
            killed_at=0.3,
            held_by_killed=3,
            recovery=recovery,
        ),
    )


def test_a_mean_weighs_each_sample_by_the_time_it_held() -> None:
    samples = [(0.0, 100), (1.0, 10), (1.5, 20), (4.0, 0)]

    assert mean_between(samples, 1.0, 2.0) == pytest.approx(15.0)
    assert mean_between(samples, 0.0, 4.0) == pytest.approx((100 + 5 + 50) / 4)
    assert mean_between([], 0.0, 4.0) == 0.0


def test_percentiles_are_latencies_that_were_measured() -> None:
    tally = Tally(latencies=[step / 1000 for step in range(100, 0, -1)])

    assert tally.percentile(50) == 0.050
    assert tally.percentile(99) == 0.099
    assert tally.percentile(100) == 0.100
    assert Tally(latencies=[0.7]).percentile(1) == 0.7
    assert Tally().percentile(50) is None


def test_a_limit_per_process_admits_up_to_it_and_again_after_a_release() -> None:
    limit = PerProcessLimit(2)

    assert [limit.try_acquire() for _ in range(3)] == [True, True, False]
    limit.release()
    assert [limit.try_acquire() for _ in range(2)] == [True, False]


def test_overshoot_is_what_passed_the_limit_and_never_negative() -> None:
    assert [result("hard", peak).overshoot for peak in (9, 10, 12)] == [0, 0, 2]


def test_json_has_the_fixed_fields_and_null_for_what_never_happened() -> None:
    data = report.as_json(Settings(), [result("off", 40, recovery=None), result("hard", 10)])
    modes = json.loads(json.dumps(data))["modes"]

    fixed = (
        "mode",
        "limit",
        "peak_in_flight",
        "mean_in_flight",
        "overshoot",
        "admitted",
        "refused",
    )
    assert [[mode[name] for name in fixed] for mode in modes] == [
        ["off", 10, 40, 9.6, 30, 100, 1234],
        ["hard", 10, 10, 9.6, 0, 100, 1234],
    ]
    assert [(mode["p50_ms"], mode["p99_ms"]) for mode in modes] == [(99.0, 148.0)] * 2
    assert [mode["recovery_ms"] for mode in modes] == [None, 21.3]
    assert data["machine"] == report.machine()


def test_tables_fit_eighty_columns_and_say_never_where_nothing_comes_back() -> None:
    out = io.StringIO()
    results = [result("off", 40, recovery=None), result("approximate", 11), result("hard", 10)]
    report.print_tables(Console(file=out, width=80), Settings(connections=500), results)
    lines = out.getvalue().splitlines()

    off = [line.split() for line in lines if line.strip().startswith("off")]
    hard = [line.split() for line in lines if line.strip().startswith("hard")]
    assert off[0] == ["off", "40", "9.6", "+30", "100", "1,234", "99.0", "148.0"]
    assert off[1] == ["off", "3", "never", "30"]
    assert hard[0] == ["hard", "10", "9.6", "0", "100", "1,234", "99.0", "148.0"]
    assert hard[1] == ["hard", "3", "after", "21", "ms", "10"]
    assert "approximate may run up to 13" in out.getvalue()


def test_only_hard_mode_is_held_to_the_limit_and_to_the_recovery() -> None:
    kept = [result("off", 40, recovery=None), result("approximate", 13), result("hard", 10)]
    idle = result("hard", 5, recovery=None, mean=1.0)
    broken = [result("hard", 11), result("hard", 10, recovery=None)]

    assert list(report.broken_promises([*kept, idle])) == []
    assert list(report.broken_promises(broken)) == [
        "hard mode ran 11 requests under a limit of 10",
        "hard mode did not get back what a killed server held",
    ]


def test_the_picture_has_a_panel_for_each_mode(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one, three = tmp_path / "one.png", tmp_path / "three.png"
    draw(one, Settings(), [result("hard", 10)])
    draw(three, Settings(), [result("off", 40), result("approximate", 12), result("hard", 10)])

    assert one.read_bytes().startswith(b"\x89PNG")
    # The width in pixels stands at a fixed place of every PNG.
    widths = [int.from_bytes(path.read_bytes()[16:20]) for path in (one, three)]
    assert widths[1] > 2 * widths[0]
