"""Check before a publish that a release's name and version are free; if not, describe how the two releases differ."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import NewerFormatError, ReleaseError
from runner.base.text import counted
from runner.documents.releases.bundle import Bundle
from runner.registry.check_notes import CheckNote
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.spec.origin import DATA

ALREADY_PUBLISHED = "this release is already in the registry, with the same bytes"


def find_name_conflict(registry: Registry, bundle: Bundle) -> Iterator[str]:
    """Yield a message if a different release has this name and version, or a note if the same release has them."""
    entries = {entry.reference: entry for entry in registry.entries(bundle.release.kind)}
    published = entries.get(bundle.release.reference)
    if published is None:
        return
    if published.sha256 == bundle.sha256:
        yield CheckNote(ALREADY_PUBLISHED)
        return
    yield (
        f"{registry.address} already has another {published.reference} (sha256:{published.sha256[:12]}), which differs "
        f"from this release in {_describe_difference(registry, bundle, published)}. A version never changes, so give "
        "another version with --as OWNER/NAME@VERSION"
    )


def _describe_difference(registry: Registry, bundle: Bundle, entry: ReleaseEntry) -> str:
    """Describe the terms (license, visibility, description) that differ; if they are equal, the files that differ."""
    try:
        published, _ = registry.read_manifest(entry)
    except (ReleaseError, NewerFormatError):
        return "its bytes"
    new = bundle.release
    terms = [
        f"its {name} (published {getattr(published, name) or 'none'}, here {getattr(new, name) or 'none'})"
        for name in ("licence", "visibility", "description")
        if getattr(published, name) != getattr(new, name)
    ]
    if terms:
        return " and ".join(terms)
    published_files, new_files = ({file.path: file.sha256 for file in release.files} for release in (published, new))
    files = sorted(path for path in published_files | new_files if published_files.get(path) != new_files.get(path))
    if not files:
        return "its manifest"
    first = next((path for path in files if path.startswith(f"{DATA}/inputs/")), files[0])
    return first if len(files) == 1 else f"{first} and {counted(len(files) - 1, 'more file')}"
