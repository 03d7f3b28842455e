"""Check before a publish that others can load the spec of a release from the folder that `nip-run get` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.base.errors import NipRunError, SpecError
from runner.base.storage.safe_files import read_bounded
from runner.documents.yaml_reader import MAX_BYTES
from runner.models.provider_traits import traits_of
from runner.models.settings import NOT_PUBLISHED
from runner.registry.redaction.yaml_redaction import values_in
from runner.spec.loader import load_specs
from runner.spec.origin import DATA
from runner.spec.run_names import SAVED_SPEC
from runner.training.plan import plan_of

_READERS_ADDRESS = "http://127.0.0.1:1/v1"
"""Stands for the address that a user of the release sets. The check sends nothing to this address."""


def find_spec_problems(folder: Path) -> Iterator[str]:
    """Yield the reasons why others could not load the spec in a folder. Nothing is played."""
    files = [path for path in (folder / SAVED_SPEC, folder / DATA / SAVED_SPEC) if path.is_file()]
    if folder / SAVED_SPEC not in files:
        return
    values = {
        key: value
        for path in files
        for key, value in values_in(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
    }
    if any(key.endswith(".provider") and traits_of(value).needs_run for key, value in values.items()):
        return  # a replay can only be loaded if the replayed run is in the same results folder
    removed = [key for key, value in values.items() if key.endswith(".base_url") and value == NOT_PUBLISHED]
    overrides = [f"{key}={_READERS_ADDRESS}" for key in removed if not key.startswith("sweep.")]
    try:
        for spec in load_specs(folder / SAVED_SPEC, overrides):
            plan_of(spec)
    except NipRunError as error:
        for problem in error.problems if isinstance(error, SpecError) else (error,):
            yield f"{problem}; others could not load the spec".replace(f"{folder}/", "")
