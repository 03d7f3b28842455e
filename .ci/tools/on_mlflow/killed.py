"""The exporter killed at request after request, several at once, and beside runs that are killed and go on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

from on_mlflow.held import held
from on_mlflow.servers import Between, SlowModel
from on_mlflow.tool import Tool, ended, stands
from shared import ROOT, SoftAssertions

from tests.support.training import training_spec

SLOW = """\
extends: {root}/specs/quickstart.yaml
name: slow
dataset: {{limit: 40}}
rollouts: {{per_datapoint: 3, concurrency: 2}}
models: {{offline: {{provider: openai, model: slow, base_url: "{url}/v1"}}}}
"""


KEY = {"OPENAI_API_KEY": "no-key-of-anyone"}
IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def kills(check: SoftAssertions, tool: Tool, uri: str, port: int, apart: int) -> None:
    """An exporter that is killed again and again, each time some requests later, until one comes to its end."""
    killer, killed = Between(port), 0
    while True:
        killer.victim, killer.asked = None, 0
        killer.at, killer.after = 2 + apart * killed, bool(killed % 2)
        killer.victim = tool.export(killer.uri, "kills", "small")
        out, err = killer.victim.communicate(timeout=600)
        if killer.victim.returncode == 0:
            break
        if killer.victim.returncode != -signal.SIGKILL:
            raise SystemExit(f"{out}\n{err}")
        killed += 1
    check(killed >= 5, f"killed {killed} times, at requests 2 to {2 + apart * (killed - 1)}, before and after answers")
    held(check, tool, uri, "kills", "small")


def at_once(check: SoftAssertions, tool: Tool, uri: str) -> None:
    """Several exporters of the same runs at the same moment."""
    for process in [tool.export(uri, "at once", "small") for _ in range(3)]:
        ended(process)
    held(check, tool, uri, "at once", "small")
    copies = [tool.here / f"copy{number}" for number in range(3)]
    started = []
    for copy in copies:
        shutil.copytree(tool.results, copy)
        words = ("export", "small", "--format", "mlflow", "--tracking-uri", uri, "--experiment", "copies")
        started.append(tool.start("-m", "runner", *words, "--results", str(copy)))
    for process in started:
        ended(process)
    held(check, tool, uri, "copies", "small")


def followed(check: SoftAssertions, tool: Tool, uri: str, port: int) -> None:
    """A run that is followed while it plays, is killed, and goes on; so is the follower, and the server is away."""
    model, between = SlowModel(), Between(port)
    spec = tool.here / "slow.yaml"
    spec.write_text(SLOW.format(root=ROOT, url=model.uri))

    def play() -> subprocess.Popen[str]:
        return tool.nip_run(str(spec), "-q", "--run-id", "slow", **KEY)

    def follow() -> subprocess.Popen[str]:
        """A follower that asks already, while the run has still much to play."""
        with model.silent():
            count, begun = between.asked, tool.export(between.uri, "followed", "slow", "--follow", **IMPATIENT)
            until(lambda: between.asked > count, run, begun)
        return begun

    def points() -> int:
        return stands(uri, "followed")[1]

    run = play()
    until((tool.results / "runs" / "slow" / "journal.jsonl").is_file, run)
    follower = follow()
    until(lambda: points() > 0, run, follower)
    first, status = points(), stands(uri, "followed")[0]
    until(lambda: points() > first, run, follower)
    check(status == "RUNNING", f"while it plays, the curve grows on the server: {first} then {points()} points")
    follower.kill()
    follower.wait()
    before, follower = points(), follow()
    until(lambda: points() > before, run, follower)
    check(follower.poll() is None, f"the follower is killed, and another goes on: {before} then {points()} points")
    before = failing(model, between, points, run, follower)
    until(lambda: points() > before, run, follower)
    check(follower.poll() is None, f"the server answers 500 for a while, and is asked again: {points()} points")
    run.kill()
    run.wait()
    _, _, err = ended(follower)
    check(err.count("is asked again while the run plays") == 1, "which the follower says once")
    status = stands(uri, "followed")[0]
    check(status == "KILLED", f"the run is killed: the follower ends, and MLflow has {status}")

    before, run = points(), play()
    until(lambda: playing(tool, "slow"), run)
    follower = follow()
    until(lambda: points() > before, run, follower)
    for process in (follower, run):
        process.kill()
        process.wait()
    check(points() < 120, f"resumed and followed, both are killed at {points()} points")  # of 120 games
    model.seconds = 0.02
    run = play()
    until(lambda: playing(tool, "slow"), run)
    follower = follow()
    ended(run)
    ended(follower)
    said = held(check, tool, uri, "followed", "slow")
    steps = [step for step, _ in said["runs"][0]["metrics"]["accuracy"]]
    check(steps[-1] == 120 and len(steps) == len({*steps}), f"its curve has {len(steps)} points up to game {steps[-1]}")


def failing(
    model: SlowModel, between: Between, points: Callable[[], int], *alive: subprocess.Popen[str]
) -> int:  # fmt: skip
    """Have the server answer 500 until it was asked again; how many points it had then."""
    between.fails_from, count = 0, between.asked
    until(lambda: between.asked > count, *alive)
    with model.silent():
        until(lambda: between.asked > count + 2, *alive)
        before, between.fails_from = points(), None
    return before


def trained(check: SoftAssertions, tool: Tool, uri: str) -> None:
    """A training run that is followed, is killed once an iteration has ended, and goes on."""
    prompts = str(ROOT / "prompts/code_validation/nip")
    spec = training_spec(tool.here / "grown", name="grown", prompts=prompts, training={"iterations": 4})
    place = tool.results / "runs" / "grown"

    def play() -> subprocess.Popen[str]:
        return tool.nip_run(str(spec), "-q", "--run-id", "grown")

    run = play()
    until((place / "stages.jsonl").is_file, run)
    follower = tool.export(uri, "grown", "grown", "--follow")
    until(lambda: (place / "stages.jsonl").read_text().count('"switched"') > 0, run)
    run.kill()
    run.wait()
    ended(follower)
    said = tool.read(uri, "grown")["runs"]
    parts = [one for one in said if one["parent"] == "grown"]
    check(
        {one["status"] for one in said if one["parent"] is None} == {"KILLED"} and parts,
        f"a training run is killed while it is followed: MLflow has it as KILLED, with {len(parts)} parts below it",
    )
    run = play()
    until(lambda: playing(tool, "grown"), run)
    follower = tool.export(uri, "grown", "grown", "--follow")
    ended(run)
    ended(follower)
    held(check, tool, uri, "grown", "grown")


def playing(tool: Tool, name: str) -> bool:
    """Whether a run's manifest says that it plays, as of one that has just been gone on with."""
    return bool(json.loads((tool.results / "runs" / name / "manifest.json").read_text())["status"] == "running")


def until(condition: Callable[[], bool], *alive: subprocess.Popen[str], seconds: float = 300.0) -> None:
    """Wait for what must come while processes live; one that ends before is an error."""
    deadline = time.monotonic() + seconds
    while not condition():
        for process in alive:
            if process.poll() is not None and not condition():
                raise SystemExit(f"{process.args!r} ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            raise SystemExit("what is waited for did not come")
        time.sleep(0.2)
