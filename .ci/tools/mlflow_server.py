"""Export runs to a real MLflow server on SQLite, and read them back with its client and in its web page.

    python .ci/tools/mlflow_server.py     # installs MLflow in a temporary folder; Chromium is Debian's

The script exports a benchmark and a training run, and compares the stored values with the runs. Then it covers:

- exporters killed (SIGKILL) at one request after another, before the server has the request or before its answer
- several exporters at once, from one folder and from copies of it
- runs that are followed while they play, killed with their follower, and resumed
- servers that fail, refuse, die, or are not MLflow
- runs with values that MLflow does not accept
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
from on_mlflow.held import build_expected_records, check_experiment, find_differences
from on_mlflow.killed import (
    IMPATIENT,
    check_followed_run,
    check_followed_training,
    check_killed_exports,
    check_parallel_exports,
)
from on_mlflow.servers import InterceptingProxy
from on_mlflow.tool import DELETE_SCRIPT, FOREIGN_RUN_SCRIPT, MlflowEnvironment, free_port, run_server, wait_for_exit
from shared import ROOT, SoftAssertions, temporary_folder

from runner.exports.mlflow.client import SERVER_HINT
from runner.results.folder import RunFolder
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
    with temporary_folder() as here:
        tool, port = MlflowEnvironment(here, args.python), free_port()
        uri = f"http://127.0.0.1:{port}"
        benchmark = (str(ROOT / "specs" / "quickstart.yaml"), "-q", "rollouts.per_datapoint=2")
        wait_for_exit(tool.nip_run(*benchmark, "dataset.limit=6"))
        prompts = str(ROOT / "prompts/code_validation/nip")
        changes = {"iterations": 3, "test": {"scheme": "all"}}
        wait_for_exit(tool.nip_run(str(training_spec(here / "learn", prompts=prompts, training=changes)), "-q"))
        small = training_spec(here / "small", name="small", prompts=prompts)
        wait_for_exit(tool.nip_run(str(small), "-q", "training.iterations=1"))
        for size, results in ((4, tool.results), (2, here / "other")):
            wait_for_exit(tool.nip_run(*benchmark, f"dataset.limit={size}", "--run-id", "twin", results=results))
        parts: dict[str, Callable[[], None]] = {
            "whole": lambda: check_complete_export(check, tool, uri, args.shot),
            "refused": lambda: check_refusals(check, tool, uri, port),
            "fitted": lambda: check_long_values(check, tool, uri),
            "damaged": lambda: check_damaged_files(check, tool, uri),
            "twins": lambda: check_equal_names(check, tool, uri),
            "followed": lambda: check_followed_run(check, tool, uri, port),
            "trained": lambda: check_followed_training(check, tool, uri),
            "at_once": lambda: check_parallel_exports(check, tool, uri),
            "kills": lambda: check_killed_exports(check, tool, uri, port, args.apart),
        }
        with run_server(tool, port):
            for name, part in parts.items():
                if name in (args.only or parts):
                    part()
        if "away" in (args.only or ["away"]):
            check_server_restart(check, tool, uri, port)
    return check.exit_code()


# Complete exports


def check_complete_export(check: SoftAssertions, tool: MlflowEnvironment, uri: str, shot: Path | None) -> None:
    """Export a benchmark and a training run together, and again."""
    export = json.loads(wait_for_exit(tool.export(uri, "whole", "quickstart", "learn"))[1])
    stored = check_experiment(check, tool, uri, "whole", "quickstart", "learn")
    runs = {run["name"]: run for run in stored["runs"]}
    learn = next(run for name, run in runs.items() if name.startswith("learn") and name[-3] != "-")
    lineages = [model[4]["nip_run.lineage"] for model in stored["models"] if model[2] == learn["name"]]
    steps = sorted(len(json.loads(lineage)) for lineage in lineages)
    check(steps == [1, 1, 2, 2, 3, 3], f"its {len(lineages)} models have 1 to {steps[-1]} trainings as their lineage")
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
    metric_rows = json.loads((tool.results / "runs" / bench["name"] / "metrics.json").read_text())["metrics"]
    (accuracy,) = (row["value"] for row in metric_rows if (row["agent"], row["metric"]) == (None, "accuracy"))
    steps = [step for step, _ in bench["metrics"]["accuracy"]]
    check(
        steps == list(range(1, 13)) and bench["metrics"]["accuracy"][-1] == [12, accuracy],
        f"a benchmark has its accuracy after each of 12 games; the last is the run's own, {accuracy:.4f}",
    )
    again = json.loads(wait_for_exit(tool.export(uri, "whole", "quickstart", "learn"))[1])
    check(all(run["sent"] == {} for run in again["runs"]), "sent again, nothing is sent")
    check(tool.read(uri, "whole") == stored, "and the server holds what it held")
    check_curve_page(check, next(run["page"] for run in export["runs"] if run["run_id"] == learn["name"]), shot)


def check_curve_page(check: SoftAssertions, page: str, shot: Path | None) -> None:
    """Check the learning curve in MLflow's web page."""
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


# Failures and unusual values


PAGE = b"<!doctype html><title>Welcome</title>"
FAILURES = {
    "HTTP 500": ((500, "text/html", b"<h1>Internal Server Error</h1>"), 1, "HTTP 500"),
    "HTTP 503": ((503, "text/html", b""), 1, "HTTP 503"),
    "HTTP 429": ((429, "text/html", b""), 1, "HTTP 429"),
    "HTTP 401": ((401, "text/html", b"who are you?"), 4, "MLFLOW_TRACKING_TOKEN"),
    "HTTP 403": (
        (403, "application/json", b'{"error_code": "PERMISSION_DENIED", "message": "no"}'),
        4,
        "for a user with permission",
    ),
    "a page that is not found": ((404, "text/html", PAGE), 1, SERVER_HINT),
    "a page of something else": ((200, "text/html", PAGE), 1, SERVER_HINT),
    "an answer of something else": ((200, "application/json", b'{"hello": 1}'), 1, SERVER_HINT),
}


def check_refusals(check: SoftAssertions, tool: MlflowEnvironment, uri: str, port: int) -> None:
    """Export to unusable addresses, and to a server that fails in the middle."""

    def check_failure(case: str, address: str, experiment: str, expected_code: int, expected_text: str) -> None:
        code, _, err = wait_for_exit(tool.export(address, experiment, "quickstart", **IMPATIENT), None)
        check(
            code == expected_code and expected_text in err and "bug" not in err,
            f"{case}: exit {code}: {err.strip()[:110]}...",
        )

    wait_for_exit(tool.start("-c", DELETE_SCRIPT, uri))
    check_failure("a deleted experiment", uri, "gone", 2, "restore it there")
    check_failure("no server", f"http://127.0.0.1:{free_port()}", "x", 1, "did not answer the request")
    check_failure("the address of a page", f"{uri}/#/experiments/0", "x", 2, "without the ? and # of a page")
    check_failure("a path that is not there", f"{uri}/wrong", "x", 1, SERVER_HINT)
    proxy = InterceptingProxy(port)
    proxy.failing_from = 0
    for name, (response, exit_code, message) in FAILURES.items():
        proxy.failure_response = response
        check_failure(name, proxy.uri, "x", exit_code, message)
    proxy.failing_from, proxy.failure_response, proxy.request_count = 20, FAILURES["HTTP 500"][0], 0
    check_failure("HTTP 500 from the 20th request on", proxy.uri, "failing", 1, "repeat the command to send the rest")
    wait_for_exit(tool.export(uri, "failing", "quickstart"))
    check_experiment(check, tool, uri, "failing", "quickstart")


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


def check_long_values(check: SoftAssertions, tool: MlflowEnvironment, uri: str) -> None:
    """Export a run whose names and values are too long for MLflow, or have characters that it refuses."""

    def change(metrics: dict[str, Any]) -> None:
        metric_row = next(metric_row for metric_row in metrics["metrics"] if metric_row["value"] is not None)
        metrics["metrics"] += [{**metric_row, "metric": name, "value": number / 8} for number, name in enumerate(NAMES)]
        metrics["metrics"].append({**metric_row, "metric": "large", "value": 1.7e308})

    results = copy_with_edit(tool, "fitted", "metrics.json", change)
    path = next((results / "runs").iterdir()) / "spec.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "description": "\U0001f600" * 20_000}))
    path = path.with_name("manifest.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "why_stopped": "w" * 50_000}))
    export = json.loads(wait_for_exit(tool.export(uri, "fitted", "quickstart", results=results))[1])
    stored = check_experiment(check, tool, uri, "fitted", "quickstart", results=results)["runs"][0]
    lengths = (
        len(stored["params"]["description"]),
        len(stored["tags"]["nip_run.why_stopped"]),
        max(map(len, stored["metrics"])),
    )
    notes = export["runs"][0]["notes"]
    check(lengths == (6_000, 8_000, 250), f"what was too long is {lengths} characters there; {len(notes)} notes say so")


def check_damaged_files(check: SoftAssertions, tool: MlflowEnvironment, uri: str) -> None:
    """Export runs with invalid numbers and damaged files: each is refused with a message, and nothing is sent."""

    def set_value(value: object) -> Callable[[dict[str, Any]], None]:
        return lambda metrics: metrics["metrics"][0].update(value=value)

    for case, file, change in (
        ("NaN", "metrics.json", set_value(float("nan"))),
        ("infinity", "metrics.json", set_value(float("inf"))),
        ("a word for a number", "metrics.json", set_value("much")),
        ("no metrics", "metrics.json", lambda content: content.pop("metrics")),
        ("no time", "manifest.json", lambda content: content.update(started_at="yesterday")),
    ):
        results = copy_with_edit(tool, case, file, change)
        code, _, err = wait_for_exit(tool.export(uri, "damaged", "quickstart", results=results), None)
        check(code == 1 and "damaged" in err and "bug" not in err, f"{case} in {file}: exit {code}: {_last_part(err)}")
    check(not tool.read(uri, "damaged")["runs"], "and nothing of them is there")


def _last_part(err: str) -> str:
    return err.strip().rpartition("/")[2][:110]


def copy_with_edit(tool: MlflowEnvironment, name: str, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Copy the benchmark to a new results folder, without the hashes of its files, and change one of the files."""
    results = tool.here / "edited" / name.replace(" ", "-")
    run = next((tool.results / "runs").glob("quickstart*"))
    shutil.copytree(run, results / "runs" / run.name)
    RunFolder(results / "runs" / run.name).sums.unlink()
    path = results / "runs" / run.name / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return results


def check_equal_names(check: SoftAssertions, tool: MlflowEnvironment, uri: str) -> None:
    """Export two runs of the same name from two folders, next to one that another client created."""
    wait_for_exit(tool.start("-c", FOREIGN_RUN_SCRIPT, uri, "twins", "twin"))
    other_results = tool.here / "other"
    for results in (tool.results, other_results, tool.results):
        wait_for_exit(tool.export(uri, "twins", "twin", results=results))
    stored = tool.read(uri, "twins")
    foreign = [run for run in stored["runs"] if "nip_run.key" not in run["tags"]]
    stored["runs"] = [run for run in stored["runs"] if run not in foreign]
    differing = find_differences(
        stored, build_expected_records(tool.results, "twin") | build_expected_records(other_results, "twin")
    )
    sizes = sorted(len(run["metrics"]["accuracy"]) for run in stored["runs"])
    check(
        not differing and sizes == [4, 8],
        f"two runs of one name stand apart, each whole: {sizes} points {differing or ''}",
    )
    untouched = [(run["metrics"], run["params"]) for run in foreign] == [({"accuracy": [[0, 0.125]]}, {})]
    check(untouched, "and one of that name that somebody else made is as it was")


def check_server_restart(check: SoftAssertions, tool: MlflowEnvironment, uri: str, port: int) -> None:
    """Kill the server during an export, restart it, and export again."""
    proxy = InterceptingProxy(port)
    with run_server(tool, port) as process:
        exporter = tool.export(proxy.uri, "away", "small", **IMPATIENT)
        while proxy.request_count < 40 and exporter.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        code, _, err = wait_for_exit(exporter, None)
    check(code == 1 and "repeat the command to send the rest" in err, f"the server dies in the middle: exit {code}")
    with run_server(tool, port):
        wait_for_exit(tool.export(uri, "away", "small"))
        check_experiment(check, tool, uri, "away", "small")


if __name__ == "__main__":
    sys.exit(main())
