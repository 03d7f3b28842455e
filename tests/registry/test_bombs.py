"""Contents that expand when they are read are refused by a process with limited memory and time."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.registry.hostile_contents import ALIASES, GOOD, MERGES
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.release_trees import ReleaseTree, file_entry, manifest_bytes, snapshot_folder

MEGABYTES = 700
SECONDS = 20

GET = """
import sys
from pathlib import Path
from runner.base.errors import NipRunError
from runner.documents.releases.reference import Kind, Reference
from runner.registry.transports.locations import connect
for name in sys.argv[2:]:
    folder = Path(sys.argv[1]) / name
    try:
        with connect(f"file:{folder}/registry") as registry:
            registry.unpack(registry.find(Reference(Kind.RUN, "acme", "tiny", "1")), folder / "got")
        from runner.spec.loader import load_spec
        load_spec(folder / "got" / "spec.yaml")
    except NipRunError as error:
        print(name, str(error)[:200].replace("\\n", " "))
    else:
        print(name, "TAKEN")
"""


def _write_spec(text: str) -> Callable[[Path], object]:
    return lambda registry: ReleaseTree(registry, files={**GOOD, "spec.yaml": text.encode()}).write()


def _write_manifest(data: bytes) -> Callable[[Path], object]:
    return lambda registry: ReleaseTree(registry, manifest=data).write()


def _write_sparse(registry: Path, name: str, size: int = 1 << 40) -> None:
    """Extend a file to a terabyte that takes no disk space."""
    folder = ReleaseTree(registry).write() / "run/acme/tiny/1"
    with (folder / name).open("ab") as file:
        file.truncate(size)


def _write_many_files(registry: Path) -> None:
    """Write 2,000 files that are not part of the release."""
    folder = (
        ReleaseTree(registry, files=dict(GOOD) | {"spec.yaml": b"[" * 100_000}).write() / "run/acme/tiny/1/signature"
    )
    folder.mkdir()
    for number in range(2_000):
        (folder / str(number)).touch()


DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(100):
    os.mkdir("d" * 60)
    os.chdir("d" * 60)
"""


def _write_deep_tree(registry: Path) -> None:
    """Create a folder tree that is deeper than the longest path."""
    ReleaseTree(registry, files=dict(GOOD) | {"spec.yaml": b"- 1"}).write()
    subprocess.run([sys.executable, "-S", "-c", DEEP, registry / "run" / "acme" / "tiny"], check=True)


def _declare_missing_bytes(registry: Path) -> None:
    """Declare four gigabytes for a file of a few bytes."""
    ReleaseTree(registry, changes={"files": [file_entry("README.md", b"hello\n", size=4 << 30)]}).write()


BOMBS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "aliases": (_write_spec(ALIASES), "anchors (&a0)"),
    "merges": (_write_spec(MERGES), "anchors (&a0)"),
    "brackets": (_write_spec("[" * 200_000), "nested deeper"),
    "braces": (_write_spec("{a: " * 60_000), "nested deeper"),
    "numbers": (_write_spec("seed: " + "9" * 200_000), "a number of 200000 characters"),
    "deep-manifest": (_write_manifest(b"[" * 1_000_000), "release.json is damaged"),
    "wide-manifest": (_write_manifest(b'{"a":[' + b"1," * 500_000 + b"1]}"), "its format cannot be None"),
    "long-manifest": (_write_manifest(b'"' + b"x" * 1_040_000 + b'"'), "not an object"),
    "2001-files": (
        lambda registry: ReleaseTree(
            registry, changes={"files": [file_entry(f"f{n:06}", b"") for n in range(2_001)]}
        ).write(),
        "2001 files; at most 2000",
    ),
    "many-names": (
        lambda registry: ReleaseTree(registry, manifest=manifest_bytes({f"k{n}": n for n in range(30_000)})).write(),
        "its format cannot be None",
    ),
    "sparse-manifest": (lambda registry: _write_sparse(registry, "release.json"), "larger than 1,048,576 bytes"),
    "sparse-checksum": (lambda registry: _write_sparse(registry, "release.sha256"),
                        "release.sha256 is larger than 1,000"),
    "sparse-file": (lambda registry: _write_sparse(registry, "README.md"), "longer than the 6 bytes"),
    "said-and-not-there": (_declare_missing_bytes, "has 6 of 4,294,967,296 bytes"),
    "many-files": (_write_many_files, "nested deeper"),
    "deep-tree": (_write_deep_tree, "a mapping"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("bombs")
    for name, (make, _) in BOMBS.items():
        make(folder / name / "registry")
    yield folder
    subprocess.run(["rm", "-rf", folder / "deep-tree"], check=True)  # too deep for shutil.rmtree


def _limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # no large file is written


@pytest.mark.gate
def test_every_bomb_is_refused_within_memory_and_time(bombs: Path) -> None:
    names = list(BOMBS)
    before = {path.name for path in bombs.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", GET, str(bombs), *names], cwd=ROOT, env=environment(), capture_output=True, text=True,
        check=False, timeout=HANG_SECONDS, preexec_fn=_limit_process, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    messages = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {name: message for name, (_, message) in BOMBS.items() if message not in messages[name]} == {}
    assert {path.name for path in bombs.iterdir()} == before
    assert not list((bombs / "sparse-file").glob(".nip-run-*"))
    assert snapshot_folder(bombs / "said-and-not-there").keys() == {"registry", *(f"registry/{path}" for path in (
        "run", "run/acme", "run/acme/tiny", "run/acme/tiny/1", "run/acme/tiny/1/README.md", "run/acme/tiny/1/data",
        "run/acme/tiny/1/data/a.txt", "run/acme/tiny/1/release.json", "run/acme/tiny/1/release.sha256",
    ))}  # fmt: skip
