"""Counts as people write them: what is taken for what, and what is refused with which words."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gatecount.cli.counts import Count


@click.command()
@click.option("--limit", type=Count(1, 4_294_967_295), default=7)
def show(limit: int) -> None:
    click.echo(repr(limit))


def shown(text: str) -> tuple[int, str]:
    result = CliRunner().invoke(show, ["--limit", text])
    return result.exit_code, result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("0010", 10),
        ("32k", 32_000),
        ("1K", 1_024),
        ("32K", 32_768),
        ("2m", 2_000_000),
        ("2M", 2_097_152),
        ("1g", 1_000_000_000),
        ("1G", 1_073_741_824),
        ("4294967295", 4_294_967_295),
        (" 5 ", 5),
    ],
)
def test_small_letters_are_powers_of_1000_and_capitals_of_1024(text: str, count: int) -> None:
    assert shown(text) == (0, str(count))


@pytest.mark.parametrize("text", ["9" * 11, "9" * 5000, "9" * 100_000 + "k"])
def test_a_number_of_any_length_is_refused_in_few_words(text: str) -> None:
    code, said = shown(text)
    assert code == 2
    assert said == (
        f"Error: Invalid value for '--limit': a number of {text.count('9'):,} digits is not from 1 to "
        "4,294,967,295."
    )


def test_zeros_in_front_count_for_nothing() -> None:
    assert shown("0" * 5000 + "32k") == (0, "32000")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1.5K", "'1.5K' is not a whole number"),
        ("1,5k", "'1,5k' is not a whole number"),
        ("1_000", "'1_000' is not a whole number"),
        (".5", "'.5' is not a whole number"),
        ("-1", "'-1' is negative"),
        ("-32k", "'-32k' is negative"),
        ("", "'' is not a count"),
        ("k", "'k' is not a count"),
        ("ten", "'ten' is not a count"),
        ("10kB", "'10kB' is not a count"),
        ("10 k", "'10 k' is not a count"),
        ("1e3", "'1e3' is not a count"),
        ("0x10", "'0x10' is not a count"),
        ("10t", "'10t' is not a count"),
        ("+10", "'+10' is not a count"),
        ("١٠", "'١٠' is not a count"),
        ("nan", "'nan' is not a count"),
    ],
)
def test_what_is_no_count_is_refused_with_the_rule(text: str, complaint: str) -> None:
    code, said = shown(text)

    assert code == 2
    assert said.startswith("Error: Invalid value for '--limit': ")
    assert complaint in said
    assert "32k is 32,000" in said
    assert "1K is 1,024" in said


@pytest.mark.parametrize("text", ["0", "0k", "5g", "4294967296", "9" * 4000])
def test_what_is_out_of_range_is_refused_with_the_range(text: str) -> None:
    code, said = shown(text)

    assert code == 2
    assert "is not from 1 to 4,294,967,295" in said


def test_a_default_is_within_the_range_too() -> None:
    assert CliRunner().invoke(show).output == "7\n"
