"""An environment that has MLflow: its server on SQLite, the exporter, and what its client reads back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shared import ROOT

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

FOREIGN = """
import sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
made = client.create_run(client.create_experiment(sys.argv[2]), run_name=sys.argv[3])
client.log_metric(made.info.run_id, "accuracy", 0.125)
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

    def nip_run(self, *words: str, results: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        return self.start("-m", "runner", *words, "--results", str(results or self.results), **variables)

    def export(
        self, uri: str, experiment: str, *words: str, results: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        target = ("--format", "mlflow", "--tracking-uri", uri, "--experiment", experiment, "--json")
        return self.nip_run("export", *words, *target, results=results, **variables)

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


def asked(uri: str, path: str, **body: Any) -> dict[str, Any]:
    """What the server's API says to one question, without the seconds that its client takes to begin."""
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/{path}", json.dumps(body).encode() if body else None,
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))


def stands(uri: str, experiment: str) -> tuple[str, int]:
    """The status of the one run of an experiment, and how many points its accuracy has by now."""
    try:
        found = asked(uri, f"experiments/get-by-name?experiment_name={quote(experiment)}")["experiment"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return "", 0
        raise
    runs = asked(uri, "runs/search", experiment_ids=[found["experiment_id"]]).get("runs", [])
    if not runs:
        return "", 0
    info = runs[0]["info"]
    history = asked(uri, f"metrics/get-history?run_id={info['run_id']}&metric_key=accuracy")
    return info["status"], len(history.get("metrics", []))
