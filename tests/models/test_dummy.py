"""The provider without a network: the same answers as ever, and a toy that was trained is right more often."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from runner.game.prompts.chat import ChatMessage
from runner.models.client import connect
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


def verdicts(model: DummyModel) -> list[str]:
    """The verdict on each datapoint."""

    async def asked() -> list[str]:
        samples = [SampleKey(name, 0, 0, "verifier", 0) for name in LABELS]
        requests = [Request("m", CHAT, one, seed, DECIDE) for seed, one in enumerate(samples)]
        return [(await model.complete(request)).choices[0].text or "" for request in requests]

    return asyncio.run(asked())


def right(found: list[str]) -> set[int]:
    return {n for n, text in enumerate(found) if text.endswith("accept" if n % 2 else "reject")}


def test_the_more_examples_the_more_verdicts_are_right_and_none_is_unlearnt() -> None:
    curve = [right(verdicts(DummyModel(examples, LABELS))) for examples in (0, 30, 60, 240)]
    assert all(before < after for before, after in pairwise(curve))
    assert 80 <= len(curve[0]) <= 120
    assert len(curve[-1]) >= 170


def test_a_model_without_examples_knows_no_label_and_one_without_labels_knows_nothing() -> None:
    assert verdicts(DummyModel()) == verdicts(DummyModel(0, LABELS)) == verdicts(DummyModel(500))


def test_what_a_trained_name_says_is_read_and_no_other_name() -> None:
    name = trained_name(trained_name("tiny", 12, "0" * 8), 30, "1" * 8)
    assert (name, training_examples(name)) == ("tiny:dummy-42-11111111", 42)
    for other in (None, "tiny", "dummy:dummy-12345678", "tiny:dummy-12-x"):
        assert training_examples(other) == 0


def test_a_group_of_a_trained_name_is_connected_with_the_labels() -> None:
    model = ModelSettings(provider="dummy", model=trained_name("dummy", 10**8, "0" * 8))
    connection = connect({"m": model}, Retry(), labels=LABELS)

    async def asked() -> list[str]:
        requests = [Request("m", CHAT, SampleKey(name, 0, 0, "verifier", 0), 0, DECIDE) for name in LABELS]
        return [(await as_coroutine(connection.complete(one))).choices[0].text or "" for one in requests]

    assert right(asyncio.run(asked())) == set(range(len(LABELS)))


@pytest.mark.full
def test_in_a_run_a_trained_verifier_is_right_and_an_untrained_one_guesses(tmp_path: Path) -> None:
    accuracy = []
    for model in (trained_name("dummy", 10**8, "0" * 8), "dummy"):
        path = spec_file(tmp_path, protocol={"max_message_rounds": 5}, models={"m": {"model": model}}, fine_tune=None)
        accuracy.append(metric(run_spec(path, tmp_path / "results"), "accuracy")["value"])
    assert accuracy[0] == 1.0 > accuracy[1]


@pytest.mark.full
@pytest.mark.parametrize("spec", ["malt", "expert_iteration"])
def test_the_shipped_training_examples_have_a_learning_curve_that_rises(tmp_path: Path, spec: str) -> None:
    result = run_training(ROOT / "specs" / f"{spec}.yaml", tmp_path / "results")
    curve = [row["accuracy"]["value"] for row in result.metrics["tests"]]
    assert len(curve) >= 3
    assert curve == sorted(curve)
    assert curve[-1] > curve[0] + 0.2


def test_answers_are_as_long_as_is_asked_for_and_decide_as_short_ones_do() -> None:
    short, long = verdicts(DummyModel()), verdicts(DummyModel(answer_words=500))
    assert [one.split()[-1] for one in long] == [one.split()[-1] for one in short]
    assert {len(one.split()) for one in long} == {501}
    assert len(set(long)) == len(long)
    assert verdicts(DummyModel(answer_words=500)) == long
    assert verdicts(DummyModel(answer_words=3)) == short
