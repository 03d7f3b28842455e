"""Runs on a real MLflow server on SQLite, read back through its own client, also after kills, and seen in its page.

    python benchmarks/proofs/mlflow_server.py     # installs MLflow in a temporary folder; Chromium is Debian's

A benchmark and a training run are sent, and compared with what the runs themselves hold. Then the exporter is killed
(SIGKILL) at request after request, before the server has it or before its answer comes; two send at once, from one
folder and from two copies of it; a run is followed while it plays, is killed, and goes on; and the server is away.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shared import ROOT, Claims, folder

from runner.exports.mlflow.facts import TAG
from runner.exports.mlflow.games import Games
from runner.exports.mlflow.record import MlflowRun
from runner.exports.mlflow.training import training_record
from runner.results.results import Results
from tests.support.browser import chromium
from tests.support.training import training_spec

READ = """
import hashlib, json, sys
from pathlib import Path
from mlflow import MlflowClient

client, name = MlflowClient(tracking_uri=sys.argv[1]), sys.argv[2]
experiment = client.get_experiment_by_name(name).experiment_id
models = client.search_logged_models([experiment], max_results=500)
names = {model.model_id: model.name for model in models}
found = client.search_runs([experiment], max_results=500)
runs = [client.get_run(run.info.run_id) for run in found]  # a search knows no models that were put in
run_names = {run.info.run_id: run.info.run_name for run in runs}

def files(run, folder=None):
    for one in client.list_artifacts(run.info.run_id, folder):
        if one.is_dir:
            yield from files(run, one.path)
        else:
            path = Path(client.download_artifacts(run.info.run_id, one.path))
            yield one.path, hashlib.sha256(path.read_bytes()).hexdigest()

said = {
    "models": sorted([model.name, str(model.status), run_names[model.source_run_id], dict(model.params),
        {t: v for t, v in model.tags.items() if not t.startswith("mlflow.")}] for model in models),
    "runs": sorted((
        {
            "name": run.info.run_name,
            "id": run.info.run_id,
            "status": run.info.status,
            "times": [run.info.start_time, run.info.end_time],
            "params": run.data.params,
            "metrics": {key: sorted([m.step, m.value] for m in client.get_metric_history(run.info.run_id, key))
                        for key in run.data.metrics},
            "tags": {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"},
            "parent": run_names.get(run.data.tags.get("mlflow.parentRunId")),
            "datasets": sorted([one.dataset.name, one.dataset.digest, one.tags[0].value]
                               for one in run.inputs.dataset_inputs),
            "played": sorted(names[one.model_id] for one in run.inputs.model_inputs),
            "made": sorted([names[one.model_id], one.step] for one in run.outputs.model_outputs),
            "files": dict(files(run)),
        } for run in runs), key=lambda one: one["name"]),
}
print(json.dumps(said))
"""

DELETE = """
import sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
client.delete_experiment(client.create_experiment("gone"))
"""

SLOW = """\
extends: {root}/specs/quickstart.yaml
name: slow
dataset: {{limit: 40}}
rollouts: {{per_datapoint: 3, concurrency: 2}}
models: {{offline: {{provider: openai, model: slow, base_url: "{url}/v1"}}}}
"""


NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Seven processes more, which nothing here asks for."""


class Tool:
    """An environment that has MLflow, and what is asked of it."""

    def __init__(self, here: Path, python: Path | None) -> None:
        self.here, self.results = here, here / "results"
        self.python = python or self._installed()
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def _installed(self) -> Path:
        place = self.here / "tools"
        venv.create(place, with_pip=True)
        pip = [str(place / "bin" / "pip"), "install", "-q"]
        subprocess.run([*pip, "mlflow>=3.17", "-e", f"{ROOT}[mlflow]"], check=True)
        return place / "bin" / "python"

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python), *words], cwd=self.here, env={**self.environment, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def nip_run(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return self.start("-m", "runner", *words, "--results", str(self.results), **variables)

    def export(self, uri: str, experiment: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        target = ("--format", "mlflow", "--tracking-uri", uri, "--experiment", experiment, "--json")
        return self.nip_run("export", *words, *target, **variables)

    def read(self, uri: str, experiment: str) -> dict[str, Any]:
        return dict(json.loads(ended(self.start("-c", READ, uri, experiment))[1].splitlines()[-1]))


def ended(process: subprocess.Popen[str], code: int | None = 0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    if code is not None and process.returncode != code:
        raise SystemExit(f"{process.args!r}: exit {process.returncode}\n{out}\n{err}")
    return process.returncode, out, err


@contextmanager
def server(tool: Tool, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`mlflow server` on SQLite, with its own process group, since it has workers."""
    place = tool.here / "server"
    place.mkdir(exist_ok=True)
    store = ("--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--artifacts-destination", str(place / "files"))
    words = [str(tool.python), "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port)]
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(
            [*words, "--workers", "1"], cwd=place, env=tool.environment | NO_JOBS, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((place / "log").read_text()[-3000:])
            time.sleep(0.5)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Quiet(ThreadingHTTPServer):
    """A server that says nothing of a client that was killed."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Killer(Quiet):
    """Hands requests on to a server, and kills who asks at one of them: before it is handed on, or once it is."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.port, self.asked, self.at, self.after = port, 0, 0, False
        self.victim: subprocess.Popen[str] | None = None
        self.guard = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def due(self) -> bool:
        with self.guard:
            self.asked += 1
            return self.asked == self.at

    def kill(self) -> None:
        while self.victim is None:
            time.sleep(0.01)
        self.victim.kill()
        self.victim.wait()


OF_A_HOP = ("host", "connection", "transfer-encoding", "content-length")


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Killer

    def _any(self) -> None:
        body = self._body()
        due = self.server.due()
        if due and not self.server.after:
            self.server.kill()
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_A_HOP}
        onward.request(self.command, self.path, body, headers)
        answer = onward.getresponse()
        data = answer.read()
        if due:
            self.server.kill()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        """What was sent; an empty file comes in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""


class SlowModel(Quiet):
    """A model that takes a moment to answer."""

    seconds = 0.5

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowModel

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.seconds)
        stance = ("accept", "reject")[hashlib.sha256(body).digest()[0] % 2]
        message = {"role": "assistant", "content": f"I have looked.\n\nDecision: {stance}"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "slow", "choices": [choice]}
        data = json.dumps({**said, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has mlflow and nip-run")
    parser.add_argument("--apart", type=int, default=9, metavar="N", help="requests from kill to kill; default: 9")
    parser.add_argument("--shot", type=Path, metavar="FILE", help="keep a picture of the learning curve")
    args = parser.parse_args()
    claims = Claims()
    with folder() as here:
        tool, port = Tool(here, args.python), free_port()
        uri = f"http://127.0.0.1:{port}"
        ended(
            tool.nip_run(str(ROOT / "specs" / "quickstart.yaml"), "-q", "dataset.limit=6", "rollouts.per_datapoint=2")
        )
        changes = {"iterations": 3, "test": {"scheme": "all"}}
        spec = training_spec(here / "learn", prompts=str(ROOT / "prompts/code_validation/nip"), training=changes)
        ended(tool.nip_run(str(spec), "-q"))
        small = training_spec(here / "small", name="small", prompts=str(ROOT / "prompts/code_validation/nip"))
        ended(tool.nip_run(str(small), "-q", "training.iterations=1"))
        with server(tool, port):
            whole(claims, tool, uri, args.shot)
            refused(claims, tool, uri)
            kills(claims, tool, uri, port, args.apart)
            at_once(claims, tool, uri)
            followed(claims, tool, uri)
        away(claims, tool, uri, port)
    return claims.end()


# What is there


def wanted_of(results: Path, start: str) -> dict[str, MlflowRun]:
    """The records of a run and its parts, as this process makes them, by name."""
    found = Results(results)
    run = found.find(start)
    if not run.manifest().is_training_run:
        with Games(run, journal=False) as games:
            return {run.run_id: games.record()}
    records = {run.run_id: training_record(run, journal=False)}
    for part in found.parts_of(run.run_id):
        with Games(part, journal=False) as games:
            records[part.run_id] = games.record(run.manifest())
    return records


def differences(said: dict[str, Any], wanted: dict[str, MlflowRun]) -> list[str]:
    """Where a server's runs are not what the records say, each thing once."""
    found = []
    if [one["name"] for one in said["runs"]] != sorted(wanted):
        found.append(f"runs {[one['name'] for one in said['runs']]}")
    for one in said["runs"]:
        run = wanted[one["name"]]
        metrics: dict[str, list[list[float]]] = {}
        for point in run.metrics:
            metrics.setdefault(point.key, []).append([point.step, point.value])
        tags = {**run.tags, "mlflow.runName": run.name}
        files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for path, name in run.artifacts}
        held = {name: value for name, value in one["tags"].items() if name != f"{TAG}files"}
        sides = {
            "params": (one["params"], dict(run.params)),
            "metrics": (one["metrics"], {key: sorted(points) for key, points in metrics.items()}),
            "tags": (held, tags),
            "files": (one["files"], files),
            "status": (one["status"], run.status),
            "times": (one["times"], [run.started_ms, run.ended_ms]),
            "datasets": (one["datasets"], sorted([d.name, d.sha256[:36], d.context] for d in run.inputs)),
            "made": (one["made"], sorted([m.name, m.step] for m in run.models)),
            "parent": (one["parent"], next((n for n, other in wanted.items() if other.key == run.parent), None)),
        }
        found += [f"{one['name']}: {what}: {a!s:.300} is not {b!s:.300}" for what, (a, b) in sides.items() if a != b]
    models = sorted(
        [m.name, "READY", run.name, dict(m.params), dict(m.tags)] for run in wanted.values() for m in run.models
    )
    if said["models"] != models:
        found.append(f"models: {said['models']!s:.300} are not {models!s:.300}")
    return found


def held(claims: Claims, tool: Tool, uri: str, experiment: str, *starts: str) -> dict[str, Any]:
    """What an experiment has, and the claim that it is what the runs say."""
    wanted = {name: run for start in starts for name, run in wanted_of(tool.results, start).items()}
    said = tool.read(uri, experiment)
    wrong = differences(said, wanted)
    for line in wrong:
        print("     ", line)
    points = sum(len(one) for run in said["runs"] for one in run["metrics"].values())
    claims(
        not wrong,
        f"{experiment}: its client reads back {len(said['runs'])} runs with {points:,} points, "
        f"{sum(len(run['params']) for run in said['runs'])} parameters, {len(said['models'])} models and "
        f"{sum(len(run['files']) for run in said['runs'])} files, each once and as the runs have it",
    )
    return said


def whole(claims: Claims, tool: Tool, uri: str, shot: Path | None) -> None:
    """A benchmark and a training run, sent at once and again."""
    done = json.loads(ended(tool.export(uri, "whole", "quickstart", "learn"))[1])
    said = held(claims, tool, uri, "whole", "quickstart", "learn")
    runs = {run["name"]: run for run in said["runs"]}
    learn = next(run for name, run in runs.items() if name.startswith("learn") and name[-3] != "-")
    metrics = json.loads((tool.results / "runs" / learn["name"] / "metrics.json").read_text())
    curve = [[test["iteration"], test["accuracy"]["value"]] for test in metrics["tests"]]
    claims(learn["metrics"]["accuracy"] == curve and len(curve) == 4, f"the learning curve is the run's own: {curve}")
    nested = [run for run in runs.values() if run["parent"] == learn["name"]]
    claims(len(nested) == 7, f"its {len(nested)} games and tests are nested below it")
    played = {run["name"][-2:]: run["played"] for run in nested}
    claims(
        played["i0"] == [] and all(name.endswith(" 0") for name in played["i1"]) and len(played["i1"]) == 2,
        f"the games of iteration 1 have the models of iteration 0 as inputs: {played['i1']}",
    )
    bench = next(run for name, run in runs.items() if name.startswith("quickstart"))
    own = json.loads((tool.results / "runs" / bench["name"] / "metrics.json").read_text())["metrics"]
    (accuracy,) = (row["value"] for row in own if (row["agent"], row["metric"]) == (None, "accuracy"))
    steps = [step for step, _ in bench["metrics"]["accuracy"]]
    claims(
        steps == list(range(1, 13)) and bench["metrics"]["accuracy"][-1] == [12, accuracy],
        f"a benchmark has its accuracy after each of 12 games; the last is the run's own, {accuracy:.4f}",
    )
    again = json.loads(ended(tool.export(uri, "whole", "quickstart", "learn"))[1])
    claims(all(run["sent"] == {} for run in again["runs"]), "sent again, nothing is sent")
    claims(tool.read(uri, "whole") == said, "and the server holds what it held")
    seen(claims, next(run["page"] for run in done["runs"] if run["run_id"] == learn["name"]), shot)


def seen(claims: Claims, page: str, shot: Path | None) -> None:
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
    claims(first == "accuracy" and points == 4, f"MLflow's page shows {first!r} first, as a line of {points} points")


def refused(claims: Claims, tool: Tool, uri: str) -> None:
    """What cannot be sent to."""
    ended(tool.start("-c", DELETE, uri))
    code, _, err = ended(tool.export(uri, "gone", "quickstart"), None)
    claims(code == 2 and "was deleted" in err and "restore" in err, f"a deleted experiment: exit {code}: {err[:90]}...")
    fast = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    code, _, err = ended(tool.export(f"http://127.0.0.1:{free_port()}", "x", "quickstart", **fast), None)
    claims(code == 1 and "gives no answer" in err, f"no server: exit {code}")


# Killed, and several at once


def kills(claims: Claims, tool: Tool, uri: str, port: int, apart: int) -> None:
    """An exporter that is killed again and again, each time some requests later, until one comes to its end."""
    killer, killed = Killer(port), 0
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
    claims(killed >= 5, f"killed {killed} times, at requests 2 to {2 + apart * (killed - 1)}, before and after answers")
    held(claims, tool, uri, "kills", "small")


def at_once(claims: Claims, tool: Tool, uri: str) -> None:
    """Several exporters of the same runs at the same moment."""
    for process in [tool.export(uri, "at once", "small") for _ in range(3)]:
        ended(process)
    held(claims, tool, uri, "at once", "small")
    copies = [tool.here / f"copy{number}" for number in range(3)]
    started = []
    for copy in copies:
        shutil.copytree(tool.results, copy)
        words = ("export", "small", "--format", "mlflow", "--tracking-uri", uri, "--experiment", "copies")
        started.append(tool.start("-m", "runner", *words, "--results", str(copy)))
    for process in started:
        ended(process)
    held(claims, tool, uri, "copies", "small")


def followed(claims: Claims, tool: Tool, uri: str) -> None:
    """A run that is followed while it plays, is killed, and goes on."""
    model = SlowModel()
    spec = tool.here / "slow.yaml"
    spec.write_text(SLOW.format(root=ROOT, url=model.uri))
    key = {"OPENAI_API_KEY": "no-key-of-anyone"}
    play = ("-q", "--run-id", "slow")
    run = tool.nip_run(str(spec), *play, **key)
    while not (tool.results / "runs" / "slow" / "journal.jsonl").is_file():
        if run.poll() is not None:
            raise SystemExit(str(run.communicate()))
        time.sleep(0.1)
    follower = tool.export(uri, "followed", "slow", "--follow")
    grown: list[tuple[int, str]] = []
    while run.poll() is None and len(grown) < 2:
        time.sleep(2)
        try:
            said = tool.read(uri, "followed")["runs"]
        except (SystemExit, IndexError):
            continue
        points = len(said[0]["metrics"].get("accuracy", ())) if said else 0
        if points and (not grown or points > grown[-1][0]):
            grown.append((points, said[0]["status"]))
    claims(
        [status for _, status in grown] == ["RUNNING"] * 2,
        f"while it plays, the curve grows on the server: {' then '.join(str(n) for n, _ in grown)} points",
    )
    run.kill()
    run.wait()
    ended(follower)
    said = tool.read(uri, "followed")["runs"]
    claims(said[0]["status"] == "KILLED", f"the run is killed: the follower ends, and MLflow has {said[0]['status']}")
    model.seconds = 0.05
    run = tool.nip_run(str(spec), *play, **key)
    while json.loads((tool.results / "runs" / "slow" / "manifest.json").read_text())["status"] != "running" or (
        not locked_by_run(tool)
    ):
        if run.poll() is not None:
            break
        time.sleep(0.05)
    follower = tool.export(uri, "followed", "slow", "--follow")
    ended(run)
    ended(follower)
    held(claims, tool, uri, "followed", "slow")


def locked_by_run(tool: Tool) -> bool:
    return Results(tool.results).run("slow").manifest().status == "running"


def away(claims: Claims, tool: Tool, uri: str, port: int) -> None:
    """A server that dies in the middle, and comes back."""
    fast = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
    killer = Killer(port)
    with server(tool, port) as process:
        exporter = tool.export(killer.uri, "away", "small", **fast)
        while killer.asked < 40 and exporter.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        code, _, err = ended(exporter, None)
    claims(code == 1 and "goes on where it stopped" in err, f"the server dies in the middle: exit {code}")
    with server(tool, port):
        ended(tool.export(uri, "away", "small"))
        held(claims, tool, uri, "away", "small")


if __name__ == "__main__":
    sys.exit(main())
