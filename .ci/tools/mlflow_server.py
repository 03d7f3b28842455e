"""Runs on a real MLflow server on SQLite, read back through its own client, also after kills, and seen in its page.

    python .ci/tools/mlflow_server.py     # installs MLflow in a temporary folder; Chromium is Debian's

A benchmark and a training run are sent, and compared with what the runs themselves hold. Then the exporter is killed
(SIGKILL) at request after request, before the server has it or before its answer comes; several send at once, from one
folder and from copies of it; runs are followed while they play, are killed with their follower, and go on; servers
fail, refuse, die, or are no MLflow; and runs hold what MLflow does not take.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from on_mlflow.held import differences, held, wanted_of
from on_mlflow.killed import IMPATIENT, at_once, followed, kills, trained
from on_mlflow.servers import Between
from on_mlflow.tool import DELETE, FOREIGN, Tool, ended, free_port, server
from shared import ROOT, SoftAssertions, folder

from tests.support.browser import chromium
from tests.support.training import training_spec


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has mlflow and nip-run")
    parser.add_argument("--apart", type=int, default=9, metavar="N", help="requests from kill to kill; default: 9")
    parser.add_argument("--only", nargs="+", metavar="PART", help="of whole, refused, fitted and the others in `main`")
    parser.add_argument("--shot", type=Path, metavar="FILE", help="keep a picture of the learning curve")
    args = parser.parse_args()
    check = SoftAssertions()
    with folder() as here:
        tool, port = Tool(here, args.python), free_port()
        uri = f"http://127.0.0.1:{port}"
        benchmark = (str(ROOT / "specs" / "quickstart.yaml"), "-q", "rollouts.per_datapoint=2")
        ended(tool.nip_run(*benchmark, "dataset.limit=6"))
        prompts = str(ROOT / "prompts/code_validation/nip")
        changes = {"iterations": 3, "test": {"scheme": "all"}}
        ended(tool.nip_run(str(training_spec(here / "learn", prompts=prompts, training=changes)), "-q"))
        small = training_spec(here / "small", name="small", prompts=prompts)
        ended(tool.nip_run(str(small), "-q", "training.iterations=1"))
        for size, results in ((4, tool.results), (2, here / "other")):
            ended(tool.nip_run(*benchmark, f"dataset.limit={size}", "--run-id", "twin", results=results))
        served: dict[str, Callable[[], None]] = {
            "whole": lambda: whole(check, tool, uri, args.shot),
            "refused": lambda: refused(check, tool, uri, port),
            "fitted": lambda: fitted(check, tool, uri),
            "damaged": lambda: damaged(check, tool, uri),
            "twins": lambda: twins(check, tool, uri),
            "followed": lambda: followed(check, tool, uri, port),
            "trained": lambda: trained(check, tool, uri),
            "at_once": lambda: at_once(check, tool, uri),
            "kills": lambda: kills(check, tool, uri, port, args.apart),
        }
        with server(tool, port):
            for name, part in served.items():
                if name in (args.only or served):
                    part()
        if "away" in (args.only or ["away"]):
            away(check, tool, uri, port)
    return check.exit_code()


# What is there


def whole(check: SoftAssertions, tool: Tool, uri: str, shot: Path | None) -> None:
    """A benchmark and a training run, sent at once and again."""
    done = json.loads(ended(tool.export(uri, "whole", "quickstart", "learn"))[1])
    said = held(check, tool, uri, "whole", "quickstart", "learn")
    runs = {run["name"]: run for run in said["runs"]}
    learn = next(run for name, run in runs.items() if name.startswith("learn") and name[-3] != "-")
    made = [model[4]["nip_run.lineage"] for model in said["models"] if model[2] == learn["name"]]
    steps = sorted(len(json.loads(lineage)) for lineage in made)
    check(steps == [1, 1, 2, 2, 3, 3], f"its {len(made)} models have 1 to {steps[-1]} trainings as their lineage")
    contexts = [context for _, _, context in learn["datasets"]]
    check(contexts == ["training"] * 7, f"it has the {len(contexts)} datasets that were learnt from as its inputs")
    metrics = json.loads((tool.results / "runs" / learn["name"] / "metrics.json").read_text())
    curve = [[test["iteration"], test["accuracy"]["value"]] for test in metrics["tests"]]
    check(learn["metrics"]["accuracy"] == curve and len(curve) == 4, f"the learning curve is the run's own: {curve}")
    nested = [run for run in runs.values() if run["parent"] == learn["name"]]
    check(len(nested) == 7, f"its {len(nested)} games and tests are nested below it")
    played = {run["name"][-2:]: run["played"] for run in nested}
    check(
        played["i0"] == [] and all(name.endswith(" 0") for name in played["i1"]) and len(played["i1"]) == 2,
        f"the games of iteration 1 have the models of iteration 0 as inputs: {played['i1']}",
    )
    bench = next(run for name, run in runs.items() if name.startswith("quickstart"))
    own = json.loads((tool.results / "runs" / bench["name"] / "metrics.json").read_text())["metrics"]
    (accuracy,) = (row["value"] for row in own if (row["agent"], row["metric"]) == (None, "accuracy"))
    steps = [step for step, _ in bench["metrics"]["accuracy"]]
    check(
        steps == list(range(1, 13)) and bench["metrics"]["accuracy"][-1] == [12, accuracy],
        f"a benchmark has its accuracy after each of 12 games; the last is the run's own, {accuracy:.4f}",
    )
    again = json.loads(ended(tool.export(uri, "whole", "quickstart", "learn"))[1])
    check(all(run["sent"] == {} for run in again["runs"]), "sent again, nothing is sent")
    check(tool.read(uri, "whole") == said, "and the server holds what it held")
    seen(check, next(run["page"] for run in done["runs"] if run["run_id"] == learn["name"]), shot)


def seen(check: SoftAssertions, page: str, shot: Path | None) -> None:
    """The learning curve in MLflow's own page."""
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1500, "height": 1000})
        tab.goto(f"{page}/model-metrics")
        tab.get_by_text("Add chart").wait_for(timeout=120_000)
        chart = tab.locator(".js-plotly-plot", has=tab.locator(".scatterlayer .trace")).first
        chart.wait_for(timeout=120_000)
        points = chart.locator(".scatterlayer .trace .points path").count()
        text = tab.inner_text("body")
        if shot is not None:
            tab.screenshot(path=str(shot))
        tab.close()
    first = text[text.index("Add chart") :].splitlines()[1]
    check(first == "accuracy" and points == 4, f"MLflow's page shows {first!r} first, as a line of {points} points")


# What is wrong


PAGE = b"<!doctype html><title>Welcome</title>"
ANSWERS = {
    "HTTP 500": ((500, "text/html", b"<h1>Internal Server Error</h1>"), 1, "HTTP 500"),
    "HTTP 503": ((503, "text/html", b""), 1, "HTTP 503"),
    "HTTP 429": ((429, "text/html", b""), 1, "HTTP 429"),
    "HTTP 401": ((401, "text/html", b"who are you?"), 4, "MLFLOW_TRACKING_TOKEN"),
    "HTTP 403": (
        (403, "application/json", b'{"error_code": "PERMISSION_DENIED", "message": "no"}'),
        4,
        "of one who may",
    ),
    "a page that is not found": ((404, "text/html", PAGE), 1, "is it an MLflow tracking server"),
    "a page of something else": ((200, "text/html", PAGE), 1, "is it an MLflow tracking server"),
    "an answer of something else": ((200, "application/json", b'{"hello": 1}'), 1, "is it an MLflow tracking server"),
}


def refused(check: SoftAssertions, tool: Tool, uri: str, port: int) -> None:
    """What cannot be sent to, and a server that fails in the middle."""

    def say(what: str, at: str, experiment: str, wanted: int, words: str) -> None:
        code, _, err = ended(tool.export(at, experiment, "quickstart", **IMPATIENT), None)
        check(code == wanted and words in err and "bug" not in err, f"{what}: exit {code}: {err.strip()[:110]}...")

    ended(tool.start("-c", DELETE, uri))
    say("a deleted experiment", uri, "gone", 2, "restore it there")
    say("no server", f"http://127.0.0.1:{free_port()}", "x", 1, "gives no answer")
    say("the address of a page", f"{uri}/#/experiments/0", "x", 2, "without the ? and # of a page")
    say("a path that is not there", f"{uri}/wrong", "x", 1, "is it an MLflow tracking server")
    between = Between(port)
    between.fails_from = 0
    for what, (between.said, wanted, words) in ANSWERS.items():
        say(what, between.uri, "x", wanted, words)
    between.fails_from, between.said, between.asked = 20, ANSWERS["HTTP 500"][0], 0
    say("HTTP 500 from the 20th request on", between.uri, "failing", 1, "continue where it stopped")
    ended(tool.export(uri, "failing", "quickstart"))
    held(check, tool, uri, "failing", "quickstart")


NAMES = (
    "x" * 400,
    "x" * 399 + "y",
    "../../etc/passwd",
    "a/b",
    "",
    "\x1b[31mred",
    "a\nb",
    "<script>alert(1)</script>",
    "\u00fc\u4e16",
)


def fitted(check: SoftAssertions, tool: Tool, uri: str) -> None:
    """A run with names and values that are longer than MLflow takes, or not of its characters."""

    def change(metrics: dict[str, Any]) -> None:
        row = next(row for row in metrics["metrics"] if row["value"] is not None)
        metrics["metrics"] += [{**row, "metric": name, "value": number / 8} for number, name in enumerate(NAMES)]
        metrics["metrics"].append({**row, "metric": "large", "value": 1.7e308})

    results = edited(tool, "fitted", "metrics.json", change)
    path = next((results / "runs").iterdir()) / "spec.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "description": "\U0001f600" * 20_000}))
    path = path.with_name("manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "why_stopped": "w" * 50_000}))
    done = json.loads(ended(tool.export(uri, "fitted", "quickstart", results=results))[1])
    said = held(check, tool, uri, "fitted", "quickstart", results=results)["runs"][0]
    lengths = (
        len(said["params"]["description"]),
        len(said["tags"]["nip_run.why_stopped"]),
        max(map(len, said["metrics"])),
    )
    notes = done["runs"][0]["notes"]
    check(lengths == (6_000, 8_000, 250), f"what was too long is {lengths} characters there; {len(notes)} notes say so")


def damaged(check: SoftAssertions, tool: Tool, uri: str) -> None:
    """Numbers that are none, and files that hold what nip-run does not write: said in words, and nothing is sent."""

    def value(what: object) -> Callable[[dict[str, Any]], None]:
        return lambda metrics: metrics["metrics"][0].update(value=what)

    for what, file, change in (
        ("NaN", "metrics.json", value(float("nan"))),
        ("infinity", "metrics.json", value(float("inf"))),
        ("a word for a number", "metrics.json", value("much")),
        ("no metrics", "metrics.json", lambda found: found.pop("metrics")),
        ("no time", "manifest.json", lambda found: found.update(started_at="yesterday")),
    ):
        results = edited(tool, what, file, change)
        code, _, err = ended(tool.export(uri, "damaged", "quickstart", results=results), None)
        check(code == 1 and "damaged" in err and "bug" not in err, f"{what} in {file}: exit {code}: {_end(err)}")
    check(not tool.read(uri, "damaged")["runs"], "and nothing of them is there")


def _end(err: str) -> str:
    return err.strip().rpartition("/")[2][:110]


def edited(tool: Tool, name: str, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """A results folder with the benchmark alone, of which a file is another."""
    results = tool.here / "edited" / name.replace(" ", "-")
    run = next((tool.results / "runs").glob("quickstart*"))
    shutil.copytree(run, results / "runs" / run.name)
    path = results / "runs" / run.name / file
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    return results


def twins(check: SoftAssertions, tool: Tool, uri: str) -> None:
    """Two runs of one name, from two folders, and a third that somebody else made."""
    ended(tool.start("-c", FOREIGN, uri, "twins", "twin"))
    other = tool.here / "other"
    for results in (tool.results, other, tool.results):
        ended(tool.export(uri, "twins", "twin", results=results))
    said = tool.read(uri, "twins")
    foreign = [run for run in said["runs"] if "nip_run.key" not in run["tags"]]
    said["runs"] = [run for run in said["runs"] if run not in foreign]
    wrong = differences(said, wanted_of(tool.results, "twin") | wanted_of(other, "twin"))
    sizes = sorted(len(run["metrics"]["accuracy"]) for run in said["runs"])
    check(not wrong and sizes == [4, 8], f"two runs of one name stand apart, each whole: {sizes} points {wrong or ''}")
    untouched = [(run["metrics"], run["params"]) for run in foreign] == [({"accuracy": [[0, 0.125]]}, {})]
    check(untouched, "and one of that name that somebody else made is as it was")


def away(check: SoftAssertions, tool: Tool, uri: str, port: int) -> None:
    """A server that dies in the middle, and comes back."""
    between = Between(port)
    with server(tool, port) as process:
        exporter = tool.export(between.uri, "away", "small", **IMPATIENT)
        while between.asked < 40 and exporter.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        code, _, err = ended(exporter, None)
    check(code == 1 and "continue where it stopped" in err, f"the server dies in the middle: exit {code}")
    with server(tool, port):
        ended(tool.export(uri, "away", "small"))
        held(check, tool, uri, "away", "small")


if __name__ == "__main__":
    sys.exit(main())
