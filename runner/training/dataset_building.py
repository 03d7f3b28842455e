"""Builds a dataset for each trained model group, from the games of an iteration or of all iterations so far.

Expert iteration selects the rollouts by their rewards (Neural Interactive Proofs, ICLR 2025, appendix). Every random
choice uses a seed that the caller derives from the run, the iteration and the agent.

`runner.training.dataset_stage` decides which files to build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.base.hashing import derived_seed
from runner.game.prompts.chat_format import ChatFormat
from runner.game.protocols.rewards import reaches
from runner.results.finetune.example_file import ExampleFile
from runner.results.finetune.examples import Example, ExampleSource
from runner.results.finetune.formats import FORMATS, Format
from runner.results.finetune.preferences import preferences
from runner.results.finetune.rollout_examples import describe_chat_format, example_source, supervised_examples
from runner.results.folder import RunFolder
from runner.rollouts.agents.agent import Agent
from runner.rollouts.job import Job
from runner.rollouts.trees import build_tree
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from runner.spec.training_settings import GuessReplacement, SelectionSettings
from runner.training.plan import TrainingPlan
from runner.training.stages import DatasetReport


def build_datasets(
    plan: TrainingPlan, iteration: int, runs: Sequence[RunFolder], folder: Path, formats: Mapping[str, str]
) -> dict[str, DatasetReport]:
    """Write a dataset for each group in `formats`, and return a report for each group.

    `formats` has the file format of each group. `runs` have the games to train on, oldest first. The content of the
    files depends only on the plan and the runs.

    Raises:
        RunError: a run's journal is missing or damaged, or a file cannot be written.
    """
    with ExitStack() as stack:
        games = []
        for run in runs:
            reconstructor = stack.enter_context(closing(Reconstructor(run, saved_plan(run))))
            games.append(_RunRebuilder(run.run_id, reconstructor, plan.chat_format))
        builder = _DatasetBuilder(plan, iteration, games)
        return {group: builder.build(group, folder, FORMATS[formats[group], plan.method]) for group in formats}


@dataclass(frozen=True)
class _RunRebuilder:
    """One run's games, rebuilt from its journal."""

    run_id: str
    reconstructor: Reconstructor
    chat_format: ChatFormat | None
    """The chat format of the datasets; None for the format of the games."""

    @cached_property
    def agents(self) -> Mapping[str, Agent]:
        agents = self.reconstructor.plan.agents()
        return {name: agent.with_chat_format(self.chat_format) for name, agent in agents.items()}


@dataclass(frozen=True)
class _Candidate:
    """A finished game that may become training data of an agent, and the agent's reward in this game."""

    games: _RunRebuilder
    job: Job
    reward: float


@dataclass(frozen=True)
class _DatasetBuilder:
    """Builds the datasets of one iteration."""

    plan: TrainingPlan
    iteration: int
    games: Sequence[_RunRebuilder]

    def build(self, group: str, folder: Path, format_: Format) -> DatasetReport:
        """Write the dataset of one group with the examples of all its agents, and return a report."""
        selection, agents, notes = self.plan.training.selection, self.plan.trained_groups[group], list[str]()
        # A rollout that weighted sampling selects twice must be in the dataset twice.
        samples_with_replacement = selection.method == "weighted_sampling" and selection.replacement
        repeats = self.plan.method == "sft" and samples_with_replacement
        file = ExampleFile(folder / (group + format_.suffix), format_, repeats=repeats)
        try:
            for agent in agents:
                examples = self._pairs(agent) if self.plan.method == "dpo" else self._chats(agent, format_, notes)
                for example, source in examples:
                    file.add(example, source)
            report = file.close()
        except BaseException:
            file.discard()
            raise
        written = describe_chat_format(self.games[-1].agents[agents[0]])
        return DatasetReport.parse({**report, **written, "agents": agents, "notes": notes})

    def _pairs(self, agent: str) -> Iterator[tuple[Example, ExampleSource]]:
        """Yield the preference pairs of an agent from the trees of all games."""
        for run in self.games:
            plan = run.reconstructor.plan
            assert plan.tree_shape is not None
            agents = {agent: run.agents[agent]}
            for branches in run.reconstructor.rollouts_by_job():
                root = build_tree(branches, plan.tree_shape)
                if root is None:
                    continue
                for _, pair, source in preferences(root, agents, plan.spec.experiment.seed, run.run_id):
                    yield pair, source

    def _chats(self, agent: str, format_: Format, notes: list[str]) -> Iterator[tuple[Example, ExampleSource]]:
        """Yield examples from the agent's selected rollouts, then from those where the label replaces its guess."""
        candidates = [candidate for run in self.games for candidate in _candidates(run, agent)]
        training = self.plan.training
        is_verifier = self.games[-1].agents[agent].is_verifier
        share = replaced_proportion(training.guess_replacement, self.iteration) if is_verifier else 0.0
        seed = derived_seed("selection", self.plan.identity, self.iteration, agent)
        chosen = select_rollouts(
            [candidate.reward for candidate in candidates], training.selection, replaced=share, seed=seed
        )
        if chosen.empty_reason is not None:
            notes.append(f"{agent}: {chosen.empty_reason}; no rollout with the agent's own answers is in the dataset")
        for indices, replaces in ((chosen.as_played, False), (chosen.guess_replaced, True)):
            for index in indices:
                yield from _examples(candidates[index], agent, format_, replaces=replaces)


def _candidates(run: _RunRebuilder, agent: str) -> Iterator[_Candidate]:
    """Yield the games of a run that ended by their rules, without an error."""
    for rollout in run.reconstructor.rollouts():
        if rollout.outcome.played_out:
            yield _Candidate(run, rollout.job, rollout.rewards[agent])


def _examples(
    candidate: _Candidate, agent: str, format_: Format, *, replaces: bool
) -> Iterator[tuple[Example, ExampleSource]]:
    """Yield an agent's examples from one game; if `replaces`, the label replaces the verifier's guess."""
    run = candidate.games
    player = run.agents[agent]
    for rollout in run.reconstructor.rollouts_of(candidate.job):
        chats = supervised_examples(player, rollout, replace_verifier_guess_with_true_label=replaces)
        for example in format_.examples(chats):
            source = example_source(player, rollout, run.run_id, example.round)
            yield example, replace(source, other={"guess_replaced": True} if replaces else {})


SEED_BITS = 32
"""The maximum number of bits of a seed for `RandomState`, whose streams are the same in every version of NumPy."""


@dataclass(frozen=True)
class SelectedRollouts:
    """The indices of the rollouts to train one agent on."""

    as_played: tuple[int, ...]
    """The rollouts to train on with the agent's own answers."""
    guess_replaced: tuple[int, ...] = ()
    """The rollouts to train on with the label instead of the verifier's guess."""
    empty_reason: str | None = None
    """The reason why no rollout could be selected for `as_played`; None if some were selected."""


def select_by_reward(rewards: Sequence[float], settings: SelectionSettings, seed: int) -> list[int]:
    """Return the indices of the rollouts to train one agent on; `rewards` has the agent's reward in each rollout.

    With a threshold, the indices are in ascending order; with weighted sampling, in the order of sampling.

    Raises:
        ValueError: all weights are 0, or there are too few positive weights to sample without replacement.
    """
    if settings.method == "threshold":
        threshold = settings.reward_threshold
        return [index for index, reward in enumerate(rewards) if _passes_threshold(reward, threshold)]
    size = sample_size(len(rewards), settings)
    weights = probabilities(rewards, settings)
    if np.isnan(weights).any():
        raise ValueError("all rewards are equal or below the minimum, so no rollout has a positive weight")
    if not settings.replacement and size > np.count_nonzero(weights):
        raise ValueError(
            f"cannot sample {size} rollouts without replacement, because only {np.count_nonzero(weights)} have a "
            "positive weight"
        )
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    weights64 = weights.astype(np.float64)
    sampled = generator.choice(len(rewards), size=size, replace=settings.replacement, p=weights64 / weights64.sum())
    return [int(index) for index in sampled]


def _passes_threshold(reward: float, threshold: float) -> bool:
    """Return whether a reward reaches the threshold.

    A reward that float32 represents exactly also passes if it reaches the threshold rounded to float32, because the
    original code compares in float32.
    """
    if float(np.float32(reward)) == reward:
        return reaches(reward, float(np.float32(threshold))) or reaches(reward, threshold)
    return reaches(reward, threshold)


def sample_size(rollouts: int, settings: SelectionSettings) -> int:
    """Return the number of rollouts that weighted sampling selects. Halves are rounded to the even neighbor."""
    return round(settings.sample_size_factor * rollouts)


def probabilities(rewards: Sequence[float], settings: SelectionSettings) -> NDArray[np.float32]:
    """Return the sampling probability of each rollout; all are NaN if no reward is above the minimum.

    A rollout's weight is the excess of its reward over the minimum. The weights are normalized and mixed with a uniform
    distribution in the proportion 1 : `epsilon`.
    """
    values: NDArray[Any] = np.asarray(rewards, np.float32)
    minimum = values.min(initial=np.inf) if settings.minimum is None else np.float32(settings.minimum)
    excess = np.maximum(values, minimum) - minimum
    with np.errstate(invalid="ignore"):
        shares = excess / excess.sum()
    mixed: NDArray[np.float32] = (shares + settings.epsilon / max(len(values), 1)) / (1 + settings.epsilon)
    return mixed


def replaced_proportion(settings: GuessReplacement, iteration: int) -> float:
    """Return the share of an iteration's rollouts where the label replaces the verifier's guess."""
    if settings.annealing == "linear":
        return max(0.0, settings.proportion - settings.annealing_rate * iteration)
    if settings.annealing == "exponential":
        return settings.proportion * (1 - settings.annealing_rate) ** iteration
    if settings.annealing == "none":
        return settings.proportion
    raise ValueError(f"unknown annealing {settings.annealing!r}")


def select_rollouts(
    rewards: Sequence[float], settings: SelectionSettings, *, replaced: float, seed: int
) -> SelectedRollouts:
    """Return the rollouts to train one agent on.

    In a random share `replaced` of all rollouts, the label replaces the agent's guess. These rollouts are selected with
    any reward. `select_by_reward` selects from the others.
    """
    count = int(replaced * len(rewards))
    order = np.random.RandomState(derived_seed("replaced", seed) % 2**SEED_BITS).permutation(len(rewards))
    guess_replaced = tuple(sorted(int(index) for index in order[:count]))
    rest = sorted(int(index) for index in order[count:])
    try:
        rest_rewards = [rewards[index] for index in rest]
        chosen = select_by_reward(rest_rewards, settings, derived_seed("drawn", seed)) if rest else []
    except ValueError as error:
        return SelectedRollouts((), guess_replaced, str(error))
    return SelectedRollouts(tuple(rest[index] for index in chosen), guess_replaced)
