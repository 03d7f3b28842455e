"""No test depends on the speed of the machine: none waits for a fixed time or fails because something is slow.

Wait for an event instead: `wait_until` and `interrupt` in `tests/support/processes.py`, `held_after` of the servers,
`run_loop_turns` in `tests/support/event_loop.py`. If time itself is the subject, pass a `FakeClock`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
MIN_TIME_LIMIT = 60.0
"""Minimum number of seconds of a time limit that only guards against hanging."""

ENDED_BY_TEST = "an endless wait, which the test ends"
POLLS = "polls, within the hang guard"
ANY_MOMENT = "a kill or a signal at any moment: any progress until then is right"
SERVER_DELAY = "a server's delay is simulated; the test asserts nothing about time"
CPU_TIME = "a limit on CPU time, which a regression would exceed by minutes"

EXCEPTIONS: dict[str, tuple[int, str]] = {
    "tests/analysis/test_quotations.py": (1, CPU_TIME),
    "tests/curation/test_comparison.py": (1, CPU_TIME),
    "tests/fixtures/v0_1_0/make.py": (4, "run by hand, with 0.1.0"),
    "tests/fixtures/v0_2_0_dev/make.py": (3, "run by hand, with 0.2.0.dev0"),
    "tests/full/test_leaderboard_stress.py": (2, "kills at any moment; and a lock that is held for a while"),
    "tests/full/test_real_servers.py": (1, POLLS),
    "tests/full/test_registry_publishers.py": (1, ANY_MOMENT),
    "tests/full/test_server_kills.py": (3, ANY_MOMENT),
    "tests/full/test_server_recovery.py": (2, ANY_MOMENT),
    "tests/full/test_shards.py": (2, POLLS),
    "tests/models/test_batch_stopped.py": (1, ANY_MOMENT),
    "tests/models/test_bodies.py": (1, "a time-out that must be reached"),
    "tests/models/test_budget.py": (1, ENDED_BY_TEST),
    "tests/models/test_connect.py": (1, ENDED_BY_TEST),
    "tests/game/protocols/test_confidence.py": (1, CPU_TIME),
    "tests/registry/test_fetched.py": (1, ANY_MOMENT),
    "tests/runs/test_faults.py": (1, SERVER_DELAY),
    "tests/runs/workers/test_ray.py": (1, POLLS),
    "tests/runs/workers/test_ray_nodes.py": (1, POLLS),
    "tests/runs/workers/test_silence.py": (3, "counts checks, not seconds"),
    "tests/spec/test_spec_fuzz.py": (1, CPU_TIME),
    "tests/server/test_answers.py": (1, ENDED_BY_TEST),
    "tests/server/test_isolated_task.py": (1, ENDED_BY_TEST),
    "tests/server/test_bodies.py": (1, ENDED_BY_TEST),
    "tests/server/test_connections.py": (2, "connections arrive in turn; the test waits for the asserted state"),
    "tests/server/test_pages.py": (2, "a minimum duration; and a kill at any moment"),
    "tests/server/test_serve.py": (1, "a signal at any moment"),
    "tests/base/storage/test_journal_writes.py": (1, CPU_TIME),
    "tests/support/cookie_client.py": (1, POLLS),
    "tests/support/hostile_git_servers.py": (2, SERVER_DELAY),
    "tests/support/processes.py": (1, POLLS),
    "tests/support/registry_publishers.py": (1, "a reader that leaves time to the publishers"),
    "tests/support/servers/batch.py": (1, SERVER_DELAY),
    "tests/support/servers/frame.py": (1, SERVER_DELAY),
    "tests/support/servers/misbehaving.py": (2, SERVER_DELAY),
    "tests/base/test_redaction.py": (2, CPU_TIME),
    "tests/training/test_fine_tune_command.py": (2, "polls, within the hang guard; and a kill at any moment"),
    "tests/registry/transports/test_git_publishers.py": (1, "leaves time for a commit that must not be made"),
    "tests/registry/transports/test_pace.py": (1, SERVER_DELAY),
    "tests/registry/transports/test_shared_folder.py": (1, ANY_MOMENT),
}
"""Number of exceptions of each file, and why they do not depend on the load of the machine."""


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


def _number(value: ast.expr | None) -> float | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)) else None


def _is_elapsed_time(value: ast.expr) -> bool:
    """Return whether a value is the current time minus an earlier one."""
    is_difference = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and isinstance(value.left, ast.Call)
    return is_difference and _name(value.left.func) in CLOCKS  # type: ignore[attr-defined]


def find_timing(code: ast.AST) -> Iterator[str]:
    """Yield code that depends on the machine: fixed waits, limits on elapsed time, and short time limits."""
    for node in ast.walk(code):
        if isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
            pairs = zip(values, node.ops, values[1:], strict=False)
            if any(
                _is_elapsed_time(low) and isinstance(op, (ast.Lt, ast.LtE)) and ast.unparse(high) != "HANG_SECONDS"
                for low, op, high in pairs
            ):
                yield ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        name, first = _name(node.func), node.args[0] if node.args else None
        if name == "sleep" and _number(first) != 0:
            yield ast.unparse(node)
        limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        limits += node.args[1:2] if name == "wait_for" else []
        limits += node.args if name in ("wait", "join", "timeout") and len(node.args) == 1 else []
        if any((seconds := _number(limit)) is not None and seconds < MIN_TIME_LIMIT for limit in limits):
            yield ast.unparse(node)


@pytest.mark.gate
def test_no_test_depends_on_the_load_of_the_machine() -> None:
    calls_by_file = {
        str(path.relative_to(ROOT)): list(find_timing(ast.parse(path.read_text("utf-8"))))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    counts = {path: len(calls) for path, calls in calls_by_file.items() if calls}
    allowed = {path: count for path, (count, _) in EXCEPTIONS.items()}
    assert counts == allowed, [
        (path, calls_by_file.get(path)) for path in {**counts, **allowed} if counts.get(path) != allowed.get(path)
    ]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("time.sleep(0.5)", 1),
        ("await asyncio.sleep(seconds)", 1),
        ("await asyncio.sleep(0)", 0),
        ("assert time.monotonic() - begun < 15", 1),
        ("assert 1 < time.process_time() - begun <= limit", 1),
        ("assert time.monotonic() - begun > 0.3", 0),
        ("assert time.monotonic() - begun < HANG_SECONDS", 0),
        ("await asyncio.wait_for(heard, 1)", 1),
        ("await asyncio.wait_for(heard, HANG_SECONDS)", 0),
        ("process.wait(10)", 1),
        ("process.wait(HANG_SECONDS)", 0),
        ("policy.wait(1, random)", 0),
        ("subprocess.run(words, timeout=5)", 1),
        ("async with asyncio.timeout(2): pass", 1),
    ],
)
def test_dependence_on_the_machine_is_detected(code: str, count: int) -> None:
    indented = "\n".join(["async def f():", *(f"    {line}" for line in code.splitlines())])
    assert len(list(find_timing(ast.parse(indented)))) == count
