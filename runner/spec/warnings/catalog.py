"""Warnings about a valid spec, one line each. `check` and `run` print them; none stops a run.

A new warning is a function of a spec, in a list at the end: `WARNINGS`, or `CHECK_WARNINGS` if only `check` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date

from runner.base.text import comma_join, counted, list_some
from runner.game.prompts.templates import LAST_ROUND, SUFFIX
from runner.game.protocols.answer_verdicts import ANSWER_MARKER, display_marker
from runner.game.protocols.ballot import OPEN
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schedule import find_faults, messages_without_influence, rounds_without_waste
from runner.models.retirements import retirement_warnings
from runner.spec.assembly import Spec
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts
from runner.spec.checks.listed_answers import order_notes
from runner.spec.paired_design import design_notes
from runner.spec.warnings.groups import group_notes, is_question
from runner.spec.warnings.leaks import (
    revealed_labels,
    revealed_private_columns,
    revealed_right_provers,
    revealed_speakers,
    revealed_stances,
)
from runner.spec.warnings.servers import called_groups, fixed_seeds, temperatures_out_of_range, unset_keys

MAX_LISTED_ROUNDS = 6
"""Maximum number of wasted rounds that a warning lists."""


def warnings_of(spec: Spec, *, today: date | None = None) -> list[str]:
    """Return the warnings about a spec in the order of `WARNINGS`, then those about models that are shut down."""
    retirements = retirement_warnings(called_groups(spec), today)
    return [*(line for warning in WARNINGS for line in warning(spec)), *retirements]


def check_warnings_of(spec: Spec) -> list[str]:
    """Return all warnings about a spec, including the warnings that only `check` prints."""
    return [*warnings_of(spec), *(line for warning in CHECK_WARNINGS for line in warning(spec))]


def _silent_templates(spec: Spec) -> Iterator[str]:
    """Warn about agents whose templates do not explain how their answers are parsed."""
    for agent in spec.protocol.agent_names if spec.rejudged is None else spec.protocol.verifier_names:
        names = [name for name in (agent, agent + LAST_ROUND) if name in spec.prompts.sources]
        used = {variable for name in names for variable in spec.prompts.variables[name]}
        text = "\n".join(spec.prompts.sources[name] for name in names)
        never = f"{' and '.join(name + SUFFIX for name in names)} never use{'s' if len(names) == 1 else ''}"
        # An agent that only judges sends no messages, so it needs no headers.
        headers = _required_headers(spec.protocol, agent) if spec.rejudged is None else ()
        if "headers" not in used and any(header.lower() not in text.lower() for header in headers):
            yield f"{never} `headers`, so {agent} does not learn how to start a message to each channel; add this"
        marker = spec.protocol.agent_spec(agent).scratchpad
        if marker is not None and "scratchpad_marker" not in used and marker.lower() not in text.lower():
            yield f"{never} `scratchpad_marker`, so {agent} does not learn how to end its private notes; add this"
        decisions = _decision_texts(spec, agent).items()
        missing = [f"`{name}`" for name, decision_text in decisions if name not in used and decision_text not in text]
        if missing and spec.experiment.analysis is None:  # nip-run writes the template, which may ask for JSON
            yield f"{never} {' and '.join(missing)}, so {agent} does not learn how to write decisions; add this"


def _decision_texts(spec: Spec, agent: str) -> dict[str, str]:
    """Return the texts that express an agent's decisions, by the template variables that have them."""
    format_ = spec.experiment.decision_format
    if spec.protocol.lists_answers:
        texts = {"decision_line": display_marker(format_.marker)} if agent in spec.protocol.verifier_names else {}
        if spec.protocol.agent_spec(agent).stance == OPEN:
            texts["answer_marker"] = ANSWER_MARKER
        return texts
    states_answer = any(step.states == "answer" and agent in step.speak for step in spec.protocol.file.cycle)
    texts = {"answer_marker": ANSWER_MARKER} if states_answer else {}
    return texts | (
        {"accept": format_.accept, "reject": format_.reject} if agent in spec.protocol.verifier_names else {}
    )


def _inherited_dummies(spec: Spec) -> Iterator[str]:
    """Warn about model groups that name a model, but get random answers because they inherit the provider `dummy`."""
    if not any(key.rpartition(".")[2] == "provider" for key in spec.overridden):
        for group in sorted(spec.groups_with_inherited_dummy):
            yield (
                f"models.{group} calls no model: it inherits `provider: dummy`, which answers at random; to call the "
                f"model, set models.{group}.provider, for example to openai"
            )


def _unused_replays(spec: Spec) -> Iterator[str]:
    """Warn about model groups that name a run to replay, but whose provider replays nothing."""
    for name, settings in spec.experiment.models.items():
        if settings.run is not None and not settings.traits.needs_run:
            yield (
                f"models.{name}.run has no effect, because its provider is {settings.provider}: to replay the run's "
                f"answers, set models.{name}.provider=replay; otherwise remove run"
            )


def _replaced_confidence(spec: Spec) -> Iterator[str]:
    """Warn about training on true labels, which state the confidence 1, if the verifier is asked for its confidence."""
    experiment, verifiers = spec.experiment, spec.protocol.verifier_names
    if not experiment.verdict.states:
        return
    fine_tune, training = experiment.fine_tune, experiment.training
    trained_by_key: dict[str, list[str]] = {}
    if fine_tune is not None and fine_tune.replace_verifier_guess_with_true_label:
        trained_by_key["fine_tune.replace_verifier_guess_with_true_label=false"] = [
            name for name in verifiers if fine_tune.agents is None or name in fine_tune.agents
        ]
    if training is not None and training.guess_replacement.proportion:
        trained_by_key["training.guess_replacement.proportion=0"] = [
            name for name in verifiers if not experiment.agents[name].freeze
        ]
    for setting, trained in trained_by_key.items():
        if trained:
            yield (
                f"true labels that replace verdicts of {comma_join(trained)} state the confidence 1, so a model "
                f"trained on them may be overconfident; to train only on the confidence that it stated, set {setting}"
            )


def _fixed_verdicts(spec: Spec) -> Iterator[str]:
    """Warn if a run of the spec cannot have a rank on a leaderboard."""
    agents, models = spec.experiment.agents, spec.experiment.models
    groups = [models[agents[name].model] for name in spec.protocol.verifier_names]
    judges = [(group.provider, group.model) for group in groups]
    reason = explain_fixed_verdicts(spec.protocol.parameters.force_guess, judges)
    if reason is not None:
        yield f"the run will have no rank on any leaderboard: {reason}"


def _required_headers(protocol: Protocol, agent: str) -> set[str]:
    """Return the headers that an agent needs: those of each channel, if it speaks in several channels in a round."""
    rounds = map(protocol.can_be_active, range(protocol.max_message_rounds))
    turns = [channels_of[agent] for channels_of in rounds if agent in channels_of]
    if agent in protocol.verifier_names:
        turns = turns[:-1]  # in its last turn, the verifier must decide
    shared_channels = {channel for channels in turns if len(channels) > 1 for channel in channels}
    return {header for channel, header in protocol.agent_spec(agent).headers.items() if channel in shared_channels}


def _unheard_rounds(spec: Spec) -> Iterator[str]:
    """Warn about rounds whose calls cost money but cannot affect a decision."""
    protocol, fixed = spec.protocol, spec.protocol.file.fixed
    wasted_rounds = messages_without_influence(protocol)
    if not wasted_rounds or spec.rejudged is not None:  # With `rejudge`, no such round is played.
        return
    agents = sorted({agent for agents in wasted_rounds.values() for agent in agents})
    rounds = list_some(list(wasted_rounds), MAX_LISTED_ROUNDS)
    options = [] if "max_message_rounds" in fixed else rounds_without_waste(protocol)
    hint = f"; set protocol.max_message_rounds={' or '.join(map(str, options))}" if options else ""
    subject = f"round {rounds} is" if len(wasted_rounds) == 1 else f"rounds {rounds} are"
    speakers = f"{' and '.join(agents)} {'says' if len(agents) == 1 else 'say'}"
    yield f"{subject} paid for and wasted: no decision follows what {speakers} there{hint}"


def _protocol_faults(spec: Spec) -> Iterator[str]:
    """Warn about parts of the protocol that have no effect, and about games that cannot have a decision."""
    if spec.rejudged is None:
        yield from (f"{spec.protocol.place(fault.key)}: {fault.message}" for fault in find_faults(spec.protocol))


def _inherited_templates(spec: Spec) -> Iterator[str]:
    """Warn about the judge's templates that are taken from the run whose debates are judged."""
    judges = spec.protocol.verifier_names
    inherited = [name + SUFFIX for name in spec.prompts.inherited if name.partition(".")[0] in judges]
    if inherited and spec.rejudged is not None:
        verb = "is" if len(inherited) == 1 else "are"
        yield (
            f"{comma_join(inherited)} {verb} missing in prompts {spec.experiment.prompts}, and {verb} taken from "
            f"run {spec.rejudged.run_id}"
        )


MIN_GROUPS = 10
"""Minimum number of independent groups; with fewer, intervals are too wide to be useful."""


def single_label(spec: Spec) -> Iterator[str]:
    """Warn if every datapoint, or every one of the test split, has the same label."""
    for dataset, place in ((spec.dataset, ""), (spec.test, " of the test split")):
        labels = set() if dataset is None else {point.label for point in dataset.datapoints}
        if dataset is not None and len(dataset.datapoints) > 1 and len(labels) == 1 and None not in labels:
            (label,) = labels
            yield (
                f"all {len(dataset.datapoints)} datapoints{place} have label {label}: a verifier that always "
                f"{'accepts' if label else 'rejects'} is always right; add datapoints with label {1 - int(label or 0)}"
            )


def few_groups(spec: Spec) -> Iterator[str]:
    """Warn if the dataset or the test split has too few independent groups for useful intervals."""
    experiment = spec.experiment
    test_limit = None if experiment.training is None else experiment.training.test.limit
    for dataset, name, key, limit in (
        (spec.dataset, "dataset", "dataset.limit", experiment.dataset.limit),
        (spec.test, "test split", "training.test.limit", test_limit),
    ):
        groups = 0 if dataset is None else len({point.group for point in dataset.datapoints})
        if dataset is not None and groups < MIN_GROUPS:
            unit = "datapoint" if dataset.group_by is None else "group"
            yield (
                f"the {name} has only {counted(groups, unit)}: intervals need at least {MIN_GROUPS} independent "
                f"{unit}s; add some{'' if limit is None else f', or raise {key}'}"
            )


def unused_columns(spec: Spec) -> Iterator[str]:
    """Warn about columns that an agent should probably see, but that neither a template nor the spec uses.

    Only columns that `dataset.columns` renames, and columns with questions or long texts, are checked.
    """
    dataset, settings = spec.dataset, spec.experiment.dataset
    used = {name for names in spec.prompts.variables.values() for name in names}
    checker_column = None if settings.checker is None else settings.checker.column
    used |= {"split", dataset.group_by or "", checker_column or "", *re.findall(r"\w+", settings.filter or "")}
    used |= {name for name, file_name in settings.columns.items() if file_name in used}
    unused = [
        name
        for name in dataset.columns
        if name not in used
        and (name in settings.columns or any(is_question(name, point.columns[name]) for point in dataset.datapoints))
    ]
    if unused:
        name = re.sub(r"\W+", "_", unused[0]) if not unused[0].isidentifier() else unused[0]
        renaming = "" if name == unused[0] else f"set dataset.columns.{name} to {unused[0]!r} and "
        yield (
            f"no template uses {comma_join(unused)}: agents do not see {'it' if len(unused) == 1 else 'them'}; "
            f"{renaming}write {{{{ {name} }}}} in a template in {spec.experiment.prompts}, or remove the column from "
            "the dataset"
        )


WARNINGS: tuple[Callable[[Spec], Iterable[str]], ...] = (
    _unheard_rounds, _silent_templates, _inherited_dummies, _unused_replays, _replaced_confidence, fixed_seeds,
    lambda spec: design_notes(spec.experiment, spec.protocol, spec.prompts), lambda spec: spec.dataset.notes,
    group_notes, _inherited_templates, _fixed_verdicts, _protocol_faults, revealed_labels, revealed_stances,
    revealed_speakers, revealed_private_columns, revealed_right_provers,
    lambda spec: order_notes(spec.protocol, spec.dataset),
)  # fmt: skip

CHECK_WARNINGS: tuple[Callable[[Spec], Iterable[str]], ...] = (
    unset_keys, temperatures_out_of_range, single_label, few_groups, unused_columns,
)  # fmt: skip
