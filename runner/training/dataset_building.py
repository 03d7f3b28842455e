"""Builds a dataset for each trained model group, from the games of an iteration or of all iterations so far.

`runner.training.dataset_stage` decides which files to build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from runner.base.hashing import derived_seed
from runner.game.prompts.chat_format import ChatFormat
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
from runner.training.plan import TrainingPlan
from runner.training.selection import replaced_proportion, select_rollouts
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
