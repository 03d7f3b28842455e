"""What must not be read as it says, in uploads that are whole otherwise: checked in bounds, refused or harmless."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import pytest

from runner.releases.bundle import Bundle
from tests.registry.hostile_contents import ALIASES, MERGES, ROWS
from tests.server.test_uploads import folders
from tests.support.raw_uploads import Raw
from tests.support.registry_server import RegistryServer, running
from tests.support.served import run_bundle

JOURNAL = "data/journal.jsonl"
WHERE = {
    "spec": "data/spec.yaml", "template": "data/inputs/prompts/verifier.jinja", "journal": JOURNAL,
    "protocol": "data/inputs/protocol.yaml", "dataset": "data/inputs/dataset.jsonl",
}  # fmt: skip
"""By the kind of a row of the table, the file of a run that is read as such."""
SECONDS = 20.0
"""For one check, on a machine that is busy."""


def line(said: bytes) -> bytes:
    """A line of a journal whose checksum is right."""
    return b"%08x %s\n" % (crc32(said), said)


REPLACED: Mapping[str, bytes] = {
    "nothing": b"",
    "100,000 brackets": b"[" * 100_000,
    "a JSON document that is deep": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
    "aliases": ALIASES.encode(),
    "merges": MERGES.encode(),
    "one line": b'"' + b"x" * (8 << 20) + b'"',
    "many lines": b"1\n" * (1 << 20),
    "a number of 200,000 digits": b"9" * 200_000,
    "NaN": b'{"a": NaN, "b": Infinity, "c": 1e999}\n',
    "no UTF-8": b"\xff\xfe\x00" * 1_000,
    "halves of characters": b'{"a": "\\ud800"}\n',
    "zeros": bytes(48 << 20),
}
"""In place of each file of a run."""
ADDED: Mapping[str, bytes] = {
    "brackets": line(b"[" * 100_000), "half a line": b"00000000 {", "zeros": bytes(16 << 20),
    "records of nothing": line(b'{"kind":"nothing"}') * 200_000,
    "a record of 16 MiB": line(b'"' + b"x" * (16 << 20) + b'"'),
    "the whole journal 300 times": b"",
    "NaN": line(b'{"kind":"rollout","x":NaN}'),
}  # fmt: skip
"""Behind the journal of a run."""


@dataclass(frozen=True)
class Place:
    """A server that has a good run, and who published it."""

    server: RegistryServer
    acme: Raw
    good: Bundle

    def contents(self) -> dict[str, bytes]:
        return {path: data for path, data in self.good.contents.items() if isinstance(data, bytes)}

    def upload(self, name: str, changes: Mapping[str, bytes]) -> tuple[str, str]:
        """What becomes of the run with other files under a name of its own: its state, and what is wrong with it."""
        bundle = Bundle.of(replace(self.good.release, name=name), {**self.contents(), **changes})
        begun = time.monotonic()
        said = self.acme.published(folders(bundle))
        assert time.monotonic() - begun < SECONDS, name
        return str(said["state"]), "; ".join(said["problems"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("contents")
    (root / "played").mkdir()
    bundle = run_bundle(root / "played", size=4)
    good = Bundle(bundle.release, {path: _bytes(content) for path, content in bundle.contents.items()})
    with (
        running(root / "server", rate=0, check_seconds=SECONDS, check_bytes=1 << 30) as server,
        Raw(server.address, server.account("acme")) as acme,
    ):
        said = acme.published(folders(good))
        assert said["state"] == "published", said
        yield Place(server, acme, good)


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def judged(place: Place, uploads: Sequence[tuple[str, Mapping[str, bytes]]], taken: Sequence[str] = ()) -> None:
    """Each is refused in words, but those that are `taken`; the server grows by nothing, and answers."""
    wrong, seen = {}, []
    before = place.server.resident()
    for number, (name, changes) in enumerate(uploads):
        state, told = place.upload(f"x{abs(hash(name)) % 10**9}-{number}", changes)
        if state == "published":
            seen.append(name)
        elif state != "refused" or not 10 < len(told) < 8_000 or str(place.server.folder) in told or "77" in told:
            wrong[name] = state, told[:300]
    print(seen)
    assert wrong == {}
    assert place.server.resident() - before < 40 << 20
    assert '"level": "error"' not in place.server.log()
    assert "Traceback" not in place.server.log()
    assert not list((place.server.folder / "incoming").iterdir())
    assert place.acme.client.get("/tree").status_code == 200


@pytest.mark.full
def test_the_table_of_contents(place: Place) -> None:
    judged(place, [(row.name, {WHERE[kind]: data}) for row in ROWS for kind, data in _of(row.name, row.files)])


def _of(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    kind = name.partition(":")[0]
    yield kind, next(iter(files.values()))


@pytest.mark.full
@pytest.mark.parametrize("name", REPLACED)
def test_each_file_replaced(place: Place, name: str) -> None:
    judged(place, [(path, {path: REPLACED[name]}) for path in place.contents() if place.contents()[path]])


@pytest.mark.full
def test_what_stands_behind_the_journal(place: Place) -> None:
    journal = place.contents()[JOURNAL]
    judged(place, [(name, {JOURNAL: journal + (data or journal * 300)}) for name, data in ADDED.items()])
