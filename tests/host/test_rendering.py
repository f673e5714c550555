"""Rendering: what is a prompt, and that all of it happens on one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gatecount.frontend.rendering import CACHED_LENGTH, CACHED_PROMPTS, Prompt, Renderer, RenderError
from host.engines import run


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("word", 1),
        ("  several words \n and\tlines ", 4),
        ("word " * 100_000, 100_000),
        ([0], 1),
        ([5, 6, 7], 3),
        ([1] * 100_000, 100_000),
    ],
    ids=["word", "spaces", "long", "id", "ids", "many"],
)
def test_a_text_has_a_token_for_each_word_and_a_list_one_for_each_id(
    renderer: Renderer, prompt: str | list[int], tokens: int
) -> None:
    assert run(renderer.render(prompt)) == Prompt(tokens)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (None, "a text or a list of token ids, not nothing"),
        (7, "a text or a list of token ids, not int"),
        ({"a": 1}, "a text or a list of token ids, not dict"),
        (b"bytes", "a text or a list of token ids, not bytes"),
        ("", "at least one token"),
        (" \n ", "at least one token"),
        ([], "at least one token"),
        ([1, "2"], "has '2' at 1"),
        ([1, 2.0], "has 2.0 at 1"),
        ([True], "has True at 0"),
        ([1, 2, -3], "has -3 at 2"),
        ([[1, 2], [3]], r"has \[1, 2\] at 0"),
        (["several", "prompts"], "has 'several' at 0"),
    ],
)
def test_what_is_no_prompt_is_refused_and_said(renderer: Renderer, prompt: object, said: str) -> None:
    with pytest.raises(RenderError, match=said) as refused:
        run(renderer.render(prompt))
    assert isinstance(refused.value, ValueError)
    assert run(renderer.render("still works")) == Prompt(2)


def test_a_huge_value_does_not_make_a_huge_message(renderer: Renderer) -> None:
    with pytest.raises(RenderError) as refused:
        run(renderer.render(["x" * 1_000_000]))
    assert len(str(refused.value)) < 200


def test_all_is_rendered_on_one_thread_that_is_not_the_loops(renderer: Renderer) -> None:
    threads: list[int] = []
    plain = renderer.render_here

    def noting(prompt: object) -> Prompt:
        threads.append(threading.get_ident())
        return plain(prompt)

    async def check() -> None:
        await asyncio.gather(*(renderer.render(f"{number} words") for number in range(100)))

    renderer.render_here = noting  # type: ignore[method-assign]
    run(check())
    assert len(threads) == 100
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


def test_rendered_texts_are_remembered_up_to_a_bound_and_forgotten_when_told(renderer: Renderer) -> None:
    async def check() -> None:
        for number in range(2 * CACHED_PROMPTS):
            await renderer.render(f"prompt {number}")

    run(check())
    assert renderer.cached == CACHED_PROMPTS
    renderer.clear_cache()
    assert renderer.cached == 0


def test_a_long_text_is_rendered_but_not_remembered(renderer: Renderer) -> None:
    assert run(renderer.render("a" * (CACHED_LENGTH + 1))) == Prompt(1)
    assert renderer.cached == 0
    run(renderer.render("a" * CACHED_LENGTH))
    assert renderer.cached == 1


def test_a_renderer_can_be_closed_twice_and_renders_no_more(renderer: Renderer) -> None:
    run(renderer.render("a prompt"))
    renderer.close()
    renderer.close()
    with pytest.raises(RuntimeError):
        run(renderer.render("a prompt"))
