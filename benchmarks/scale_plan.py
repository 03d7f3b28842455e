"""Check the duration that `nip-run plan --workers` predicts: within 20 % of the real one for any bottleneck.

    python benchmarks/scale_plan.py [--only NAME...] [--scale S]

Each run is planned and then played by a command, which is timed from its start to its end. Plans of runs with servers
use a pilot run of a few games against a loopback server. The machine should do nothing else: other work changes the
result. `--scale` makes the runs longer. Runs on Ray use a network namespace with only a loopback interface (Linux), in
which each command starts Ray.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import temporary_folder

from tests.support import ray_cluster
from tests.support.processes import environment
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file

TOLERANCE = 0.2
ROUNDS = {"min_message_rounds": 5, "max_message_rounds": 5, "verifier_first": True}
"""Every game has five calls, so that a short pilot run estimates their number exactly."""


def write_spec(here: Path, base_url: str | None, games: int, concurrency: int, **changes: Any) -> None:
    changes.setdefault("fine_tune", None)
    spec_file(here, base_url, size=games, rollouts={"concurrency": concurrency}, protocol=ROUNDS, **changes)


def run_nip_run(here: Path, *arguments: str) -> str:
    """Run a command to its end, and return its standard output."""
    command = [sys.executable, "-m", "runner", *arguments]
    process = subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} from {' '.join(arguments)}\n{process.stderr}")
    return process.stdout


def compare_plan(  # noqa: PLR0917 - each call is a line of a table
    check: SoftAssertions, name: str, here: Path, overrides: Sequence[str], plan_options: Sequence[str],
    bottleneck: str, play: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Plan a run, play it, and compare the predicted time with the real one."""
    (plan,) = json.loads(run_nip_run(here, "plan", "spec.yaml", *overrides, *plan_options, "--json", "-q"))
    predicted = plan["time"]
    start = time.monotonic()
    if play is None:
        run_nip_run(here, "spec.yaml", *overrides, "-q", "--run-id", "played")
    else:
        play()
    seconds = time.monotonic() - start
    low, high = predicted["seconds"]
    ratio = high / seconds
    calls = json.loads((here / "results" / "runs" / "played" / "manifest.json").read_text())["completions"]
    call_ratio = predicted["calls"][1] / calls
    check(
        abs(ratio - 1) <= TOLERANCE and low == high and predicted["bottleneck"] == bottleneck,
        f"{name}: {high:.1f} s planned, {seconds:.1f} s taken ({ratio:.2f}); bound by {predicted['bottleneck']}; "
        f"{calls} calls, {call_ratio:.2f} of them planned; {'; '.join(predicted['measured'])}",
    )


def check_rate_limit(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here, run_chat_server(latency=(0.05, 0.15), decide=0.0) as server:
        write_spec(here, server.base_url, int(160 * scale), 64)
        run_nip_run(here, "spec.yaml", "dataset.limit=30", "-q", "--run-id", "pilot")
        overrides = ["models.m.requests_per_minute=1200", "name=limited"]
        compare_plan(
            check, "1,200 requests a minute", here, overrides, ["--workers", "1", "--like", "pilot"], "provider's limit"
        )


def check_latency(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here, run_chat_server(latency=(0.1, 0.3), decide=0.0) as server:
        write_spec(here, server.base_url, int(900 * scale), 32)
        run_nip_run(here, "spec.yaml", "dataset.limit=96", "-q", "--run-id", "pilot")
        compare_plan(
            check, "32 at once in 0.2 s", here, ["name=slow"], ["--workers", "1", "--like", "pilot"], "servers"
        )


def check_one_process(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here:
        write_spec(here, None, int(14_000 * scale), 128, fine_tune={})
        compare_plan(check, "one process, dummy", here, [], ["--workers", "1"], "core")


def check_fast_server(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here, run_chat_server(latency=0.0, decide=0.0) as server:
        write_spec(here, server.base_url, int(6_000 * scale), 128)
        run_nip_run(here, "spec.yaml", "dataset.limit=200", "-q", "--run-id", "pilot")
        overrides = ["name=fast"]
        compare_plan(
            check, "a server that answers at once", here, overrides, ["--workers", "1", "--like", "pilot"], "core"
        )


def check_workers(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here:
        write_spec(here, None, int(16_000 * scale), 128)
        overrides = ["execution.processes=2"]
        compare_plan(check, "two workers, dummy", here, overrides, ["--workers", "2"], "cores")


def check_long_answers(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here:
        write_spec(here, None, int(6_000 * scale), 64)
        overrides = ["models.m.answer_words=2000", "execution.processes=2"]
        compare_plan(check, "two workers, answers of 12 KB", here, overrides, ["--workers", "2"], "cores")


def check_shards(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here:
        write_spec(here, None, int(12_000 * scale), 128)
        overrides: list[str] = []

        def play() -> None:
            command = [sys.executable, "-m", "runner", "spec.yaml", *overrides, "-q", "--run-id", "played", "--shard"]
            processes = [
                subprocess.Popen([*command, f"{n}/2"], cwd=here, env=environment(), stdout=subprocess.DEVNULL)
                for n in (1, 2)
            ]
            assert [process.wait() for process in processes] == [0, 0]

        # The merge, which reads the journals of both shards, takes longer than the games of a shard with `dummy`.
        compare_plan(check, "two shards and their merge", here, overrides, ["--shards", "2"], "start and end", play)


def check_live_workers(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here, run_chat_server(latency=(0.1, 0.3), decide=0.0) as server:
        write_spec(here, server.base_url, int(900 * scale), 32)
        run_nip_run(here, "spec.yaml", "dataset.limit=96", "-q", "--run-id", "pilot")
        overrides = ["name=slow", "execution.processes=2"]
        name = "two workers, 32 at once in 0.2 s"
        compare_plan(check, name, here, overrides, ["--workers", "2", "--like", "pilot"], "servers")


ON_RAY = ["execution.engine=ray", "execution.workers=2"]


def check_ray(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here:
        write_spec(here, None, int(20_000 * scale), 128)
        compare_plan(check, "two workers on Ray, dummy", here, ON_RAY, ["--workers", "2"], "cores")


def check_live_ray(check: SoftAssertions, scale: float) -> None:
    with temporary_folder() as here, run_chat_server(latency=(0.1, 0.3), decide=0.0) as server:
        write_spec(here, server.base_url, int(900 * scale), 32)
        run_nip_run(here, "spec.yaml", "dataset.limit=96", "-q", "--run-id", "pilot")
        name = "two workers on Ray, 32 at once in 0.2 s"
        compare_plan(check, name, here, ["name=slow", *ON_RAY], ["--workers", "2", "--like", "pilot"], "servers")


def run_in_namespace(case: str, scale: float) -> int:
    """Run a case in a network namespace, where Ray may be started; return 1 if a claim failed, else 0."""
    reason = ray_cluster.find_missing_requirement()
    if reason is not None:
        print(f"skipped: {case}: {reason}", flush=True)
        return 1
    command = [sys.executable, __file__, "--only", case, "--scale", str(scale)]
    return int(subprocess.run(ray_cluster.in_namespace(command), check=False).returncode != 0)


CASES = {
    "rate": check_rate_limit, "latency": check_latency, "core": check_one_process, "client": check_fast_server,
    "workers": check_workers, "long": check_long_answers, "shards": check_shards, "live-workers": check_live_workers,
    "ray": check_ray, "ray-live": check_live_ray,
}  # fmt: skip
NAMESPACE_CASES = {"ray", "ray-live"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=tuple(CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="times as many games")
    args = parser.parse_args()
    check = SoftAssertions()
    if ray_cluster.is_in_namespace():
        ray_cluster.check_only_loopback()
    for name in args.only:
        if name in NAMESPACE_CASES and not ray_cluster.is_in_namespace():
            check.failures += [name] * run_in_namespace(name, args.scale)
        else:
            CASES[name](check, args.scale)
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
