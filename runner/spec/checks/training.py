"""What a schema cannot say about a training spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.datasets.load import Dataset
from runner.documents.fields import changed
from runner.errors import PlaceOf, Problem
from runner.hashing import tagged_hash
from runner.protocols.protocol import Protocol
from runner.spec.checks.command import command_problems
from runner.spec.experiment import Experiment
from runner.spec.trainers import HYPERPARAMETERS, TrainerSettings
from runner.text import comma_join, did_you_mean

"""A dotted key into the place that set it."""

OPENAI_LEAST = 10
"""The fewest examples of a fine-tuning job."""

UNTOLD = {
    "command": "your trainer is not told; give it in `command`",
    "files": "whoever trains by hand is not told; leave it out",
    "dummy": "nobody is trained; leave it out",
}
"""Why a backend does nothing with a hyperparameter, and what to do."""

OPENAI_ALONE = ("suffix", "validating_minutes")
"""The other keys of a trainer that no backend but `openai` does anything with."""

MOST_REPEATS = 2**31 - 1
"""The largest number of a branch that the tables hold."""


def tree_calls(protocol: Protocol, responses: int) -> int:
    """The most calls that one tree of responses can take, retries left out."""
    calls = 0
    for round_ in range(protocol.max_message_rounds):
        speakers = 1 if protocol.step(round_).draw == "one" else len(protocol.can_be_active(round_))
        calls += speakers * responses ** (round_ + 1)
    return calls


def tree_problems(experiment: Experiment, protocol: Protocol, dataset: Dataset, at: PlaceOf) -> Iterator[Problem]:
    """Trees that are larger than anybody wants to pay for."""
    rollouts = experiment.rollouts
    responses, key = rollouts.num_responses_per_timestep, "rollouts.num_responses_per_timestep"
    if responses is None:
        return
    asked = experiment.training.datapoints_per_iteration if experiment.training is not None else None
    trees = (asked or len(dataset.datapoints)) * rollouts.per_datapoint
    calls = tree_calls(protocol, responses) * trees
    if calls > rollouts.max_calls:
        yield Problem(
            at(key), key,
            f"{trees} trees of {responses} answers a step and {protocol.max_message_rounds} rounds may take {calls:,} "
            f"calls, more than rollouts.max_calls ({rollouts.max_calls:,}); trees grow exponentially with their "
            "rounds: fewer answers, rounds (protocol.max_message_rounds) or datapoints",
        )  # fmt: skip
    elif responses**protocol.max_message_rounds * rollouts.per_datapoint > MOST_REPEATS:
        yield Problem(at(key), key, "a tree has more branches than can be numbered; fewer answers or rounds")


def training_problems(
    experiment: Experiment, protocol: Protocol, dataset: Dataset, test: Dataset | None, at: PlaceOf
) -> Iterator[Problem]:
    """Everything about training that can be known without playing."""
    training = experiment.training
    if training is None:
        if experiment.kind == "training":
            yield Problem(at("kind"), "kind", "a training run needs a section `training`")
        return
    if experiment.kind != "training":
        yield Problem(at("training"), "training", "this is for `kind: training`")
    yield from _method_problems(experiment, protocol, at)
    yield from _trainer_problems(experiment, at)
    asked, there = training.datapoints_per_iteration, len(dataset.datapoints)
    if asked is not None and asked > there:
        key = "training.datapoints_per_iteration"
        yield Problem(at(key), key, f"{asked} is more than the {there} datapoints there are")
    yield from _split_problems(experiment, dataset, test, at)


def _method_problems(experiment: Experiment, protocol: Protocol, at: PlaceOf) -> Iterator[Problem]:
    training = experiment.training
    assert training is not None
    trees = experiment.rollouts.num_responses_per_timestep
    key = "rollouts.num_responses_per_timestep"
    if training.method == "malt":
        if trees is None or trees < 2:
            yield Problem(at("training.method"), key, "malt compares answers to one step: 2 or more")
        if training.guess_replacement.proportion:
            name = "training.guess_replacement.proportion"
            yield Problem(at(name), name, "malt replaces no guesses; this is for expert_iteration")
        for changed_key in changed(training.selection):
            name = f"training.selection.{changed_key}"
            yield Problem(at(name), name, "malt selects no rollouts; this is for expert_iteration; leave it out")
        return
    if trees is not None:
        yield Problem(at(key), key, "expert_iteration plays single games; trees are for malt")
    selection = training.selection
    drawn_once = selection.method == "weighted_sampling" and not selection.replacement
    if drawn_once and selection.sample_size_factor > 1:
        name = "training.selection.sample_size_factor"
        yield Problem(at(name), name, "more than there are cannot be drawn without replacement")
    if training.guess_replacement.proportion and experiment.agents[protocol.verifier_name].freeze:
        name = "training.guess_replacement.proportion"
        yield Problem(at(name), name, f"{protocol.verifier_name} is frozen, so that its guesses train nobody")


def _trainer_problems(experiment: Experiment, at: PlaceOf) -> Iterator[Problem]:
    training = experiment.training
    assert training is not None
    played: dict[str, list[str]] = {}
    for name, agent in experiment.agents.items():
        if agent.model in experiment.models:
            played.setdefault(agent.model, []).append(name)
    for group, agents in played.items():
        frozen = [name for name in agents if experiment.agents[name].freeze]
        if frozen and len(frozen) < len(agents):
            others = [name for name in agents if name not in frozen]
            key = f"agents.{frozen[0]}.freeze"
            message = (
                f"{comma_join(others)} would change the model that both play with; give {frozen[0]} a group of its own"
            )
            yield Problem(at(key), key, message)
        if not frozen and group not in training.trainers:
            message = f"by what is {group!r} trained, which {comma_join(agents)} plays? Or freeze: true"
            yield Problem(at("training.trainers"), "training.trainers", message)
    if all(agent.freeze for agent in experiment.agents.values()):
        yield Problem(at("training"), "training", "all agents are frozen, so that nobody is trained")
    for group, trainer in training.trainers.items():
        key = f"training.trainers.{group}"
        if group not in experiment.models:
            yield Problem(at(key), key, f"no model group {group!r}{did_you_mean(group, experiment.models)}")
            continue
        if all(experiment.agents[name].freeze for name in played.get(group, ())):
            yield Problem(at(key), key, "nobody who is trained plays this group")
        provider = experiment.models[group].provider
        if trainer.backend == "openai" and provider != "openai":
            yield Problem(at(key), f"{key}.backend", f"the group's provider is {provider}; it has no fine-tuning")
        if trainer.backend == "dummy" and provider == "openai":
            yield Problem(
                at(key), f"{key}.backend", "no server has a model that nobody has trained; this is for `dummy`"
            )
        if trainer.backend == "openai" and training.min_examples < OPENAI_LEAST:
            name = "training.min_examples"
            yield Problem(at(name), name, f"OpenAI refuses a file of fewer than {OPENAI_LEAST} examples")
        if provider == "replay":
            yield Problem(at(key), key, "a group that replays a run cannot be trained")
        if (trainer.backend == "command") != (trainer.command is not None):
            yield Problem(at(key), f"{key}.command", "`backend: command` needs it, and no other backend does")
        for wrong in command_problems(trainer.command) if trainer.command is not None else ():
            yield Problem(at(f"{key}.command"), f"{key}.command", wrong)
        yield from _unconsumed(trainer, training.method, key, at)


def _unconsumed(trainer: TrainerSettings, method: str, key: str, at: PlaceOf) -> Iterator[Problem]:
    """Keys that are set and that reach nobody."""
    for name in changed(trainer):
        where, message = f"{key}.{name}", None
        if name in HYPERPARAMETERS and trainer.backend in UNTOLD:
            message = UNTOLD[trainer.backend]
        elif name in OPENAI_ALONE and trainer.backend != "openai":
            message = "this is for `openai`; leave it out"
        elif name == "beta" and method != "malt":
            message = f"{method} trains supervised; this is for malt (DPO); leave it out"
        if message is not None:
            yield Problem(at(where), where, f"`backend: {trainer.backend}`: {message}")


def _split_problems(experiment: Experiment, dataset: Dataset, test: Dataset | None, at: PlaceOf) -> Iterator[Problem]:
    """Datapoints that are both trained and tested on."""
    training = experiment.training
    if training is None or test is None:
        return
    trained = {_content(point.columns, dataset.columns) for point in dataset.datapoints}
    both = [point.id for point in test.datapoints if _content(point.columns, dataset.columns) in trained]
    if both:
        shown = comma_join(both[:5]) + (f" and {len(both) - 5} more" if len(both) > 5 else "")
        key = "training.test.split"
        yield Problem(at(key), key, f"these datapoints are trained on, too: {shown}; set dataset.split")


def _content(columns: Mapping[str, object], names: tuple[str, ...]) -> str:
    """What a template can show of a datapoint, apart from the split it is in."""
    return tagged_hash("shown", [columns.get(name) for name in names if name != "split"])
