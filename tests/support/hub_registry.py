"""Small releases, and a registry on a local Hub with short timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.hub import HubTransport
from runner.registry.transports.registry import Registry
from runner.registry.transports.timeouts import Timeouts

SHORT_TIMEOUTS = Timeouts(connect=2.0, read=1.0, tries=2, wait=0.01, answer_bytes=1 << 20, answer_seconds=5.0)
REPOSITORY = "acme/registry"
NO_FAULTS: dict[str, Any] = {
    "mode": "",
    "only": "",
    "status": 0,
    "retry_after": "",
    "busy": 0,
    "conflicts": 0,
    "slow_commit": 0.0,
}


def bundle(name: str = "first", version: str = "1", content: bytes = b'{"a": 1}\n', **facts: Any) -> Bundle:
    """Return a release with a small file, an empty one, and two large equal ones, which are stored in Git LFS."""
    release = Release(kind=Kind.RUN, owner="acme", name=name, version=version, **facts)
    large = b"".join(b"%d\n" % n for n in range(5_000))
    files = {"spec.yaml": content, "data/empty.txt": b"", "data/one.jsonl": large, "data/two.jsonl": large}
    return Bundle.of(release, files)


@contextmanager
def registry(place: str, **options: Any) -> Iterator[Registry]:
    with Registry(HubTransport(place, **{"timeouts": SHORT_TIMEOUTS, **options})) as opened:
        yield opened
