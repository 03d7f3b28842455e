"""`nip-run serve`: how it starts, says where it is, and ends."""

from __future__ import annotations

from runner.releases.reference import Kind
from tests.support.registries import bundle
from tests.support.serving import Served


def test_what_one_publishes_another_reads(served: Served) -> None:
    served.publish("alice", bundle("council", kind=Kind.DATASET))
    with served.registry() as registry:
        (entry,) = registry.entries()
        assert not list(registry.wrong(entry))
