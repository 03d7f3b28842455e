"""Whether a release's name and version are free; and if not, in what the one that has them is another."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import NewerFormatError, ReleaseError
from runner.base.text import counted
from runner.documents.releases.bundle import Bundle
from runner.registry.check_notes import CheckNote
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.spec.origin import DATA

THERE_ALREADY = "it is there already, with the very same bytes"


def taken(registry: Registry, bundle: Bundle) -> Iterator[str]:
    """What hinders that it is published there, or a note where it is there already."""
    there = {entry.reference: entry for entry in registry.entries(bundle.release.kind)}
    found = there.get(bundle.release.reference)
    if found is None:
        return
    if found.sha256 == bundle.sha256:
        yield CheckNote(THERE_ALREADY)
        return
    yield (
        f"this differs from {found.reference} in {registry.where} (sha256:{found.sha256[:12]}) in "
        f"{_what_differs(registry, bundle, found)}, and a version never changes; give another with "
        "--as OWNER/NAME@VERSION"
    )


def _what_differs(registry: Registry, bundle: Bundle, found: ReleaseEntry) -> str:
    """What somebody said of it, if that differs, since files say it, too; else the files."""
    try:
        there, _ = registry.read(found)
    except (ReleaseError, NewerFormatError):
        return "its bytes"
    ours = bundle.release
    said = [
        f"its {name} (there {getattr(there, name) or 'none'}, here {getattr(ours, name) or 'none'})"
        for name in ("licence", "visibility", "description")
        if getattr(there, name) != getattr(ours, name)
    ]
    if said:
        return " and ".join(said)
    theirs, own = ({file.path: file.sha256 for file in one.files} for one in (there, ours))
    files = sorted(path for path in theirs | own if theirs.get(path) != own.get(path))
    if not files:
        return "what its manifest says"
    first = next((path for path in files if path.startswith(f"{DATA}/inputs/")), files[0])
    return first if len(files) == 1 else f"{first} and {counted(len(files) - 1, 'more file')}"
