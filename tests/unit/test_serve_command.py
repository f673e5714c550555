"""`gatecount serve` as a command: its help, what it refuses, and what it hands on."""

from __future__ import annotations

import importlib
import signal
import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gatecount import cli
from gatecount.cli.group import main
from gatecount.frontend.errors import StartError
from gatecount.frontend.settings import EngineSettings, ServeSettings
from gatecount.interrupts import Terminated


class Host:
    """Stands in for `gatecount.frontend.host.run`: nothing here may start a process."""

    def __init__(self) -> None:
        self.settings: ServeSettings | None = None
        self.keywords: dict[str, Any] = {}
        self.outcome: signal.Signals | BaseException = signal.SIGTERM

    def __call__(self, settings: ServeSettings, **keywords: Any) -> signal.Signals:
        self.settings, self.keywords = settings, keywords
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr("gatecount.frontend.host.run", host)
    return host


def serve(*options: str) -> Result:
    return CliRunner().invoke(main, ["serve", *options])


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "4", "--limit", "10", "--token-limit", "32k", "--mode", "approximate"],
        [
            "--api-server-count=4",
            "--max-num-queued-reqs=10",
            "--max-num-queued-tokens=32k",
            "--admission=approximate",
        ],
    ],
    ids=["ours", "operators'"],
)
def test_both_spellings_say_the_same(host: Host, options: list[str]) -> None:
    assert serve(*options).exit_code == 0
    assert host.settings == ServeSettings(
        workers=4, max_num_queued_reqs=10, max_num_queued_tokens=32_000, admission="approximate"
    )


def test_without_options_there_is_one_server_and_no_cap(host: Host) -> None:
    assert serve().exit_code == 0
    assert host.settings == ServeSettings()
    assert host.keywords["host"] == "127.0.0.1"
    assert host.keywords["port"] == 8000
    assert host.keywords["on_exit"] == "respawn"


def test_times_are_given_in_milliseconds_and_kept_in_seconds(host: Host) -> None:
    options = ["--service-time", "250", "--prefill-time", "5", "--engine-concurrency", "2k"]
    assert serve(*options, "--engine-load-time", "3", "--warmup-time", "2").exit_code == 0
    assert host.settings is not None
    assert host.settings.engine == EngineSettings(
        service_time=0.25, prefill_time=0.005, concurrency=2_000, load_time=3
    )
    assert host.settings.warmup_time == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--workers", "0"], "--workers"),
        (["--workers", "1024"], "--workers"),
        (["--limit", "0"], "0 is not from 1 to"),
        (["--limit", "1.5K"], "'1.5K' is not a whole number"),
        (["--limit", "-3"], "'-3' is negative"),
        (["--limit=-3"], "'-3' is negative"),
        (["--max-num-queued-reqs", "ten"], "'ten' is not a count"),
        (["--token-limit", "5G"], "is not from 1 to 4,294,967,295"),
        (["--mode", "soft"], "'soft' is not one of"),
        (["--accept", "most"], "'most' is not one of"),
        (["--on-exit", "retry"], "'retry' is not one of"),
        (["--port", "65536"], "--port"),
        (["--service-time", "-1"], "--service-time"),
        (["--service-time", "nan"], "nan is not a number"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
        (["--log-level", "loud"], "--log-level"),
        (["module"], "'module' is not of the form package.module:attribute"),
        (["module:"], "is not of the form"),
        (["/a/b.py:app"], "is not of the form"),
        (["module:app", "other:app"], "other:app"),
        (["module:app", "--token-limit", "5"], "only the reference app has this"),
        (["module:app", "--warmup-time", "0"], "only the reference app has this"),
    ],
)
def test_a_bad_value_is_a_usage_error_of_one_line(
    host: Host, options: list[str], complaint: str
) -> None:
    refused = serve(*options)

    assert refused.exit_code == 2
    assert complaint in refused.output.splitlines()[-1]
    assert host.settings is None


def test_help_names_caps_modes_units_and_exit_codes() -> None:
    text = " ".join(serve("--help").output.split())

    for words in (
        "exact global cap",
        "approximate global cap",
        "32k is 32,000, 1K is 1,024",
        "--workers, --api-server-count",
        "--limit, --max-num-queued-reqs",
        "--token-limit, --max-num-queued-tokens",
        "--mode, --admission [hard|approximate|off]",
        "--start-timeout",
        "and 3 more before they are killed",
        "SECONDS",
        "MS",
        "130 it was ended by Ctrl-C",
        "/health and /metrics are never refused",
    ):
        assert words in text


def test_the_command_is_listed() -> None:
    assert "serve" in CliRunner().invoke(main, ["--help"]).output


def test_exit_codes(host: Host) -> None:
    assert serve().exit_code == 0
    host.outcome = signal.SIGINT
    interrupted = serve()
    assert interrupted.exit_code == 130
    assert interrupted.output == "Interrupted; all servers have ended.\n"
    host.outcome = KeyboardInterrupt()  # before anything was started
    assert serve().exit_code == 130
    host.outcome = Terminated()
    assert serve().exit_code == 0
    host.outcome = StartError("the engine could not be loaded")
    failed = serve()
    assert failed.exit_code == 1
    assert failed.output == "Error: the engine could not be loaded\n"


def test_a_missing_dependency_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused = serve()

    assert refused.exit_code == 1
    assert refused.output == (
        "Error: gatecount serve needs prometheus_client: pip install 'gatecount[serve]'\n"
    )


def test_ctrl_c_during_the_imports_shows_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    def interrupt(*_: str) -> None:
        raise KeyboardInterrupt

    # The command hides the module of its name.
    monkeypatch.setattr(importlib.import_module("gatecount.cli.serve"), "require", interrupt)
    assert serve().exit_code == 130

    monkeypatch.setitem(sys.modules, "gatecount.cli.group", Interrupted("gatecount.cli.group"))
    with pytest.raises(SystemExit) as left:
        cli.run()
    assert left.value.code == 130
