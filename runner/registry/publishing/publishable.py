"""Find obstacles to publishing a run, quickly and without reading its records, for the list of publishable runs."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import RunError
from runner.registry.bundles.run_facts import sources_of_manifest, unpinned_reasons
from runner.registry.check_notes import CheckNote
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status


def find_obstacles(folder: RunFolder, manifest: Manifest) -> Iterator[str]:
    """Yield the obstacles to publishing a run, and notes as `CheckNote`. Only the manifest and file names are read."""
    if manifest.shard is not None:
        yield f"shard {manifest.shard} of a run; merge the shards first"
    if manifest.is_tournament:
        yield "a tournament; publish the runs of its pairings"
    if manifest.status not in PLAYED:
        yield "being played" if manifest.status == Status.RUNNING else f"{manifest.status}: not finished"
    elif manifest.status == Status.INCOMPLETE:
        yield CheckNote("incomplete, and marked as such")
    log = folder.stage_log if manifest.has_parts else folder.journal
    missing = [path.name for path in (folder.spec, log, folder.metrics) if not path.is_file()]
    if missing and manifest.status in PLAYED:
        yield f"missing files: {', '.join(missing)}"
    try:
        sources = sources_of_manifest(manifest)
    except RunError as error:
        yield str(error)
        return
    for line in unpinned_reasons(sources):
        part, _, reason = line.partition(";")[0].partition(": ")
        if part in sources and sources[part].repository is not None:
            yield f"{part}: {reason} (--force publishes it as not pinned)"
        else:
            yield CheckNote(f"not pinned: {line.partition(';')[0]}")
