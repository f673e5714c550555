"""The Spin models of cap and waiting hold in small bounds, and fail without each of their guards."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location(
    "gatecount_run_model", Path(__file__).with_name("run_model.py")
)
assert spec is not None
assert spec.loader is not None
run_model = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = run_model  # where its dataclasses look for their annotations
spec.loader.exec_module(run_model)

needs_spin = pytest.mark.skipif(
    bool(run_model.missing_tools()), reason=" ".join(run_model.missing_tools())
)


def named(variants):
    return pytest.mark.parametrize("variant", variants, ids=lambda variant: variant.name)


@needs_spin
@named(run_model.MODELS)
def test_no_interleaving_and_no_death_breaks_the_cap(variant):
    outcome = run_model.check(variant)
    assert outcome.result == run_model.HOLDS
    assert outcome.states > 1000, "a search that sees next to nothing proves nothing"


@needs_spin
@named(run_model.WAITING)
def test_no_interleaving_and_no_death_leaves_a_waiter_asleep(variant):
    outcome = run_model.check(variant)
    assert outcome.result == run_model.HOLDS
    assert outcome.states > 200, "a search that sees next to nothing proves nothing"


@needs_spin
@named((*run_model.MUTATIONS, *run_model.WAITING_MUTATIONS))
def test_without_this_guard_the_model_fails(variant):
    assert run_model.check(variant).result == f"breaks {variant.breaks}"


@needs_spin
@named(run_model.NEEDLESS)
def test_an_order_that_nothing_depends_on_may_change(variant):
    assert run_model.check(variant).result == run_model.HOLDS


@needs_spin
@named(run_model.LIMITS)
def test_a_wrapped_tag_does_what_is_documented_and_no_more(variant):
    assert run_model.check(variant).result == variant.expected


def test_every_mutation_fails_in_bounds_in_which_the_model_holds():
    assert {mutation.bounds for mutation in run_model.MUTATIONS} <= {
        model.bounds for model in run_model.MODELS
    }
    assert {mutation.bounds for mutation in run_model.WAITING_MUTATIONS} <= {
        model.bounds for model in run_model.WAITING
    }


@pytest.mark.parametrize("model", [run_model.CAP, run_model.WAIT], ids=lambda path: path.stem)
def test_every_mutation_of_the_model_is_tried(model):
    text = model.read_text()
    tried = {
        variant.mutation
        for variant in run_model.ALL.values()
        if variant.mutation and variant.model == model
    }
    assert {
        word.strip("()").removeprefix("MUTATE_")
        for line in text.splitlines()
        if line.startswith("#if")
        for word in line.replace("defined(", "").replace(")", "").replace("!", "").split()
        if word.startswith("MUTATE_")
    } == tried


@needs_spin
def test_a_search_that_was_not_deep_enough_proves_nothing():
    outcome = run_model.check(run_model.ALL["one-death"], depth=40)
    assert outcome.result == f"{run_model.CUT} (depth)"
    assert not outcome.ok


@needs_spin
def test_a_search_that_ran_out_of_memory_proves_nothing():
    outcome = run_model.check(run_model.ALL["two-slots"], megabytes=15)
    assert outcome.result == f"{run_model.CUT} (memory)"
    assert not outcome.ok


@needs_spin
def test_a_mutation_that_is_not_caught_fails_the_run(monkeypatch, tmp_path, capsys):
    harmless = run_model.Variant("harmless", run_model.ONE_DEATH, "nothing_lost")
    monkeypatch.setitem(run_model.SETS, "fast", (harmless,))
    report = tmp_path / "report.json"
    assert run_model.main(["--set", "fast", "--json", str(report)]) == 1
    assert "NOT AS EXPECTED" in capsys.readouterr().out
    assert [outcome["ok"] for outcome in json.loads(report.read_text())] == [False]


def test_a_missing_tool_is_named_with_the_way_to_get_it(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert run_model.main([]) == run_model.MISSING_TOOLS == 3
    assert "apt-get install spin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("... errors: 0\n", run_model.HOLDS),
        ("pan:1: assertion violated no_drift (at depth 9)\n errors: 1\n", "breaks no_drift"),
        ("pan:1: invalid end state (at depth 9)\n errors: 1\n", "breaks: invalid end state"),
        ("error: max search depth too small\n errors: 0\n", f"{run_model.CUT} (depth)"),
        ("pan: reached -DMEMLIM bound\n errors: 0\n", f"{run_model.CUT} (memory)"),
        ("pan: out of memory\n errors: 0\n", f"{run_model.CUT} (memory)"),
        ("Warning: Search not completed\n errors: 0\n", f"{run_model.CUT} (unknown reason)"),
        ("Segmentation fault", "no verdict"),
    ],
)
def test_only_a_search_that_saw_everything_counts_as_a_proof(output, result):
    assert run_model.classify(output) == result
