"""Check that a spec's dataset, verdict and protocol agree on whether verdicts choose from listed answers."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_uppercase

from runner.base.problems import Problem
from runner.base.text import comma_join, list_some
from runner.documents.dataclass_schema import from_plain, to_plain
from runner.documents.merged_data import LayeredData
from runner.game.protocols.answer_parser import DecisionFormat
from runner.game.protocols.ballot import CORRECT, INCORRECT
from runner.game.protocols.confidence import VerdictSettings
from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.experiment import Experiment
from runner.spec.sound_spec import SoundSpec


def section_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield a problem for each key that has no meaning for the verdicts of the protocol."""
    has_answers = sound.section("dataset").get("answers") is not None
    verdict = from_plain(VerdictSettings, sound.section("verdict"))
    if not protocol.lists_answers:
        if has_answers:
            message = (
                f"the verdicts of {protocol.name} accept or reject; remove dataset.answers, or use a protocol with "
            )
            yield layered.problem_at(("dataset", "answers"), message + "answers: listed, such as answer_debate")
        if verdict.form != "answer":
            message = f"the verdicts of {protocol.name} accept or reject; use verdict.confidence instead"
            yield layered.problem_at(("verdict", "form"), message)
        return
    if not has_answers:
        message = (
            f"{protocol.name} lists answers; set dataset.answers to the column with the answers, or to the columns"
        )
        yield layered.problem_at(("dataset", "answers"), message)
    if verdict.confidence is not None:
        message = (
            "is the probability of accept, but this protocol lists answers; use verdict.form: distribution instead"
        )
        yield layered.problem_at(("verdict", "confidence"), message)
    written = to_plain(from_plain(DecisionFormat, sound.section("decision_format")))
    default = to_plain(DecisionFormat())
    for name in ("accept", "reject", "lenient", "confidence"):
        if written[name] != default[name]:
            message = "has no effect if answers are listed; remove it (decision_format.marker is still used)"
            yield layered.problem_at(("decision_format", name), message)


def answer_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield a key and a message for each setting that does not work with the listed answers of the dataset."""
    if not protocol.lists_answers:
        return
    stances = {name: protocol.agent_spec(name).stance for name in protocol.prover_names}
    for name, stance in stances.items():
        number = ascii_uppercase.find(stance) if len(stance) == 1 else -1
        short = [point.id for point in dataset.datapoints if number >= (point.answer_count or 0)]
        if short:
            yield "dataset.answers", f"{name} argues for {stance}, but these have fewer answers: {list_some(short)}"
    needing = [name for name, stance in stances.items() if stance in (CORRECT, INCORRECT)]
    if needing and not dataset.is_labelled:
        message = (
            f"{comma_join(needing)} must argue for a right or wrong answer, but the dataset hides which answers are "
            "right; use a protocol with the stances open or letters, or a dataset with labels"
        )
        yield "dataset.answers", message
    if experiment.training is not None and experiment.training.method == "malt":
        message = "malt plays trees of responses, which need accept or reject; set expert_iteration"
        yield "training.method", message
    elif experiment.rollouts.num_responses_per_timestep is not None:
        yield "rollouts.num_responses_per_timestep", "trees of responses need accept or reject; remove this key"
    form = experiment.verdict.form
    for group in dict.fromkeys(experiment.agents[name].model for name in protocol.verifier_names):
        if form != "answer" and experiment.models[group].constrain_decisions:
            message = f"has no effect with verdict.form: {form}; set verdict.form=answer, or remove this key"
            yield f"models.{group}.constrain_decisions", message
    if experiment.fine_tune is not None and "verl" in experiment.fine_tune.formats:
        yield "fine_tune.formats", "verl files have labels 0 and 1, which listed answers do not have; remove verl"


def order_notes(protocol: Protocol, dataset: Dataset) -> Iterator[str]:
    """Yield a note if the answers are shown in the order of a dataset that always has the right answer in one place."""
    rights = {point.answers.right for point in dataset.datapoints if point.answers is not None}
    is_shown_in_order = protocol.lists_answers and not protocol.parameters.shuffle_answers
    if is_shown_in_order and len(rights) == 1 and len(dataset.datapoints) > 1 and None not in rights:
        ((*positions,),) = (right for right in rights if right is not None)
        letters = comma_join(ascii_uppercase[position] for position in positions)
        yield f"the right answer is {letters} in every datapoint, which a verifier may learn; set shuffle_answers: true"
