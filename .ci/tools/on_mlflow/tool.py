"""An environment with MLflow: its server on SQLite, the exporter, and MLflow's client."""

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

READ_SCRIPT = """
import hashlib, json, sys
from pathlib import Path
from mlflow import MlflowClient

client, name = MlflowClient(tracking_uri=sys.argv[1]), sys.argv[2]
experiment = client.get_experiment_by_name(name).experiment_id
models = client.search_logged_models([experiment], max_results=500)
names = {model.model_id: model.name for model in models}
matches = client.search_runs([experiment], max_results=500)
runs = [client.get_run(run.info.run_id) for run in matches]  # a search returns no input models
run_names = {run.info.run_id: run.info.run_name for run in runs}

def files(run, folder=None):
    for artifact in client.list_artifacts(run.info.run_id, folder):
        if artifact.is_dir:
            yield from files(run, artifact.path)
        else:
            path = Path(client.download_artifacts(run.info.run_id, artifact.path))
            yield artifact.path, hashlib.sha256(path.read_bytes()).hexdigest()

stored = {
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
            "datasets": sorted([source.dataset.name, source.dataset.digest, source.tags[0].value]
                               for source in run.inputs.dataset_inputs),
            "played": sorted(names[model.model_id] for model in run.inputs.model_inputs),
            "made": sorted([names[model.model_id], model.step] for model in run.outputs.model_outputs),
            "files": dict(files(run)),
        } for run in runs), key=lambda run: run["name"]),
}
print(json.dumps(stored))
"""


DELETE_SCRIPT = """
import sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
client.delete_experiment(client.create_experiment("gone"))
"""

FOREIGN_RUN_SCRIPT = """
import sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
run = client.create_run(client.create_experiment(sys.argv[2]), run_name=sys.argv[3])
client.log_metric(run.info.run_id, "accuracy", 0.125)
"""

NO_JOB_PROCESSES = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Keeps MLflow from starting seven processes for jobs, which these checks do not need."""


class MlflowEnvironment:
    """An environment that has MLflow, and the commands that run in it."""

    def __init__(self, here: Path, python: Path | None) -> None:
        self.here, self.results = here, here / "results"
        self.python = python or self._install()
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def _install(self) -> Path:
        environment = self.here / "tools"
        venv.create(environment, with_pip=True)
        pip = [str(environment / "bin" / "pip"), "install", "-q"]
        subprocess.run([*pip, "mlflow>=3.17", "-e", f"{ROOT}[mlflow]"], check=True)
        return environment / "bin" / "python"

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python), *arguments], cwd=self.here, env={**self.environment, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def nip_run(self, *arguments: str, results: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        return self.start("-m", "runner", *arguments, "--results", str(results or self.results), **variables)

    def export(
        self, uri: str, experiment: str, *arguments: str, results: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        target = ("--format", "mlflow", "--tracking-uri", uri, "--experiment", experiment, "--json")
        return self.nip_run("export", *arguments, *target, results=results, **variables)

    def read(self, uri: str, experiment: str) -> dict[str, Any]:
        return dict(json.loads(wait_for_exit(self.start("-c", READ_SCRIPT, uri, experiment))[1].splitlines()[-1]))


def wait_for_exit(process: subprocess.Popen[str], code: int | None = 0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    if code is not None and process.returncode != code:
        raise SystemExit(f"{process.args!r}: exit {process.returncode}\n{out}\n{err}")
    return process.returncode, out, err


@contextmanager
def run_server(tool: MlflowEnvironment, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `mlflow server` on SQLite, in its own process group, since it starts workers."""
    server_folder = tool.here / "server"
    server_folder.mkdir(exist_ok=True)
    store = (
        "--backend-store-uri",
        f"sqlite:///{server_folder}/mlflow.db",
        "--artifacts-destination",
        str(server_folder / "files"),
    )
    command = [str(tool.python), "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(port)]
    with (server_folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--workers", "1"], cwd=server_folder, env=tool.environment | NO_JOB_PROCESSES,
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((server_folder / "log").read_text()[-3000:])
            time.sleep(0.5)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def call_api(uri: str, path: str, **body: Any) -> dict[str, Any]:
    """Send a request to the server's API. MLflow's client would take seconds to start."""
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/{path}", json.dumps(body).encode() if body else None,
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as response:
        return dict(json.loads(response.read()))


def read_progress(uri: str, experiment: str) -> tuple[str, int]:
    """Return the status of an experiment's only run, and the number of points of its accuracy."""
    try:
        stored_experiment = call_api(uri, f"experiments/get-by-name?experiment_name={quote(experiment)}")["experiment"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return "", 0
        raise
    runs = call_api(uri, "runs/search", experiment_ids=[stored_experiment["experiment_id"]]).get("runs", [])
    if not runs:
        return "", 0
    info = runs[0]["info"]
    history = call_api(uri, f"metrics/get-history?run_id={info['run_id']}&metric_key=accuracy")
    return info["status"], len(history.get("metrics", []))
