"""What a reader's nip-run says of the spec of a release, laid out as whoever gets it will have it."""

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
from runner.training.plan import plan_of

SPEC = "spec.yaml"
_OF_THEIR_OWN = "http://127.0.0.1:1/v1"
"""What a reader gives in the place of an address that was taken out; nobody is asked."""


def unreadable_spec(folder: Path) -> Iterator[str]:
    """Why the spec in a folder as `get` leaves it cannot be loaded to be played; nothing of it is played."""
    files = [path for path in (folder / SPEC, folder / DATA / SPEC) if path.is_file()]
    if folder / SPEC not in files:
        return
    said = {
        key: value
        for path in files
        for key, value in values_in(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
    }
    if any(key.endswith(".provider") and traits_of(value).needs_run for key, value in said.items()):
        return  # a replay plays only beside the run that it replays
    gone = [key for key, value in said.items() if key.endswith(".base_url") and value == NOT_PUBLISHED]
    own = [f"{key}={_OF_THEIR_OWN}" for key in gone if not key.startswith("sweep.")]
    try:
        for spec in load_specs(folder / SPEC, own):
            plan_of(spec)
    except NipRunError as error:
        for problem in error.problems if isinstance(error, SpecError) else (error,):
            yield f"{problem}; a reader cannot load it".replace(f"{folder}/", "")
