"""Publishes over a connection that is cut after each request and response, and every 64 KiB.

The tests publish through a TCP proxy. After the cut, the proxy either refuses all connections until it is
repaired, or accepts the next connection at once.
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
from tests.support.cutting_proxy import CuttingProxy, run_cutting_proxy
from tests.support.postgresql import run_postgresql
from tests.support.processes import nip_run
from tests.support.run_releases import play_and_publish
from tests.support.server_process import ServerProcess, registry_environment, run_server
from tests.support.soft_assertions import SoftAssertions

WITHOUT_RETRY = Timeouts(connect=2, read=10, tries=1, wait=0.01, longest_wait=0.02, stall=0.05, first_check_wait=0.02)
WITH_RETRIES = Timeouts(wait=0.05, first_check_wait=0.02)
LARGE_FILE_BYTES = 400 << 10
CUT_INTERVAL = 64 << 10
COMMANDS = 6


@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_publish_with_a_cut_connection_publishes_all_or_nothing(
    tmp_path: Path, check: SoftAssertions, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        run_postgresql() as create_database,
        run_server(
            tmp_path / "server", database=create_database() if database == "PostgreSQL" else None, people=False
        ) as server,
        run_cutting_proxy(server.port) as proxy,
    ):
        monkeypatch.setenv("NIP_RUN_REGISTRY", proxy.address)
        monkeypatch.setenv("NIP_RUN_TOKEN", server.create_token("acme"))
        check_publishes_cut_permanently(check, proxy)
        check_commands_cut_once(check, tmp_path, server, proxy)


def check_publishes_cut_permanently(check: SoftAssertions, proxy: CuttingProxy) -> None:
    """Cut a publish at every point. Its release must be complete or absent, and a second publish must succeed."""
    errors, sent, marks = record_shortest_publish(proxy)
    points = choose_cut_points(sent, marks)
    check(
        not errors and len(points) > 40,
        f"a publish without cuts sends {sent}; it is then cut at {len(points)} points {errors}",
    )
    results: Counter[str] = Counter()
    failures, cuts_before = [], proxy.cuts
    for number, (direction, position) in enumerate(points, 1):
        bundle = make_bundle(f"n{number:04}")
        proxy.cut_after(direction, position, for_good=True)
        error = publish(proxy.address, bundle, WITHOUT_RETRY)
        proxy.stop_cutting()
        hashes, problems = read_release(proxy.address, bundle)
        results["all" if hashes else "nothing"] += 1
        second_error = publish(proxy.address, bundle, WITH_RETRIES)
        final_hashes, final_problems = read_release(proxy.address, bundle)
        is_lost = error is None and hashes != [bundle.sha256]
        is_partial = hashes not in ([], [bundle.sha256]) or problems
        is_unfinished = second_error or final_hashes != [bundle.sha256] or final_problems
        if is_lost or is_partial or is_unfinished:
            failures.append(
                f"{direction} {position}: {error}; left {hashes} {problems}; second publish: {second_error} "
                f"{final_hashes} {final_problems}"
            )
    cuts = proxy.cuts - cuts_before
    check(not failures, f"{cuts} cuts left {dict(results)}, and the second publish succeeded after each")
    # The number of requests for the state of an upload varies, so that some publishes end before the last points.
    check(cuts > 0.6 * len(points), f"{len(points) - cuts} points were after the end of a publish")
    print("".join(f"      {failure[:600]}\n" for failure in failures[:5]), end="")


def record_shortest_publish(proxy: CuttingProxy) -> tuple[list[str], dict[str, int], dict[str, list[int]]]:
    """Publish a few times without a cut, and choose the publish with the fewest requests for the upload's state.

    Nearly all other publishes send at least as many bytes. Return the errors of all publishes, and the sent bytes and
    the ends of requests and responses of the chosen one.
    """
    errors, publishes = [], []
    for number in range(5):
        proxy.stop_cutting()
        error = publish(proxy.address, make_bundle(f"s{number:04}"), WITH_RETRIES)
        errors += [error] if error else []
        publishes.append((proxy.sent["up"], number, proxy.sent, proxy.marks))
    _, _, sent, marks = min(publishes)
    return errors, sent, marks


def choose_cut_points(sent: dict[str, int], marks: dict[str, list[int]]) -> list[tuple[str, int]]:
    """Return directions and positions for cuts: the ends of requests and responses, and every 64 KiB."""
    points = []
    for direction in ("up", "down"):
        ends = set(marks[direction]) | {marks[direction][0] // 2}
        ends = {end for end in ends if end % CUT_INTERVAL and end < sent[direction]}
        if direction == "up":  # within the large file, cut only every 64 KiB
            ends = {end for end in ends if not _is_within_large_file(marks["up"], end)}
        intervals = range(CUT_INTERVAL, sent[direction], CUT_INTERVAL)
        points += [(direction, position) for position in sorted(ends.union(intervals))]
    return points


def _is_within_large_file(marks: list[int], end: int) -> bool:
    """Return whether the proxy read full buffers before and after this position."""
    index = marks.index(end) if end in marks else -1
    return 0 < index < len(marks) - 1 and marks[index] - marks[index - 1] == 1 << 14 == marks[index + 1] - marks[index]


def make_bundle(name: str) -> Bundle:
    """Return a release with a large file, an empty one and small ones."""
    release = Release(kind=Kind.DATASET, owner="acme", name=name, version="1")
    large = (name.encode() + bytes(range(256))) * (LARGE_FILE_BYTES // 260)
    small = {f"part{n}.json": b'{"n": %d, "of": "%s"}\n' % (n, name.encode()) for n in range(3)}
    return Bundle.of(release, {"large.txt": large, "empty.txt": b"", **small})


def publish(url: str, bundle: Bundle, timeouts: Timeouts) -> str | None:
    """Publish a release; return the error message, or None on success."""
    try:
        with Registry(HttpTransport(url, timeouts=timeouts)) as registry:
            registry.publish([bundle], "Publish")
    except NipRunError as error:
        return str(error)
    return None


def read_release(url: str, bundle: Bundle) -> tuple[list[str], list[str]]:
    """Return the hashes under which a registry lists a release, and the problems of its files."""
    with Registry(HttpTransport(url, timeouts=WITH_RETRIES)) as registry:
        entries = [entry for entry in registry.entries() if entry.reference == bundle.release.reference]
        problems = [problem for entry in entries for problem in registry.find_problems(entry)]
        return [entry.sha256 for entry in entries], problems


def check_commands_cut_once(check: SoftAssertions, folder: Path, server: ServerProcess, proxy: CuttingProxy) -> None:
    """Cut `nip-run publish` once at several points. It must continue by itself.

    Each command publishes privately with another account, so that the server knows none of the files, and the client
    has to send all of them.
    """
    (folder / "work").mkdir()
    play_and_publish(folder / "work")

    def run_publish(number: int) -> tuple[int, str]:
        variables = {"NIP_RUN_REGISTRY": proxy.address, "NIP_RUN_TOKEN": server.create_token(f"group{number}")}
        arguments = ("publish", "one", "--as", f"group{number}/one@1", "--private", "--licence", "MIT", "--force")
        done = nip_run(*arguments, cwd=folder / "work", timeout=300, **variables)
        return done.returncode, done.stderr

    proxy.stop_cutting()
    code, stderr = run_publish(0)
    check(code == 0, f"the command publishes a run without a cut: {proxy.sent} {'' if code == 0 else stderr[-300:]}")
    sent, cuts_before, errors = proxy.sent["up"], proxy.cuts, []
    for number in range(COMMANDS):
        proxy.cut_after("up", sent * (number + 1) // (COMMANDS + 1))
        code, stderr = run_publish(number + 1)
        if code:
            errors.append(stderr[-300:])
    cuts = proxy.cuts - cuts_before
    counts = [len(list_releases_of(server, f"group{number}")) for number in range(COMMANDS + 1)]
    check(
        not errors and cuts == COMMANDS and counts == [1] * (COMMANDS + 1),
        f"the command goes on after each of {cuts} cuts, and each run is published once {counts} {errors[:2]}",
    )


def list_releases_of(server: ServerProcess, owner: str) -> list[str]:
    """Return the releases of an account that the account can see."""
    with registry_environment(server, server.create_token(owner)) as url, Registry(HttpTransport(url)) as registry:
        return [str(entry.reference) for entry in registry.entries() if entry.reference.owner == owner]
