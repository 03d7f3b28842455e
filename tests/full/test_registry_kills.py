"""A publish with one of its writes, flushes or renames gone wrong, for each in turn; and every byte of it damaged.

The release has a file of 512 KiB, which is written in pieces of 64 KiB, and small ones. At each call in turn, the
publisher is killed with half of the bytes on the disk, or the call fails as on a full or a broken disk. After each
fault nothing half-written is visible, and the same publish finishes with the same bytes. Then one byte in 64 is flipped
in each file, in the manifest, its checksum and the reason of a yank; and the registry is copied file by file, in random
orders, while it is read.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.registry.transports.locations import connect
from tests.support.claims import Claims
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.publishing import bundle, states, whole
from tests.support.release_trees import snapshot
from tests.support.syscall_faults import FAULTS, Fault, count_kinds, fault_library

SIZE = 512 << 10
ORDERS = 20

PUBLISH = f"""
import sys
from runner.base.errors import NipRunError
from runner.registry.transports.locations import connect
from tests.support.publishing import bundle
try:
    with connect(sys.argv[1]) as registry:
        registry.publish([bundle("acme", "one", {SIZE})], "Publish")
except NipRunError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""


def test_a_publish_survives_every_fault_of_a_system_call(tmp_path: Path, claims: Claims, origin: Path) -> None:
    faults(claims, tmp_path, fault_library(tmp_path), released(origin))


def test_every_flipped_byte_of_a_release_is_found(tmp_path: Path, claims: Claims) -> None:
    flips(claims, tmp_path)


def test_a_registry_that_is_copied_file_by_file_is_read_as_whole_or_not_at_all(
    tmp_path: Path, claims: Claims, origin: Path
) -> None:
    copies(claims, tmp_path, origin)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A registry with one release."""
    with connect(str(tmp_path / "origin")) as registry:
        registry.publish([bundle("acme", "one", SIZE)], "Publish")
    return tmp_path / "origin"


def released(registry: Path) -> dict[str, str]:
    """All of a registry but what nobody reads."""
    return {path: held for path, held in snapshot(registry).items() if not path.startswith(".")}


def publish(where: Path, library: Path, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH, str(where)], cwd=ROOT, capture_output=True, text=True, check=False,
        env=environment(LD_PRELOAD=str(library), NIP_FAULT_FOLDER=str(where), **variables), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stderr


def faults(claims: Claims, here: Path, library: Path, wanted: dict[str, str]) -> None:
    log, undisturbed = here / "calls.log", here / "undisturbed"
    code, said = publish(undisturbed, library, NIP_FAULT_LOG=str(log))
    assert code == 0, said
    calls = log.read_text().splitlines()
    pieces = sum(call.startswith("write") and call.endswith("journal.jsonl") for call in calls)
    print(f"a publish makes {len(calls)} calls: {count_kinds(calls)}; {pieces} write the file of {SIZE >> 10} KiB")
    claims(pieces >= SIZE >> 16, "its pieces are of 64 KiB at most")
    for first, fault in enumerate(FAULTS):
        codes: Counter[int] = Counter()
        wrong = []
        for number in range(first, len(calls), len(FAULTS)):
            where = here / "disturbed"
            code, problem = disturbed(where, library, fault, number, wanted)
            codes[code] += 1
            wrong += [f"at call {number} ({calls[number]}): {problem}"] if problem else []
            shutil.rmtree(where)
        claims(
            not wrong,
            f"{fault.name}: at a fifth of {len(calls)} calls, exit codes {dict(codes)}, wrong {len(wrong)}",
        )
        print("".join(f"      {line}\n" for line in wrong[:3]), end="")


def disturbed(where: Path, library: Path, fault: Fault, number: int, wanted: dict[str, str]) -> tuple[int, str | None]:
    """The exit code of a publish with a fault, and what is wrong with what it leaves."""
    code, said = publish(where, library, NIP_FAULT_AT=str(number), **fault.variables)
    if code not in ((-signal.SIGKILL, 0) if fault.how == "kill" else (0, 1)) or "Traceback" in said:
        return code, f"exit {code}: {said[-300:]}"
    with connect(str(where)) as registry:
        half = [line for entry in registry.entries() for line in whole(registry, entry)]
    if half or (code == 0 and released(where) != wanted):
        return code, f"seen: {half or 'another release'}"
    again, said = publish(where, library)
    if again or released(where) != wanted:
        return code, f"the same publish again: exit {again} {said[-300:]}"
    left = list((where / ".incoming").iterdir())
    return code, f"left: {left}" if left and fault.how != "kill" and not fault.lasts else None


def flips(claims: Claims, here: Path) -> None:
    where = here / "flipped"
    with connect(str(where)) as registry:
        registry.publish([bundle("acme", "one", 64 << 10)], "Publish")
        registry.yank(registry.entries()[0].reference, "why it was yanked")
    root = where / "run" / "acme" / "one" / "1"
    tried, missed = 0, []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for at in range(0, len(data), 64):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            tried += 1
            with connect(str(where)) as registry:
                said = list(registry.find_problems(registry.entries()[0]))
            if not any(str(path.relative_to(root)) in line and "damaged" in line for line in said):
                missed.append((path.name, at))
        path.write_bytes(data)
    claims(tried and not missed, f"{tried} flipped bytes, of which {len(missed)} were not found {missed[:3]}")


def copies(claims: Claims, here: Path, origin: Path) -> None:
    files = [path.relative_to(origin) for path in sorted(origin.rglob("*")) if path.is_file()]
    seen: Counter[str] = Counter()
    for seed in range(ORDERS):
        order = random.Random(seed).sample(files, len(files))
        into = here / f"copy-{seed}"
        for _, entry, wrong in states(origin, into, order):
            seen[state(origin, into, entry is not None, wrong)] += 1
        shutil.rmtree(into)
    claims(
        not seen["half, and not said"] and seen["whole"] >= ORDERS, f"copied in {ORDERS} orders, by turns: {dict(seen)}"
    )


def state(origin: Path, into: Path, listed: bool, wrong: list[str]) -> str:
    if not listed:
        return "not listed"
    if wrong:
        return "said to be half"
    same = all((into / path).read_bytes() == (origin / path).read_bytes() for path in files_of(origin))
    return "whole" if same else "half, and not said"


def files_of(registry: Path) -> Iterator[Path]:
    return (path.relative_to(registry) for path in registry.rglob("*") if path.is_file())
