"""The dummy provider: deterministic answers, which are right more often after training."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from runner.game.prompts.chat import ChatMessage
from runner.models.client import ModelConnector
from runner.models.interface import Request, ResponseHint, SampleKey
from runner.models.providers.dummy import DummyModel
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.models.toy_models import trained_name, training_examples
from tests.support.event_loop import as_coroutine
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec
from tests.support.specs import spec_file
from tests.support.training import run_training

LABELS = {f"p{n}": n % 2 for n in range(200)}
CHAT: tuple[ChatMessage, ...] = ({"role": "user", "content": "x"},)
DECIDE = ResponseHint((), "accept", "reject", must_decide=True)


def collect_verdicts(model: DummyModel) -> list[str]:
    """Return the model's verdict on each datapoint."""

    async def complete_all() -> list[str]:
        samples = [SampleKey(name, 0, 0, "verifier", 0) for name in LABELS]
        requests = [Request("m", CHAT, sample, seed, DECIDE) for seed, sample in enumerate(samples)]
        return [(await model.complete(request)).choices[0].text or "" for request in requests]

    return asyncio.run(complete_all())


def correct_indices(verdict_texts: list[str]) -> set[int]:
    return {n for n, text in enumerate(verdict_texts) if text.endswith("accept" if n % 2 else "reject")}


def test_more_examples_make_more_verdicts_right_and_none_wrong() -> None:
    curve = [correct_indices(collect_verdicts(DummyModel(examples, LABELS))) for examples in (0, 30, 60, 240)]
    assert all(before < after for before, after in pairwise(curve))
    assert 80 <= len(curve[0]) <= 120
    assert len(curve[-1]) >= 170


def test_verdicts_depend_on_examples_and_labels_only_if_both_are_given() -> None:
    assert (
        collect_verdicts(DummyModel()) == collect_verdicts(DummyModel(0, LABELS)) == collect_verdicts(DummyModel(500))
    )


def test_example_count_is_parsed_from_names_of_trained_models_only() -> None:
    name = trained_name(trained_name("tiny", 12, "0" * 8), 30, "1" * 8)
    assert (name, training_examples(name)) == ("tiny:dummy-42-11111111", 42)
    for name_without_examples in (None, "tiny", "dummy:dummy-12345678", "tiny:dummy-12-x"):
        assert training_examples(name_without_examples) == 0


def test_group_with_a_trained_model_is_connected_with_the_labels() -> None:
    model = ModelSettings(provider="dummy", model=trained_name("dummy", 10**8, "0" * 8))
    connection = ModelConnector({"m": model}, Retry(), labels=LABELS).connect()

    async def complete_all() -> list[str]:
        requests = [Request("m", CHAT, SampleKey(name, 0, 0, "verifier", 0), 0, DECIDE) for name in LABELS]
        return [(await as_coroutine(connection.complete(request))).choices[0].text or "" for request in requests]

    assert correct_indices(asyncio.run(complete_all())) == set(range(len(LABELS)))


@pytest.mark.full
def test_trained_verifier_is_right_in_a_run_and_an_untrained_one_guesses(tmp_path: Path) -> None:
    accuracy = []
    for model in (trained_name("dummy", 10**8, "0" * 8), "dummy"):
        path = spec_file(tmp_path, protocol={"max_message_rounds": 5}, models={"m": {"model": model}}, fine_tune=None)
        accuracy.append(metric(run_spec(path, tmp_path / "results"), "accuracy")["value"])
    assert accuracy[0] == 1.0 > accuracy[1]


@pytest.mark.full
@pytest.mark.parametrize("spec", ["malt", "expert_iteration"])
def test_accuracy_rises_over_the_iterations_of_the_shipped_training_specs(tmp_path: Path, spec: str) -> None:
    result = run_training(ROOT / "specs" / f"{spec}.yaml", tmp_path / "results")
    curve = [row["accuracy"]["value"] for row in result.metrics["tests"]]
    assert len(curve) >= 3
    assert curve == sorted(curve)
    assert curve[-1] > curve[0] + 0.2


def test_answers_have_the_requested_length_and_the_verdicts_of_short_ones() -> None:
    short, long = collect_verdicts(DummyModel()), collect_verdicts(DummyModel(answer_words=500))
    assert [answer.split()[-1] for answer in long] == [answer.split()[-1] for answer in short]
    assert {len(answer.split()) for answer in long} == {501}
    assert len(set(long)) == len(long)
    assert collect_verdicts(DummyModel(answer_words=500)) == long
    assert collect_verdicts(DummyModel(answer_words=3)) == short
