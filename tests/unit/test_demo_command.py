"""`gatecount demo` as a command: what it refuses, and what it says if something is missing."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from gatecount import cli
from gatecount.cli.group import main


def demo(*options: str) -> Result:
    return CliRunner().invoke(main, ["demo", *options])


@pytest.fixture(autouse=True)
def no_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing here start a server, whatever is broken."""

    def refuse(*_: object) -> None:
        raise AssertionError("the experiment was started")

    monkeypatch.setattr("gatecount.overload.experiment.run", refuse)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--limit", "0"], "--limit"),
        (["--limit", "ten"], "--limit"),
        (["--servers", "1"], "--servers"),
        (["--servers", "5"], "--servers"),
        (["--connections", "10"], "--connections"),
        (["--connections", "100000"], "--connections"),
        (["--duration", "0"], "--duration"),
        (["--duration", "nan"], "--duration"),
        (["--service-time", "-1"], "--service-time"),
        (["--service-time", "nan"], "--service-time"),
        (["--port", "65536"], "--port"),
        (["--mode", "soft"], "--mode"),
        (["--plot", "in-flight.txt"], "--plot"),
        (["--plot", "no/such/directory/in-flight.png"], "--plot"),
        (["--plot", "."], "--plot"),
        (["extra"], "extra"),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_its_option(options: list[str], complaint: str) -> None:
    refused = demo(*options)

    assert refused.exit_code == 2
    assert complaint in refused.output.splitlines()[-1]


def test_help_names_the_units_and_the_modes() -> None:
    text = demo("--help").output

    for word in ("seconds", "milliseconds", "off", "approximate", "hard", "gatecount[plot]"):
        assert word in text


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("uvicorn", [], "gatecount[demo]"),
        ("aiohttp", [], "gatecount[demo]"),
        ("matplotlib", ["--plot", "x.png"], "gatecount[plot]"),
    ],
)
def test_a_missing_dependency_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, options: list[str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what makes an import fail
    refused = demo(*options)

    assert refused.exit_code == 1
    assert len(refused.output.splitlines()) == 1
    assert module in refused.output
    assert f"pip install '{extra}'" in refused.output


def test_a_dependency_that_is_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "matplotlib.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    refused = demo("--plot", str(tmp_path / "x.png"))

    assert isinstance(refused.exception, ModuleNotFoundError)
    assert refused.exception.name == "not_there_at_all"


def test_the_entry_point_stands_without_click(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("gatecount.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    without: ModuleType | None = None
    monkeypatch.setitem(sys.modules, "click", without)

    with pytest.raises(SystemExit) as left:
        cli.run()

    assert left.value.code == 2
    assert "pip install 'gatecount[cli]'" in capsys.readouterr().err
