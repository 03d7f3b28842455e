"""Write the fine-tuning files of a run: one for each model group and one for each agent, in each format.

The report counts the examples that are left out, by reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folder
from runner.game.protocols.tree_shape import TreeShape
from runner.results.finetune.deduplication import DedupIndex, ScopedDedup
from runner.results.finetune.example_file import ExampleFile, ExampleLine, remove_dataset
from runner.results.finetune.examples import Example, ExampleSource
from runner.results.finetune.formats import FORMATS, Format
from runner.results.finetune.game_lines import AgentExample, build_example, example_builder, find_format
from runner.results.finetune.preferences import preferences
from runner.results.finetune.rollout_examples import describe_chat_format
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import build_tree
from runner.spec.experiment import FineTune

AGENTS = "agents"
"""The subfolder with the files of single agents. The folder itself has the files of model groups."""

REPORT = "report.json"
"""The file with a report on each dataset file: its examples, its chat format and the examples that were left out."""


def remove_files(folder: Path) -> None:
    """Remove the fine-tuning files of an earlier pass over the run, and no other files. Links are not followed."""
    if folder.is_symlink():
        return
    folders = (folder,) if (folder / AGENTS).is_symlink() else (folder, folder / AGENTS)
    for format_ in FORMATS.values():
        for suffix in (format_.suffix, format_.validation_suffix):
            for folder_ in folders:
                for path in folder_.glob("*" + suffix):
                    remove_dataset(path)
    (folder / REPORT).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Splits:
    """The training and the validation file of an agent or a model group, in one format."""

    train: ExampleFile
    validation: ExampleFile | None

    def __iter__(self) -> Iterator[ExampleFile]:
        yield self.train
        if self.validation is not None:
            yield self.validation

    def of(self, *, validation: bool) -> ExampleFile:
        return self.validation if validation and self.validation else self.train


class DatasetFiles:
    """The files of some agents and their model groups. Examples are written in the order in which they are added."""

    def __init__(
        self,
        folder: Path,
        formats: Sequence[Format],
        agents: Mapping[str, Agent],
        *,
        min_examples: int = 1,
        validation_share: float = 0.0,
    ) -> None:
        self._folder = folder
        self._groups = {name: agent.model_group for name, agent in agents.items()}
        self._owners = {
            owner: agent for name, agent in agents.items() for owner in (_agent_file(name), self._groups[name])
        }
        self._min_examples, self._validation_share = min_examples, validation_share
        self._files: dict[tuple[str, str], _Splits] = {}
        self._dedup_index = DedupIndex(folder / ".seen")
        try:
            make_folder(folder / AGENTS)
            for format_ in formats:
                for owner, agent in self._owners.items():
                    own_format = format_.for_settings(agent.model_settings)
                    self._files[format_.suffix, owner] = self._open_splits(own_format, owner)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise RunError(f"cannot create {folder / AGENTS}: {error.strerror}") from error
            raise

    def _open_splits(self, format_: Format, owner: str) -> _Splits:
        dedup = ScopedDedup(self._dedup_index, owner + format_.suffix)
        train = ExampleFile(
            self._folder / (owner + format_.suffix), format_, min_examples=self._min_examples, dedup=dedup
        )
        target = self._folder / (owner + format_.validation_suffix)
        if not self._validation_share:
            remove_dataset(target)
        return _Splits(train, ExampleFile(target, format_, dedup=dedup) if self._validation_share else None)

    def add(self, agent: str, format_: Format, example: Example, source: ExampleSource) -> None:
        """Add an agent's example to the file of the agent and to the file of its model group."""
        self.put(build_example(agent, format_, example, source, self._validation_share))

    def put(self, example: AgentExample) -> None:
        """Add an encoded example, or count the reason why it could not be encoded."""
        for owner in (_agent_file(example.agent), self._groups[example.agent]):
            file = self._files[example.suffix, owner].of(validation=example.is_in_validation)
            line = example.line
            if file.format.method == "rl" and isinstance(line, ExampleLine):  # a line for RL contains its index
                line = line.at(file.examples)
            file.put(line, example.trace)

    def close(self) -> list[dict[str, Any]]:
        """Rename the files with enough examples to their final names, and return the rows of the report."""
        self._dedup_index.close()
        return [
            {**self._close_file(file), **describe_chat_format(self._owners[owner])}
            for (_, owner), splits in sorted(self._files.items())
            for file in splits
        ]

    def _close_file(self, file: ExampleFile) -> dict[str, Any]:
        row = file.close()
        subfolder = file.target.parent.relative_to(self._folder)
        paths = {name: str(subfolder / row[name]) for name in ("file", "trace") if row[name]}
        return {**row, **paths}

    def discard(self) -> None:
        """Remove the temporary files."""
        self._dedup_index.close()
        for splits in self._files.values():
            for file in splits:
                file.discard()


def _agent_file(agent: str) -> str:
    return f"{AGENTS}/{agent}"


@dataclass(frozen=True)
class Trees:
    """The shape of the trees that preference pairs come from, and the run's seed."""

    shape: TreeShape
    seed: int


class FineTuneFiles:
    """The fine-tuning files of one run. Games and trees must be added in the order of the plan.

    With `trees`, files for preference learning have preference pairs instead of games. An agent's file has the answers
    of the player of that name. In games with swapped seats, this player is in another seat, as `swapped` says.
    """

    def __init__(
        self,
        folder: Path,
        settings: FineTune,
        agents: Mapping[str, Agent],
        run_id: str,
        trees: Trees | None = None,
        *,
        swapped: Mapping[str, Agent] | None = None,
    ) -> None:
        self._folder, self._run_id, self._trees = folder, run_id, trees
        self.examples = example_builder(settings, agents, run_id, trees=trees is not None, swapped=swapped)
        """Builds the examples that `put` takes."""
        self._formats = [find_format(name, trees=trees is not None) for name in settings.formats]
        self._files = DatasetFiles(
            folder,
            self._formats,
            self.examples.agents[False],
            min_examples=settings.min_examples,
            validation_share=settings.validation_share,
        )

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Add each agent's examples of one game or tree."""
        for rollout in rollouts:
            self.put(self.examples.of(rollout))
        self.add_preferences(rollouts)

    def put(self, examples: Sequence[AgentExample]) -> None:
        """Add the examples that `self.examples` built from a game."""
        for example in examples:
            self._files.put(example)

    def add_preferences(self, rollouts: Sequence[Rollout]) -> None:
        """Add the preference pairs of a tree."""
        root = build_tree(rollouts, self._trees.shape) if self._trees is not None else None
        if root is not None and self._trees is not None:
            for agent, pair, source in preferences(root, self.examples.agents[False], self._trees.seed, self._run_id):
                for format_ in self._formats:
                    if format_.method == "dpo":
                        self._files.add(agent, format_, pair, source)

    def close(self) -> list[dict[str, Any]]:
        """Rename the files with enough examples to their final names, and write and return the report."""
        report = self._files.close()
        atomic_write(self._folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return report

    def discard(self) -> None:
        """Remove the temporary files."""
        self._files.discard()
