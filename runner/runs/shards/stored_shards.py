"""Reads the shards of a run before they are merged: their manifests, specs and inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, os_errors_as
from runner.base.hashing import file_hash
from runner.results.folder import SHARDS, RunFolder
from runner.results.manifest import Manifest
from runner.results.provenance.input_files import resolved_spec
from runner.results.provenance.sources_snapshot import ENVIRONMENT, WRITTEN
from runner.results.spec_changes import flatten_spec
from runner.rollouts.plan import Plan
from runner.runs.finished.saved_spec import recorded_plan
from runner.spec.datasets.shards import Shard
from runner.spec.loader import load_saved

LOCAL_KEYS = (
    "rollouts.concurrency", "budget", "retry.transient", "cache", "models.*.base_url", "models.*.api_key_env",
    "models.*.timeout", "models.*.requests_per_minute", "models.*.tokens_per_minute", "models.*.batch_wait",
    "models.*.batch_poll", "models.*.prompt_cache_key",
)  # fmt: skip
"""Spec keys that may differ between shards: addresses, limits and the cache. They do not affect the games."""

MACHINE_FILES = (WRITTEN, ENVIRONMENT)
"""Names in `inputs/` that may differ between shards: the spec as the user wrote it, and the installed packages."""


@dataclass(frozen=True)
class StoredShard:
    """The folder of one shard, perhaps copied from another machine, with its manifest."""

    position: Shard
    """The number of the shard, and the number of all shards."""
    folder: RunFolder
    manifest: Manifest
    plans: dict[Any, Plan] = field(default_factory=dict, compare=False, repr=False)
    """A cache of plans by the hashes of their files. All shards share the cache, because most have the same spec."""

    def __str__(self) -> str:
        return f"shard {self.position} ({self.folder.path})"

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The hash of each input file, by its path in `inputs/`."""
        return dict(_hash_files(self.folder.path / "inputs"))

    @cached_property
    def plan(self) -> Plan:
        """The plan of the shard, from the spec and the inputs in its folder.

        Raises:
            NipRunError: the spec or the inputs cannot be read. For a missing file, this is a `RunError`.
        """
        with os_errors_as(RunError, f"cannot read {self.folder.spec}", "; restore the file"):
            key = (file_hash(self.folder.spec), *sorted(self.inputs.items()), *sorted(self._dataset_selection.items()))
        if key not in self.plans:
            self.plans[key] = self.read_plan()
        plan = self.plans[key]
        return plan.with_spec(replace(plan.spec, shard=self.position))

    def read_plan(self) -> Plan:
        """Read the plan from the shard's folder.

        If a model group replays another run, that run need not exist on this machine.

        Raises:
            NipRunError: the spec or the inputs cannot be read.
        """
        spec, replayed_hashes = load_saved(self.folder.spec), self.manifest.replayed_sha256
        spec = replace(spec, plugins=self.manifest.plugins or {})
        if replayed_hashes is not None:
            spec = replace(spec, replayed_sha256=replayed_hashes)
        return recorded_plan(spec, self.folder, Plan)

    @property
    def _dataset_selection(self) -> dict[str, str]:
        """The dataset's selection and hash in the manifest, because the plan depends on them, too."""
        manifest = self.manifest
        return {"selection": repr(manifest.dataset_selection), "source": manifest.dataset_source_sha256}

    @cached_property
    def spec_values(self) -> dict[str, object]:
        """The values of the shard's spec by dotted key, without the keys that may differ between shards."""
        return flatten_spec(resolved_spec(self.plan), self.plan.spec.replayed_sha256, LOCAL_KEYS)


def _hash_files(inputs: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the hash of each input file."""
    if not inputs.is_dir():
        return
    for name, subfolder_names, file_names in os.walk(inputs):
        folder = Path(name)
        excluded = MACHINE_FILES if folder == inputs else ()
        subfolder_names[:] = [name for name in subfolder_names if name not in excluded]
        for path in (folder / name for name in file_names if name not in excluded):
            with os_errors_as(RunError, f"cannot read {path}", "; restore the file"):
                yield path.relative_to(inputs).as_posix(), file_hash(path)


def read_shards(folders: Sequence[RunFolder]) -> tuple[list[StoredShard], list[str]]:
    """Return the shards in these folders, and a problem for each folder that is not a shard."""
    shards: list[StoredShard] = []
    problems: list[str] = []
    plans: dict[Any, Plan] = {}
    for folder in folders:
        try:
            manifest = folder.manifest()
        except RunError as error:
            problems.append(f"{folder.path} cannot be read as a shard: {error}")
            continue
        if manifest.shard is None:
            problems.append(
                f"{folder.path} is the complete run {manifest.run_id}, not a shard; give folders of "
                f"shards, such as {SHARDS}/1-of-2"
            )
            continue
        shards.append(StoredShard(manifest.shard, folder, manifest, plans))
    return shards, problems
