"""The cache of rendered texts."""

from __future__ import annotations

from typing import Any

import pytest

from runner.game.prompts.templates import MAX_CACHED, PromptSet


@pytest.mark.parametrize(
    "values", [(1, True), (True, 1), (1, 1.0), ("1", 1), (None, "None"), ([1], [True]), (["a"], "['a']")]
)
def test_cache_distinguishes_equal_values_that_render_differently(values: tuple[Any, ...]) -> None:
    prompts = PromptSet({"verifier": "{{ x }}|{{ y }}"})
    texts = [prompts.render("verifier", {"x": value, "y": "same"}) for value in (*values, *values)]
    assert texts == [f"{value}|same" for value in (*values, *values)]


def test_cache_key_includes_only_variables_that_the_template_uses() -> None:
    prompts = PromptSet({"verifier": "{{ x }}", "prover": "{{ x }}!"})
    first = prompts.render("verifier", {"x": "a", "unused": 1})
    assert prompts.render("verifier", {"x": "a", "unused": 2}) is first
    assert prompts.render("prover", {"x": "a"}) == "a!"
    headers = prompts.render("verifier", {"x": ["a", "b"]})
    assert prompts.render("verifier", {"x": ["a", "b"]}) is headers


def test_full_cache_drops_the_oldest_texts() -> None:
    prompts = PromptSet({"verifier": "{{ x }}!"})
    first = prompts.render("verifier", {"x": "first"})
    long = [prompts.render("verifier", {"x": str(number) * (MAX_CACHED // 4)}) for number in range(5)]
    assert prompts.render("verifier", {"x": "4" * (MAX_CACHED // 4)}) is long[4]
    rendered_again = prompts.render("verifier", {"x": "first"})
    assert rendered_again == first
    assert rendered_again is not first
