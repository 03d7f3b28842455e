"""Uploads with one hostile file: the check stays within its limits, and the upload is refused or harmless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import httpx2
import pytest

from runner.documents.releases.bundle import Bundle
from tests.registry.hostile_contents import ALIASES, MERGES, ROWS
from tests.server.test_uploads import contents_by_folder
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import run_bundle

pytestmark = pytest.mark.full

JOURNAL = "data/journal.jsonl"
FILE_BY_KIND = {
    "spec": "data/spec.yaml", "template": "data/inputs/prompts/verifier.jinja", "journal": JOURNAL,
    "protocol": "data/inputs/protocol.yaml", "dataset": "data/inputs/dataset.jsonl",
}  # fmt: skip
"""The file of a run that each kind of hostile content replaces."""
BATCH_SIZE = 8
"""Releases per upload: few enough that the list of problems is not truncated."""
CHECK_SECONDS = HANG_SECONDS
"""Time limit for checking one batch; a check that exceeds it is refused with a different message."""


def make_journal_line(record: bytes) -> bytes:
    """Return a journal line with a valid checksum."""
    return b"%08x %s\n" % (crc32(record), record)


REPLACEMENTS: Mapping[str, bytes] = {
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
"""Contents that replace each file of a run."""
APPENDED: Mapping[str, bytes] = {
    "brackets": make_journal_line(b"[" * 100_000), "half a line": b"00000000 {", "zeros": bytes(16 << 20),
    "records of nothing": make_journal_line(b'{"kind":"nothing"}') * 200_000,
    "a record of 16 MiB": make_journal_line(b'"' + b"x" * (16 << 20) + b'"'),
    "the whole journal 300 times": b"",
    "NaN": make_journal_line(b'{"kind":"rollout","x":NaN}'),
}  # fmt: skip
"""Bytes appended to the journal of a run."""


PUBLISHER_TEXTS = ("README.md", "croissant.json")
"""Files outside `data/` that the publisher writes freely; nothing is computed from them."""


@dataclass(frozen=True)
class PopulatedServer:
    """A server with a valid run, and the client that published it."""

    server: ServerProcess
    acme: RawUploadClient
    good: Bundle

    def contents(self) -> dict[str, bytes]:
        return {path: data for path, data in self.good.contents.items() if isinstance(data, bytes)}

    def page(self, name: str) -> int:
        """Return the status code of a run's page."""
        return httpx2.get(f"{self.server.address}/run/acme/{name}/1", timeout=HANG_SECONDS, trust_env=False).status_code

    def bundle(self, name: str, changed_files: Mapping[str, bytes]) -> Bundle:
        """Return a copy of the run with another name and changed files."""
        return Bundle.of(replace(self.good.release, name=name), {**self.contents(), **changed_files})


@pytest.fixture(scope="module")
def populated_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopulatedServer]:
    root = tmp_path_factory.mktemp("contents")
    (root / "played").mkdir()
    built = run_bundle(root / "played", size=4)
    good = Bundle(built.release, {path: read_content(content) for path, content in built.contents.items()})
    options = "--rate", "0", "--check-seconds", str(CHECK_SECONDS), "--check-memory", "1024"
    with (
        run_server(root / "server", *options) as server,
        RawUploadClient(server.address, server.create_token("acme")) as acme,
    ):
        result = acme.publish(contents_by_folder(good))
        assert result["state"] == "published", result
        yield PopulatedServer(server, acme, good)


def read_content(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def problem_prefixes(key: str) -> tuple[str, str]:
    """Return the prefixes of problem messages about one release."""
    return f"run/acme/{key}/1", f"run/acme/{key}@1"


def publish_hostile(
    populated_server: PopulatedServer, uploads: Mapping[str, Mapping[str, bytes]], name_prefix: str
) -> list[str]:
    """Publish all uploads and return the names of accepted ones; check that the server refuses the rest cleanly."""
    published: list[str] = []
    names = {f"{name_prefix}-{number}": name for number, name in enumerate(uploads)}
    baseline = 0
    for start in range(0, len(names), BATCH_SIZE):
        batch = list(names.items())[start : start + BATCH_SIZE]
        remaining = {key: populated_server.bundle(key, uploads[name]) for key, name in batch}
        while remaining:
            result = populated_server.acme.publish(contents_by_folder(*remaining.values()))
            if result["state"] == "published":
                break
            problems = result["problems"]
            assert result["state"] == "refused", result
            assert "takes longer" not in str(problems)
            assert str(populated_server.server.folder) not in str(problems)
            assert all(len(problem) < 2_000 for problem in problems)
            refused = {
                key for key in remaining if any(problem.startswith(problem_prefixes(key)) for problem in problems)
            }
            assert refused, problems
            assert all(any(problem.startswith(problem_prefixes(key)) for key in refused) for problem in problems), (
                problems
            )
            remaining = {key: bundle for key, bundle in remaining.items() if key not in refused}
        published += [names[key] for key in remaining]
        baseline = baseline or populated_server.server.resident_bytes()  # the memory of the first check stays allocated
    assert populated_server.server.resident_bytes() - baseline < 40 << 20
    assert '"level": "error"' not in populated_server.server.log
    assert "Traceback" not in populated_server.server.log
    assert not list((populated_server.server.folder / "incoming").iterdir())
    for name in published:
        key = next(key for key, upload_name in names.items() if upload_name == name)
        wait_until(lambda key=key: populated_server.page(key) not in (404, 503))  # type: ignore[misc]
        assert populated_server.page(key) == 200
    return published


def test_hostile_file_contents_are_refused(populated_server: PopulatedServer) -> None:
    changed_files = {}
    for row in ROWS:
        kind = row.name.partition(":")[0]
        changed_files[row.name] = {FILE_BY_KIND[kind]: next(iter(row.files.values()))}
    assert len(changed_files) == len(ROWS) > 130
    assert publish_hostile(populated_server, changed_files, "table") == []


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_run_with_one_replaced_file_is_refused_or_harmless(populated_server: PopulatedServer, name: str) -> None:
    uploads = {path: {path: REPLACEMENTS[name]} for path, data in populated_server.contents().items() if data}
    published = publish_hostile(populated_server, uploads, f"r{list(REPLACEMENTS).index(name)}")
    harmless_paths = {*PUBLISHER_TEXTS, "environment.lock"} if name == "nothing" else set(PUBLISHER_TEXTS)
    assert not [path for path in published if path not in harmless_paths and not path.startswith("written/")]


def test_data_appended_to_a_journal_is_refused(populated_server: PopulatedServer) -> None:
    journal = populated_server.contents()[JOURNAL]
    uploads = {name: {JOURNAL: journal + (data or journal * 300)} for name, data in APPENDED.items()}
    assert publish_hostile(populated_server, uploads, "journal") == []
