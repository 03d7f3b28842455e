"""Check that a spec's checker fits its protocol, whose provers state the answers and sub-claims that it labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.base.errors import StatementError
from runner.base.problems import Place, Problem
from runner.base.text import did_you_mean, list_some
from runner.documents.dataclass_schema import from_plain
from runner.documents.merged_data import LayeredData
from runner.game.protocols.checkers import CheckerSettings, label_answer
from runner.game.protocols.protocol import Protocol
from runner.spec.datasets.loader import Dataset
from runner.spec.sound_spec import SoundSpec


def checker_of(sound: SoundSpec) -> CheckerSettings | None:
    """Return the checker of a spec, if it has one without errors."""
    settings = sound.section("dataset").get("checker")
    return None if settings is None or "by" not in settings else from_plain(CheckerSettings, settings)


def checker_problems(layered: LayeredData, protocol: Protocol, sound: SoundSpec) -> Iterator[Problem]:
    """Yield the problems of `dataset.checker` with the protocol, and with its own keys."""
    checker, section = checker_of(sound), ("dataset", "checker")
    states_answer = any(step.states == "answer" for step in protocol.file.cycle)
    picks_claim = any(step.pick_claim for step in protocol.file.cycle)
    if checker is None:
        dataset = sound.data.get("dataset") or {}
        if states_answer and isinstance(dataset, Mapping) and dataset.get("checker") is None:
            message = f"a prover of {protocol.name} states the answer that is judged; set dataset.checker to label it"
            yield layered.problem_at(section, message)
        return
    if not (states_answer or picks_claim):
        yield layered.problem_at(section, f"no step of {protocol.name} states what a checker labels; remove it")
    elif picks_claim and checker.by != "function":
        message = f"{checker.by} compares answers, but {protocol.name} continues with sub-claims; use by: function"
        yield layered.problem_at((*section, "by"), message)
    needed = "function" if checker.by == "function" else "column"
    if getattr(checker, needed) is None:
        yield layered.problem_at(section, f"by: {checker.by} needs the key {needed}; set dataset.checker.{needed}")
    for unused, by in (("function", "function"), ("tolerance", "number")):
        if getattr(checker, unused) and checker.by != by:
            yield layered.problem_at((*section, unused), f"has no effect with by: {checker.by}; remove it")
    rounds = map(protocol.step, range(protocol.max_message_rounds))
    labelled = next((i for i, step in enumerate(rounds) if step.states == "answer" or step.pick_claim), 0)
    early = [i for i in range(labelled + 1) if protocol.can_ever_decide(i)]
    if early and (states_answer or picks_claim):
        message = (
            f"the verifier of {protocol.name} may decide in round {early[0]}, before round {labelled} states what it "
            f"judges; raise protocol.min_message_rounds to {labelled + 2}, or add may_decide: false to its step"
        )
        yield layered.problem_at(("protocol",), message)


def reference_problems(dataset: Dataset, checker: CheckerSettings | None, place: Place) -> Iterator[Problem]:
    """Yield a problem if the dataset lacks the right answers with which a checker compares."""
    if checker is None or checker.column is None:
        return
    key, column = "dataset.checker.column", checker.column
    if column not in dataset.columns:
        hint = did_you_mean(column, dataset.columns)
        if column == "label":
            hint = "; the name is reserved, so rename the column: dataset.columns.target=label, and use target here"
        yield Problem(place, key, f"the dataset has no column {column!r}{hint or '; name one of its columns'}")
        return
    values = {point.id: point.columns[column] for point in dataset.datapoints}
    wrong = [id_ for id_, value in values.items() if not _is_reference(value, checker)]
    if wrong:
        kind = "exactly one number" if checker.by == "number" else "a text, a number, or a list of them"
        yield Problem(place, key, f"the column {column!r} must have {kind}; rows without it: {list_some(wrong)}")


def _is_reference(value: object, checker: CheckerSettings) -> bool:
    try:
        return value not in (None, "", []) and label_answer(checker, "0", {str(checker.column): value}) >= 0
    except StatementError:
        return False
