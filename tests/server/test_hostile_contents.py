"""What must not be read as it says, in uploads that are whole otherwise: checked in bounds, refused or harmless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import httpx2
import pytest

from runner.documents.releases.bundle import Bundle
from tests.registry.hostile_contents import ALIASES, MERGES, ROWS
from tests.server.test_uploads import folders
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import run_bundle

pytestmark = pytest.mark.full

JOURNAL = "data/journal.jsonl"
WHERE = {
    "spec": "data/spec.yaml", "template": "data/inputs/prompts/verifier.jinja", "journal": JOURNAL,
    "protocol": "data/inputs/protocol.yaml", "dataset": "data/inputs/dataset.jsonl",
}  # fmt: skip
"""By the kind of a row of the table, the file of a run that is read as such."""
AT_ONCE = 8
"""Releases of one upload: fewer than what is told of problems has room for."""
SECONDS = HANG_SECONDS
"""For the check of so many, on a machine that is busy; what takes as long as that is refused in other words."""


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


WORDS = ("README.md", "croissant.json")
"""What a run has beside `data/` that is the publisher's word: nothing is computed from it."""


@dataclass(frozen=True)
class PopulatedServer:
    """A server that has a good run, and who published it."""

    server: ServerProcess
    acme: RawUploadClient
    good: Bundle

    def contents(self) -> dict[str, bytes]:
        return {path: data for path, data in self.good.contents.items() if isinstance(data, bytes)}

    def page(self, name: str) -> int:
        """How the page of a run answers."""
        return httpx2.get(f"{self.server.address}/run/acme/{name}/1", timeout=HANG_SECONDS, trust_env=False).status_code

    def bundle(self, name: str, changes: Mapping[str, bytes]) -> Bundle:
        """The run with other files, under a name of its own."""
        return Bundle.of(replace(self.good.release, name=name), {**self.contents(), **changes})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopulatedServer]:
    root = tmp_path_factory.mktemp("contents")
    (root / "played").mkdir()
    bundle = run_bundle(root / "played", size=4)
    good = Bundle(bundle.release, {path: _bytes(content) for path, content in bundle.contents.items()})
    words = "--rate", "0", "--check-seconds", str(SECONDS), "--check-memory", "1024"
    with (
        run_server(root / "server", *words) as server,
        RawUploadClient(server.address, server.create_token("acme")) as acme,
    ):
        said = acme.publish(folders(good))
        assert said["state"] == "published", said
        yield PopulatedServer(server, acme, good)


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _called(key: str) -> tuple[str, str]:
    """How a line begins that is about one release."""
    return f"run/acme/{key}/1", f"run/acme/{key}@1"


def harmless(place: PopulatedServer, uploads: Mapping[str, Mapping[str, bytes]], prefix: str) -> list[str]:
    """Those that are published; the others are refused in words. The server grows by nothing, and goes on."""
    seen: list[str] = []
    names = {f"{prefix}-{number}": name for number, name in enumerate(uploads)}
    before = 0
    for at in range(0, len(names), AT_ONCE):
        some = list(names.items())[at : at + AT_ONCE]
        left = {key: place.bundle(key, uploads[name]) for key, name in some}
        while left:
            said = place.acme.publish(folders(*left.values()))
            if said["state"] == "published":
                break
            told = said["problems"]
            assert said["state"] == "refused", said
            assert "takes longer" not in str(told)
            assert str(place.server.folder) not in str(told)
            assert all(len(line) < 2_000 for line in told)
            wrong = {key for key in left if any(line.startswith(_called(key)) for line in told)}
            assert wrong, told
            assert all(any(line.startswith(_called(key)) for key in wrong) for line in told), told
            left = {key: bundle for key, bundle in left.items() if key not in wrong}
        seen += [names[key] for key in left]
        before = before or place.server.resident_bytes()  # what it takes for its first check stays
    assert place.server.resident_bytes() - before < 40 << 20
    assert '"level": "error"' not in place.server.log
    assert "Traceback" not in place.server.log
    assert not list((place.server.folder / "incoming").iterdir())
    for name in seen:
        key = next(key for key, found in names.items() if found == name)
        wait_until(lambda key=key: place.page(key) not in (404, 503))  # type: ignore[misc]
        assert place.page(key) == 200
    return seen


def test_contents_that_must_not_be_read_as_they_say_are_refused(place: PopulatedServer) -> None:
    uploads = {}
    for row in ROWS:
        kind = row.name.partition(":")[0]
        uploads[row.name] = {WHERE[kind]: next(iter(row.files.values()))}
    assert len(uploads) == len(ROWS) > 130
    assert harmless(place, uploads, "table") == []


@pytest.mark.parametrize("name", REPLACED)
def test_a_run_of_which_one_file_is_another_is_refused_or_harmless(place: PopulatedServer, name: str) -> None:
    uploads = {path: {path: REPLACED[name]} for path, data in place.contents().items() if data}
    seen = harmless(place, uploads, f"r{list(REPLACED).index(name)}")
    words = {*WORDS, "environment.lock"} if name == "nothing" else set(WORDS)
    assert not [path for path in seen if path not in words and not path.startswith("written/")]


def test_what_stands_behind_a_journal_is_refused(place: PopulatedServer) -> None:
    journal = place.contents()[JOURNAL]
    uploads = {name: {JOURNAL: journal + (data or journal * 300)} for name, data in ADDED.items()}
    assert harmless(place, uploads, "journal") == []
