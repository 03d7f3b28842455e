"""The parts of a run that is to be made of them: where they stand, and what each says of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.hashing import file_hash
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.provenance.input_files import resolved_spec
from runner.results.spec_changes import spec_leaves
from runner.rollouts.plan import Plan
from runner.runs.finished.saved_spec import recorded_plan
from runner.spec.datasets.shards import Shard
from runner.spec.loader import load_saved

WHERE_AND_HOW_FAST = (
    "rollouts.concurrency", "budget", "retry.transient", "cache", "models.*.base_url", "models.*.api_key_env",
    "models.*.timeout", "models.*.requests_per_minute", "models.*.tokens_per_minute", "models.*.batch_wait",
    "models.*.batch_poll",
)  # fmt: skip
"""Keys in which shards may differ: where a shard asks, and how fast; not what is played, or made of it."""

BEGUN_WITH = ("written", "environment.lock")
"""In `inputs/`: what is kept of how a run began, which differs between machines and is no input."""


@dataclass(frozen=True)
class ShardPart:
    """The folder of one part, with what its manifest says."""

    shard: Shard
    folder: RunFolder
    manifest: Manifest
    plans: dict[Any, Plan] = field(default_factory=dict, compare=False, repr=False)
    """Those that were read already, so that of parts with one spec and the same inputs one alone is read."""

    def __str__(self) -> str:
        return f"shard {self.shard} ({self.folder.path})"

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The hash of each file that it was played from, by its path in `inputs/`."""
        return dict(_hashed(self.folder.path / "inputs"))

    @cached_property
    def plan(self) -> Plan:
        """The plan of its part, by the spec and the inputs saved with it.

        Raises:
            NipRunError: they cannot be read.
        """
        try:
            same = (file_hash(self.folder.spec), *sorted(self.inputs.items()), *sorted(self._selected.items()))
        except OSError as error:
            raise RunError(f"cannot read {self.folder.spec}: {error.strerror}") from error
        if same not in self.plans:
            self.plans[same] = self.read_plan()
        plan = self.plans[same]
        return plan.with_spec(replace(plan.spec, shard=self.shard))

    def read_plan(self) -> Plan:
        """The plan, by its own folder. What a model group replays need not be there.

        Raises:
            NipRunError: the spec or the inputs cannot be read.
        """
        spec, replayed = load_saved(self.folder.spec), self.manifest.replayed_sha256
        return recorded_plan(spec if replayed is None else replace(spec, replayed=replayed), self.folder, Plan)

    @property
    def _selected(self) -> dict[str, str]:
        """What of the manifest a saved spec is read by."""
        manifest = self.manifest
        return {"selection": repr(manifest.dataset_selection), "source": manifest.dataset_source_sha256}

    @cached_property
    def spec_leaves(self) -> dict[str, Any]:
        """What its spec says by dotted key, where shards may not differ."""
        return spec_leaves(resolved_spec(self.plan), self.plan.spec.replayed, WHERE_AND_HOW_FAST)


def _hashed(inputs: Path) -> Iterator[tuple[str, str]]:
    if not inputs.is_dir():
        return
    for folder, folders, files in os.walk(inputs):
        here = Path(folder)
        left_out = BEGUN_WITH if here == inputs else ()
        folders[:] = [name for name in folders if name not in left_out]
        for path in (here / name for name in files if name not in left_out):
            try:
                yield path.relative_to(inputs).as_posix(), file_hash(path)
            except OSError as error:
                raise RunError(f"cannot read {path}: {error.strerror}") from error


def parts_at(folders: Sequence[RunFolder]) -> tuple[list[ShardPart], list[str]]:
    """The parts that stand in folders, and what is wrong with those that hold none."""
    found: list[ShardPart] = []
    wrong: list[str] = []
    plans: dict[Any, Plan] = {}
    for folder in folders:
        try:
            manifest = folder.manifest()
        except RunError as error:
            wrong.append(f"{folder.path} cannot be read as a part: {error}")
            continue
        if manifest.shard is None:
            wrong.append(
                f"{folder.path} is the whole run {manifest.run_id}, and no part of one: the folder of a part is named "
                "K-of-N"
            )
            continue
        found.append(ShardPart(manifest.shard, folder, manifest, plans))
    return found, wrong
