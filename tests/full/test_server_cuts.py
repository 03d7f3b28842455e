"""A publish to a server with the connection cut for good at each of its requests and answers, and every 64 KiB.

What is published is a release with a file of 400 KiB and small ones, through a TCP proxy that cuts all connections once
so many bytes have passed, and lets nobody through. The publisher gives up; what is then seen is nothing or all of it.
With the way mended the same publish finishes: one release, with the same hash. Then the command line, with a played
run, cut at some places and let through again at once: it goes on by itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from runner.base.errors import NipRunError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.registry import Registry
from runner.registry.transports.timeouts import Timeouts
from tests.support.claims import Claims
from tests.support.cutting import Proxy, cutting
from tests.support.played import played_release
from tests.support.postgresql import cluster
from tests.support.processes import nip_run
from tests.support.serving import Served, publishing_to, serving

HASTY = Timeouts(connect=2, read=10, tries=1, wait=0.01, longest_wait=0.02, stall=0.05, first_check_wait=0.02)
CALM = Timeouts(wait=0.05, first_check_wait=0.02)
SIZE = 400 << 10
EACH = 64 << 10
COMMANDS = 6


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_a_publish_whose_connection_is_cut_is_all_or_nothing(
    tmp_path: Path, claims: Claims, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        cluster() as made,
        serving(tmp_path / "server", database=made() if database == "PostgreSQL" else None, people=False) as server,
        cutting(server.port) as proxy,
    ):
        monkeypatch.setenv("NIP_RUN_REGISTRY", proxy.address)
        monkeypatch.setenv("NIP_RUN_TOKEN", server.account("acme"))
        cut_for_good(claims, proxy)
        by_command(claims, tmp_path, server, proxy, COMMANDS)


def made(name: str) -> Bundle:
    release = Release(kind=Kind.DATASET, owner="acme", name=name, version="1")
    large = (name.encode() + bytes(range(256))) * (SIZE // 260)
    small = {f"part{n}.json": b'{"n": %d, "of": "%s"}\n' % (n, name.encode()) for n in range(3)}
    return Bundle.of(release, {"large.txt": large, "empty.txt": b"", **small})


def publish(where: str, bundle: Bundle, patience: Timeouts) -> str | None:
    """What went wrong; None where nothing did."""
    try:
        with Registry(HttpTransport(where, timeouts=patience)) as registry:
            registry.publish([bundle], "Publish")
    except NipRunError as error:
        return str(error)
    return None


def seen(where: str, bundle: Bundle) -> tuple[list[str], list[str]]:
    """The hashes of what is seen of a release, and what is wrong with it."""
    with Registry(HttpTransport(where, timeouts=CALM)) as registry:
        entries = [entry for entry in registry.entries() if entry.reference == bundle.release.reference]
        return [entry.sha256 for entry in entries], [
            line for entry in entries for line in registry.find_problems(entry)
        ]


def cut_for_good(claims: Claims, proxy: Proxy) -> None:
    errors, sent, marks = shortest(proxy)
    points = []
    for way in ("up", "down"):
        ends = set(marks[way]) | {marks[way][0] // 2}
        small = {end for end in ends if end % EACH and end < sent[way]}
        if way == "up":  # within the large file by 64 KiB alone
            small = {end for end in small if not _within_large(marks["up"], end)}
        points += [(way, at) for at in sorted(small | set(range(EACH, sent[way], EACH)))]
    claims(not errors and len(points) > 40, f"a publish sends {sent}; it is cut at {len(points)} places {errors}")
    left: Counter[str] = Counter()
    wrong, cuts = [], proxy.cuts
    for number, (way, at) in enumerate(points, 1):
        bundle = made(f"n{number:04}")
        proxy.cut_after(way, at, for_good=True)
        said = publish(proxy.address, bundle, HASTY)
        proxy.mend()
        there, half = seen(proxy.address, bundle)
        left["all" if there else "nothing"] += 1
        again = publish(proxy.address, bundle, CALM)
        ended, damaged = seen(proxy.address, bundle)
        lost = said is None and there != [bundle.sha256]
        if there not in ([], [bundle.sha256]) or lost or half or again or ended != [bundle.sha256] or damaged:
            wrong.append(f"{way} {at}: {said}; left {there} {half}; again {again}: {ended} {damaged}")
    cuts = proxy.cuts - cuts
    claims(not wrong, f"cut for good at {cuts} places: left {dict(left)}, and the same publish finished")
    # How often it asks what became of it differs, so that some of the last places are behind its end.
    claims(cuts > 0.6 * len(points), f"{len(points) - cuts} places were behind the end of a publish")
    print("".join(f"      {line[:600]}\n" for line in wrong[:5]), end="")


def shortest(proxy: Proxy) -> tuple[list[str], dict[str, int], dict[str, list[int]]]:
    """Of a few publishes, the one that asked least often what became of it: nearly all others come as far.

    What went wrong with any, the bytes of that one, and where its requests and answers end.
    """
    wrong, found = [], []
    for number in range(5):
        proxy.mend()
        said = publish(proxy.address, made(f"s{number:04}"), CALM)
        wrong += [said] if said else []
        found.append((proxy.sent["up"], number, proxy.sent, proxy.marks))
    _, _, sent, marks = min(found)
    return wrong, sent, marks


def _within_large(marks: list[int], end: int) -> bool:
    at = marks.index(end) if end in marks else -1
    return 0 < at < len(marks) - 1 and marks[at] - marks[at - 1] == 1 << 14 == marks[at + 1] - marks[at]


def by_command(claims: Claims, here: Path, server: Served, proxy: Proxy, times: int) -> None:
    """Each time as another account, in private: what others have sent is not known to it, and all is sent anew."""
    (here / "work").mkdir()
    played_release(here / "work")

    def command(number: int) -> tuple[int, str]:
        variables = {"NIP_RUN_REGISTRY": proxy.address, "NIP_RUN_TOKEN": server.account(f"group{number}")}
        words = ("publish", "one", "--as", f"group{number}/one@1", "--private", "--licence", "MIT", "--force")
        done = nip_run(*words, cwd=here / "work", timeout=300, **variables)
        return done.returncode, done.stderr

    proxy.mend()
    code, said = command(0)
    claims(code == 0, f"a run is published by the command line: {proxy.sent} {'' if code == 0 else said[-300:]}")
    sent, cuts, wrong = proxy.sent["up"], proxy.cuts, []
    for number in range(times):
        proxy.cut_after("up", sent * (number + 1) // (times + 1))
        code, said = command(number + 1)
        if code:
            wrong.append(said[-300:])
    there = [len(_listed(server, f"group{number}")) for number in range(times + 1)]
    claims(
        not wrong and proxy.cuts - cuts == times and there == [1] * (times + 1),
        f"cut {proxy.cuts - cuts} times on the way, the command goes on by itself; each run is there once {wrong[:2]}",
    )


def _listed(server: Served, owner: str) -> list[str]:
    """The releases of an account, as it sees them; it sees those that others made public, too."""
    with publishing_to(server, server.account(owner)) as where, Registry(HttpTransport(where)) as registry:
        return [str(entry.reference) for entry in registry.entries() if entry.reference.owner == owner]
