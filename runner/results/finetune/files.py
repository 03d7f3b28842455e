"""Write the fine-tuning files of a run, in each format: one for each model group and one for each agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write
from runner.base.storage.safe_files import make_folder
from runner.game.protocols.tree_shape import TreeShape
from runner.results.finetune.deduplication import DedupIndex
from runner.results.finetune.example_file import ExampleFile, remove_dataset
from runner.results.finetune.formats import FORMATS, Format
from runner.results.finetune.game_lines import AgentExample, ExampleBuilder, build_example
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
    """Remove the fine-tuning files that nip-run wrote to a folder, and no other files. Links are not followed."""
    if folder.is_symlink():
        return
    folders = (folder,) if (folder / AGENTS).is_symlink() else (folder, folder / AGENTS)
    suffixes = [suffix for format_ in FORMATS.values() for suffix in (format_.suffix, format_.validation_suffix)]
    for subfolder in folders:
        for path in (path for suffix in suffixes for path in subfolder.glob("*" + suffix)):
            remove_dataset(path)
    (folder / REPORT).unlink(missing_ok=True)


@dataclass(frozen=True)
class TreeSettings:
    """The shape of the trees that preference pairs come from, and the run's seed."""

    shape: TreeShape
    seed: int


@dataclass(eq=False)
class FineTuneFiles:
    """The fine-tuning files of one run: a training and perhaps a validation file for each owner and format.

    The owners are the agents and their model groups. An agent's file has the answers of the player of that name. In
    games with swapped seats, this player is in another seat, as in `swapped_agents`. With `trees`, files for preference
    learning have preference pairs instead of games. Games and trees must be added in the order of the plan.
    """

    folder: Path
    settings: FineTune
    agents: Mapping[str, Agent]
    run_id: str
    trees: TreeSettings | None = None
    swapped_agents: Mapping[str, Agent] | None = None

    def __post_init__(self) -> None:
        has_trees = self.trees is not None
        self.examples = ExampleBuilder(
            self.settings, self.agents, self.run_id, trees=has_trees, swapped_agents=self.swapped_agents
        )
        """Builds the examples that `put` takes."""
        self._players = self.examples.agents[False]
        self._owners = {
            owner: agent for name, agent in self._players.items() for owner in (_agent_file(name), agent.model_group)
        }
        """An agent by the name of each owner's files, without their suffix."""
        self._files: dict[tuple[str, str, bool], ExampleFile] = {}
        """The files by the suffix of their format, their owner, and whether they are for validation."""
        self._dedup_index = DedupIndex(self.folder / ".seen")
        try:
            make_folder(self.folder / AGENTS)
            for format_ in self.examples.formats:
                for owner, agent in self._owners.items():
                    self._open(format_.for_settings(agent.model_settings), owner)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise RunError(f"cannot create {self.folder / AGENTS}: {error.strerror}") from error
            raise

    def _open(self, format_: Format, owner: str) -> None:
        scope = owner + format_.suffix
        self._files[format_.suffix, owner, False] = ExampleFile(
            self.folder / scope,
            format_,
            min_examples=self.settings.min_examples,
            dedup=self._dedup_index,
            scope=scope,
        )
        validation_target = self.folder / (owner + format_.validation_suffix)
        if self.settings.validation_share:
            self._files[format_.suffix, owner, True] = ExampleFile(
                validation_target, format_, dedup=self._dedup_index, scope=scope
            )
        else:
            remove_dataset(validation_target)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Add each agent's examples of one game or tree."""
        for rollout in rollouts:
            self.put(self.examples.of(rollout))
        self.add_preferences(rollouts)

    def put(self, examples: Sequence[AgentExample]) -> None:
        """Write encoded examples to the files of their agent and of its model group, or count why they are unusable."""
        for example in examples:
            for owner in (_agent_file(example.agent), self._players[example.agent].model_group):
                self._files[example.suffix, owner, example.is_in_validation].put(example.line, example.trace)

    def add_preferences(self, rollouts: Sequence[Rollout]) -> None:
        """Add the preference pairs of a tree."""
        root = build_tree(rollouts, self.trees.shape) if self.trees is not None else None
        if root is None or self.trees is None:
            return
        formats = [format_ for format_ in self.examples.formats if format_.method == "dpo"]
        for agent, pair, source in preferences(root, self._players, self.trees.seed, self.run_id):
            for format_ in formats:
                self.put([build_example(agent, format_, pair, source, self.settings.validation_share)])

    def close(self) -> list[dict[str, Any]]:
        """Rename the files with enough examples to their final names, and write and return the report."""
        self._dedup_index.close()
        report = [
            {**self._close_file(file), **describe_chat_format(self._owners[owner])}
            for (_, owner, _), file in sorted(self._files.items())
        ]
        atomic_write(self.folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return report

    def _close_file(self, file: ExampleFile) -> dict[str, Any]:
        row = file.close()
        subfolder = file.target.parent.relative_to(self.folder)
        paths = {name: str(subfolder / row[name]) for name in ("file", "trace") if row[name]}
        return {**row, **paths}

    def discard(self) -> None:
        """Remove the temporary files."""
        self._dedup_index.close()
        for file in self._files.values():
            file.discard()


def _agent_file(agent: str) -> str:
    return f"{AGENTS}/{agent}"
