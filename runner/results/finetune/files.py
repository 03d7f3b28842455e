"""Rollouts into fine-tune files: one a model group and one an agent, in each format.

What was left out, and why, is counted and reported.
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
from runner.results.finetune.game_lines import MadeExample, examples_of, format_of, made_example
from runner.results.finetune.preferences import preferences
from runner.results.finetune.rollout_examples import how_written
from runner.rollouts.agents.agent import Agent
from runner.rollouts.rollout import Rollout
from runner.rollouts.trees import build_tree
from runner.spec.experiment import FineTune

AGENTS = "agents"
"""The folder of the agents' own files; those of model groups stand above it."""

REPORT = "report.json"
"""What each file holds, in which format its chats are, and what was left out of it."""


def remove_files(folder: Path) -> None:
    """Remove the fine-tune files that an earlier pass over the run has left; nobody else's.

    What a link leads to is somebody else's.
    """
    if folder.is_symlink():
        return
    places = (folder,) if (folder / AGENTS).is_symlink() else (folder, folder / AGENTS)
    for format_ in FORMATS.values():
        for suffix in (format_.suffix, format_.validation_suffix):
            for place in places:
                for path in place.glob("*" + suffix):
                    remove_dataset(path)
    (folder / REPORT).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Splits:
    """One owner's file in one format, and the file of its validation examples."""

    train: ExampleFile
    validation: ExampleFile | None

    def __iter__(self) -> Iterator[ExampleFile]:
        yield self.train
        if self.validation is not None:
            yield self.validation

    def of(self, *, validation: bool) -> ExampleFile:
        return self.validation if validation and self.validation else self.train


class DatasetFiles:
    """The files of some agents and of their model groups; `add` takes examples in the order of the files."""

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
        self._min_examples, self._share = min_examples, validation_share
        self._files: dict[tuple[str, str], _Splits] = {}
        self._digests = DedupIndex(folder / ".seen")
        try:
            make_folder(folder / AGENTS)
            for format_ in formats:
                for owner, agent in self._owners.items():
                    own_format = format_.for_settings(agent.model_settings)
                    self._files[format_.suffix, owner] = self._opened(own_format, owner)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise RunError(f"cannot make {folder / AGENTS}: {error.strerror}") from error
            raise

    def _opened(self, format_: Format, owner: str) -> _Splits:
        seen = ScopedDedup(self._digests, owner + format_.suffix)
        train = ExampleFile(
            self._folder / (owner + format_.suffix), format_, min_examples=self._min_examples, seen=seen
        )
        target = self._folder / (owner + format_.validation_suffix)
        if not self._share:
            remove_dataset(target)
        return _Splits(train, ExampleFile(target, format_, seen=seen) if self._share else None)

    def add(self, agent: str, format_: Format, example: Example, source: ExampleSource) -> None:
        """Add one agent's example to its own file and to its group's."""
        self.put(made_example(agent, format_, example, source, self._share))

    def put(self, made: MadeExample) -> None:
        """Add what was made of an agent's part of a game, or count that it has no example."""
        for owner in (_agent_file(made.agent), self._groups[made.agent]):
            file = self._files[made.suffix, owner].of(validation=made.in_validation)
            line = made.line
            if file.format.method == "rl" and isinstance(line, ExampleLine):  # which says its place in the file
                line = line.at(file.examples)
            file.put(line, made.trace)

    def close(self) -> list[dict[str, Any]]:
        """Put the files with enough examples in their place, and report all of them."""
        self._digests.close()
        return [
            {**self._closed(file), **how_written(self._owners[owner])}
            for (_, owner), splits in sorted(self._files.items())
            for file in splits
        ]

    def _closed(self, file: ExampleFile) -> dict[str, Any]:
        row = file.close()
        inside = file.target.parent.relative_to(self._folder)
        return {name: str(inside / row[name]) if name in ("file", "trace") and row[name] else row[name] for name in row}

    def discard(self) -> None:
        """Leave no half-written file."""
        self._digests.close()
        for splits in self._files.values():
            for file in splits:
                file.discard()


def _agent_file(agent: str) -> str:
    return f"{AGENTS}/{agent}"


@dataclass(frozen=True)
class Trees:
    """What pairs of answers are drawn from: trees of this shape, by the run's seed."""

    shape: TreeShape
    seed: int


class FineTuneFiles:
    """The fine-tune files of one run; `add` takes a game's or a tree's rollouts, in the order of the plan.

    With `trees` a consumer that learns preferences is given those, and not the branches as games. An agent's file has
    what the player of that name said: in games with swapped seats it is the agent `swapped` has there, in another seat.
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
        self.examples = examples_of(settings, agents, run_id, trees=trees is not None, swapped=swapped)
        """What makes of games what `put` takes."""
        self._formats = [format_of(name, trees=trees is not None) for name in settings.formats]
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

    def put(self, made: Sequence[MadeExample]) -> None:
        """Add what `Examples` has made of a game."""
        for one in made:
            self._files.put(one)

    def add_preferences(self, rollouts: Sequence[Rollout]) -> None:
        """Add what a tree as a whole gives."""
        root = build_tree(rollouts, self._trees.shape) if self._trees is not None else None
        if root is not None and self._trees is not None:
            for agent, pair, source in preferences(root, self.examples.agents[False], self._trees.seed, self._run_id):
                for format_ in self._formats:
                    if format_.method == "dpo":
                        self._files.add(agent, format_, pair, source)

    def close(self) -> list[dict[str, Any]]:
        """Put the files with enough examples in their place, and report all of them: there too, in `REPORT`."""
        report = self._files.close()
        atomic_write(self._folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2))
        return report

    def discard(self) -> None:
        """Leave no half-written file."""
        self._files.discard()
