"""Exports that are killed, run in parallel, or follow runs that are killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

from on_mlflow.held import check_experiment
from on_mlflow.servers import InterceptingProxy, SlowModel
from on_mlflow.tool import MlflowEnvironment, read_progress, wait_for_exit
from shared import ROOT, SoftAssertions

from tests.support.training import training_spec

SLOW_SPEC = """\
extends: {root}/specs/quickstart.yaml
name: slow
dataset: {{limit: 40}}
rollouts: {{per_datapoint: 3, concurrency: 2}}
models: {{offline: {{provider: openai, model: slow, base_url: "{url}/v1"}}}}
"""


API_KEY = {"OPENAI_API_KEY": "no-key-of-anyone"}
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def check_killed_exports(check: SoftAssertions, tool: MlflowEnvironment, uri: str, port: int, distance: int) -> None:
    """Kill an exporter again and again, each time `distance` requests later, until one finishes."""
    proxy, kill_count = InterceptingProxy(port), 0
    while True:
        proxy.victim, proxy.request_count = None, 0
        proxy.kill_at, proxy.kill_after_forwarding = 2 + distance * kill_count, bool(kill_count % 2)
        proxy.victim = tool.export(proxy.uri, "kills", "small")
        out, err = proxy.victim.communicate(timeout=600)
        if proxy.victim.returncode == 0:
            break
        if proxy.victim.returncode != -signal.SIGKILL:
            raise SystemExit(f"{out}\n{err}")
        kill_count += 1
    check(
        kill_count >= 5,
        f"killed {kill_count} times, at requests 2 to {2 + distance * (kill_count - 1)}, before and after answers",
    )
    check_experiment(check, tool, uri, "kills", "small")


def check_parallel_exports(check: SoftAssertions, tool: MlflowEnvironment, uri: str) -> None:
    """Export the same runs with several exporters at once."""
    for process in [tool.export(uri, "at once", "small") for _ in range(3)]:
        wait_for_exit(process)
    check_experiment(check, tool, uri, "at once", "small")
    copies = [tool.here / f"copy{number}" for number in range(3)]
    exporters = []
    for copied_results in copies:
        shutil.copytree(tool.results, copied_results)
        arguments = ("export", "small", "--format", "mlflow", "--tracking-uri", uri, "--experiment", "copies")
        exporters.append(tool.start("-m", "runner", *arguments, "--results", str(copied_results)))
    for process in exporters:
        wait_for_exit(process)
    check_experiment(check, tool, uri, "copies", "small")


def check_followed_run(check: SoftAssertions, tool: MlflowEnvironment, uri: str, port: int) -> None:
    """Follow a run while it is killed and resumed, the follower is killed, and the server fails."""
    model, proxy = SlowModel(), InterceptingProxy(port)
    spec = tool.here / "slow.yaml"
    spec.write_text(SLOW_SPEC.format(root=ROOT, url=model.uri))

    def play() -> subprocess.Popen[str]:
        return tool.nip_run(str(spec), "-q", "--run-id", "slow", **API_KEY)

    def follow() -> subprocess.Popen[str]:
        """Start a follower, and wait for its first request while the model is paused."""
        with model.paused():
            count, process = proxy.request_count, tool.export(proxy.uri, "followed", "slow", "--follow", **IMPATIENT)
            wait_until(lambda: proxy.request_count > count, run, process)
        return process

    def count_points() -> int:
        return read_progress(uri, "followed")[1]

    run = play()
    wait_until((tool.results / "runs" / "slow" / "journal.jsonl").is_file, run)
    follower = follow()
    wait_until(lambda: count_points() > 0, run, follower)
    first_count, status = count_points(), read_progress(uri, "followed")[0]
    wait_until(lambda: count_points() > first_count, run, follower)
    check(
        status == "RUNNING",
        f"while it plays, the curve grows on the server: {first_count} then {count_points()} points",
    )
    follower.kill()
    follower.wait()
    count_before, follower = count_points(), follow()
    wait_until(lambda: count_points() > count_before, run, follower)
    check(
        follower.poll() is None,
        f"the follower is killed, and another goes on: {count_before} then {count_points()} points",
    )
    count_before = fail_until_retried(model, proxy, count_points, run, follower)
    wait_until(lambda: count_points() > count_before, run, follower)
    check(follower.poll() is None, f"the server answers 500 for a while, and is asked again: {count_points()} points")
    run.kill()
    run.wait()
    _, _, err = wait_for_exit(follower)
    check(err.count("retrying automatically while the run plays") == 1, "which the follower says once")
    status = read_progress(uri, "followed")[0]
    check(status == "KILLED", f"the run is killed: the follower ends, and MLflow has {status}")

    count_before, run = count_points(), play()
    wait_until(lambda: is_playing(tool, "slow"), run)
    follower = follow()
    wait_until(lambda: count_points() > count_before, run, follower)
    for process in (follower, run):
        process.kill()
        process.wait()
    check(count_points() < 120, f"resumed and followed, both are killed at {count_points()} points")  # of 120 games
    model.seconds = 0.02
    run = play()
    wait_until(lambda: is_playing(tool, "slow"), run)
    follower = follow()
    wait_for_exit(run)
    wait_for_exit(follower)
    stored = check_experiment(check, tool, uri, "followed", "slow")
    steps = [step for step, _ in stored["runs"][0]["metrics"]["accuracy"]]
    check(steps[-1] == 120 and len(steps) == len({*steps}), f"its curve has {len(steps)} points up to game {steps[-1]}")


def fail_until_retried(
    model: SlowModel, proxy: InterceptingProxy, count_points: Callable[[], int], *alive: subprocess.Popen[str]
) -> int:  # fmt: skip
    """Let the server answer 500 until the exporter retries. Return the number of points at that time."""
    proxy.failing_from, count = 0, proxy.request_count
    wait_until(lambda: proxy.request_count > count, *alive)
    with model.paused():
        wait_until(lambda: proxy.request_count > count + 2, *alive)
        count_before, proxy.failing_from = count_points(), None
    return count_before


def check_followed_training(check: SoftAssertions, tool: MlflowEnvironment, uri: str) -> None:
    """Follow a training run that is killed after its first iteration, and resumed."""
    prompts = str(ROOT / "prompts/code_validation/nip")
    spec = training_spec(tool.here / "grown", name="grown", prompts=prompts, training={"iterations": 4})
    run_folder = tool.results / "runs" / "grown"

    def play() -> subprocess.Popen[str]:
        return tool.nip_run(str(spec), "-q", "--run-id", "grown")

    run = play()
    wait_until((run_folder / "stages.jsonl").is_file, run)
    follower = tool.export(uri, "grown", "grown", "--follow")
    wait_until(lambda: (run_folder / "stages.jsonl").read_text().count('"switched"') > 0, run)
    run.kill()
    run.wait()
    wait_for_exit(follower)
    runs = tool.read(uri, "grown")["runs"]
    parts = [stored_run for stored_run in runs if stored_run["parent"] == "grown"]
    check(
        {stored_run["status"] for stored_run in runs if stored_run["parent"] is None} == {"KILLED"} and parts,
        f"a training run is killed while it is followed: MLflow has it as KILLED, with {len(parts)} parts below it",
    )
    run = play()
    wait_until(lambda: is_playing(tool, "grown"), run)
    follower = tool.export(uri, "grown", "grown", "--follow")
    wait_for_exit(run)
    wait_for_exit(follower)
    check_experiment(check, tool, uri, "grown", "grown")


def is_playing(tool: MlflowEnvironment, name: str) -> bool:
    """Return whether a run's manifest has the status of a running run, such as after a resume."""
    return bool(json.loads((tool.results / "runs" / name / "manifest.json").read_text())["status"] == "running")


def wait_until(condition: Callable[[], bool], *alive: subprocess.Popen[str], seconds: float = 300.0) -> None:
    """Wait for a condition. It is an error if one of the processes ends first."""
    deadline = time.monotonic() + seconds
    while not condition():
        for process in alive:
            if process.poll() is not None and not condition():
                raise SystemExit(f"{process.args!r} ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            raise SystemExit(f"the condition was not met within {seconds:.0f} s")
        time.sleep(0.2)
