"""The example `specs/tiny` with fewer steps: pretraining, the server, games, both kinds of training, a restart.

The models learn too little to play well. The test checks that every part fits the next.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from runner.base.exit_codes import ExitCode
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import command, environment, nip_run, wait_until
from tests.support.runs import journal_records
from tests.support.soft_assertions import SoftAssertions

PROTOCOLS = ("solo_verifier", "adp", "nip", "debate", "merlin_arthur")
ONE_THREAD = environment(OMP_NUM_THREADS="1", PATH=f"{Path(sys.executable).parent}:{environment()['PATH']}")

PRETRAINING_CHECK = """
import json, re, sys
import pretrain
from claims import Claim
for line in sys.stdin:
    content = json.loads(line)["prompt"][0]["content"]
    if match := re.search(r"([0-4]{12})=([0-4])[?](?:[^0-9]*: ([0-4]{12})$)?", content):
        claim = Claim(tuple(map(int, match[1])), int(match[2]))
        if "Expert" in content:
            chat = pretrain.adp_chat(claim, match[3]) if match[3] else None
        else:
            chat = pretrain.chat_of(pretrain.prompt("adp/prover", claim))
        if chat:
            print(chat[0]["content"] == content)
"""
"""Print, for each line of a fine-tuning file with a complete proof, whether its prompt equals that of pretraining."""


REQUESTS = "requests.jsonl"
"""The server's log: each request with its response."""


def start_server(folder: Path, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """Start the example's server in a folder, and return its process and its address."""
    arguments = [sys.executable, "server.py", "--port", str(port), "--log", REQUESTS]
    process = subprocess.Popen(arguments, cwd=folder, env=ONE_THREAD, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@contextmanager
def kill_at_end(process: subprocess.Popen[Any]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()


@contextmanager
def run_example_server(folder: Path) -> Iterator[str]:
    process, address = start_server(folder)
    with kill_at_end(process):
        yield address


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that prepare.sh creates, with models trained for at most 100 steps."""
    folder = tmp_path_factory.mktemp("tiny")
    command = ["bash", str(ROOT / "specs/tiny/prepare.sh")]
    done = subprocess.run(
        command, cwd=folder, env={**ONE_THREAD, "STEPS": "100"}, capture_output=True, text=True, check=False,
        timeout=10 * HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def play_spec(folder: Path, address: str, *arguments: str) -> Any:
    done = nip_run(
        *arguments, *make_address_overrides(address), "--json", cwd=folder, timeout=10 * HANG_SECONDS, **ONE_THREAD
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def make_address_overrides(address: str) -> list[str]:
    """Return the overrides of a spec for a server's address."""
    return [f"models.{group}.base_url={address}" for group in ("prover", "verifier")]


def read_requests(folder: Path) -> list[Any]:
    """Return the requests that the server has logged, with their responses."""
    path = folder / REQUESTS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def read_chats(folder: Path) -> set[str]:
    """Return each chat that the server has received with each of its answers, as JSON."""
    return {
        json.dumps([entry["request"]["messages"], choice["message"]["content"]])
        for entry in read_requests(folder)
        for choice in entry["response"]["choices"]
    }


def request_answers(address: str, chat: Any, **settings: Any) -> Any:
    body = {"model": "./models/0/start/verifier.pt", "messages": chat, "max_tokens": 20, **settings}
    request = Request(f"{address}/chat/completions", json.dumps(body).encode())
    with urlopen(request, timeout=HANG_SECONDS) as response:
        return json.loads(response.read())["choices"]


def test_train_and_test_claims_share_no_digits(example: Path) -> None:
    rows = [json.loads(line) for line in (example / "claims.jsonl").read_text("utf-8").splitlines()]
    digits = {split: {row["digits"] for row in rows if row["split"] == split} for split in ("train", "test")}
    assert len(digits["test"]) == 300
    assert not digits["train"] & digits["test"]
    for row in rows:
        assert row["label"] == (sum(map(int, row["digits"])) % 5 == int(row["claim"][-2]))


def test_example_plays_and_trains(example: Path, check: SoftAssertions) -> None:
    with run_example_server(example) as address:
        for protocol in PROTOCOLS:
            play_spec(example, address, f"{protocol}.yaml", "--run-id", protocol, "dataset.limit=20")
        for method in ("expert_iteration", "malt"):
            overrides = ["training.iterations=1", "training.datapoints_per_iteration=60", "training.test.limit=20"]
            play_spec(example, address, f"{method}.yaml", "--run-id", method, *overrides)
            check_training(example, method, check)


def check_training(example: Path, run: str, check: SoftAssertions) -> None:
    folder = example / "results/runs" / run
    for group, model in json.loads((folder / "state.json").read_bytes()).items():
        (step,) = model["lineage"]
        weights = (example / step["model"]).read_bytes()
        check(weights != (example / step["from_model"]).read_bytes(), f"{run}: {group} has new weights")
    received_chats = read_chats(example)
    datasets = sorted((folder / "iterations/0").glob("*.trl.jsonl"))
    check(bool(datasets), f"{run}: {len(datasets)} fine-tuning files")
    for path in datasets:
        examples = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        keys = [key for key in ("completion", "chosen", "rejected") if key in examples[0]]
        training_chats = {json.dumps([row["prompt"], row[key][0]["content"]]) for row in examples for key in keys}
        check(
            training_chats <= received_chats,
            f"{path.name}: {len(training_chats)} chats to learn are as the server received and answered them",
        )
    for path in sorted((folder / "iterations/0").glob("*.sft.trl.jsonl")):
        command = [sys.executable, "-c", PRETRAINING_CHECK]
        comparisons = subprocess.check_output(
            command, cwd=example, env=ONE_THREAD, input=path.read_text("utf-8"), text=True
        ).split()
        check(set(comparisons) == {"True"}, f"{path.name}: {len(comparisons)} prompts are as in pretraining")


def test_answers_do_not_change_when_the_server_restarts(example: Path) -> None:
    chat = [{"role": "user", "content": "Do these digits add up to this sum modulo 5? 314102430212=3?"}]
    request_settings = [(0, {"n": 1}), (1, {"n": 3}), (0, {"logprobs": True, "top_logprobs": 2})]
    before: list[Any] = []
    after: list[Any] = []
    for results in (before, after):
        with run_example_server(example) as address:
            results += [
                request_answers(address, chat, temperature=temperature, **settings)
                for temperature, settings in request_settings
            ]
    assert before == after
    assert [len(choices) for choices in before] == [1, 3, 1]
    tokens = before[2][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == before[2][0]["message"]["content"]


def test_same_command_continues_after_kills_of_run_server_and_training(example: Path, check: SoftAssertions) -> None:
    """A kill loses at most the answers in flight, one for each concurrent game."""
    (example / REQUESTS).unlink(missing_ok=True)
    trainer_log = example / "results/runs/killed/iterations/0/verifier.job/trainer.log"
    concurrency = 8
    with ExitStack() as stack:
        server, address = start_server(example)
        stack.enter_context(kill_at_end(server))
        arguments = [
            "expert_iteration.yaml", "--run-id", "killed", "training.iterations=1", "training.test.limit=20",
            "training.datapoints_per_iteration=150", f"rollouts.concurrency={concurrency}",
            *make_address_overrides(address),
        ]  # fmt: skip
        with run_and_kill(example, arguments) as process:
            wait_until(lambda: len(read_requests(example)) > 80 or process.poll() is not None)
        requests_before = len(read_requests(example))
        with run_and_kill(example, arguments) as process:
            wait_until(lambda: len(read_requests(example)) > requests_before + 40 or process.poll() is not None)
            server.kill()
            server.wait()
            new_server, _ = start_server(example, urlsplit(address).port or 0)
            stack.enter_context(kill_at_end(new_server))
            wait_until(lambda: trainer_log.exists() or process.poll() is not None)
        done = nip_run(*arguments, "--json", cwd=example, timeout=10 * HANG_SECONDS, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    saved_count = check_saved_answers(example, "killed", check)
    answer_count = len(read_requests(example))
    check(
        saved_count <= answer_count <= saved_count + 2 * concurrency,
        f"{saved_count} saved answers, {answer_count} answers of the server",
    )
    check_training(example, "killed", check)


def check_saved_answers(example: Path, run: str, check: SoftAssertions) -> int:
    """Check that no answer of a training run's games was requested again, and return the number of answers."""
    samples = [
        (path.parent.name, *record["sample"])
        for path in example.glob(f"results/runs/{run}-*/journal.jsonl")
        for record in journal_records(path.parent)
        if record["kind"] == "call"
    ]
    check(
        len(samples) == len(set(samples)), f"{run}: {len(samples)} answers for {len(set(samples))} different requests"
    )
    return len(samples)


def read_trainer_pid(job: Path) -> int:
    """Return the id of the process that trains in a job's folder, or 0 before it has started."""
    lock = job / "trainer.lock"
    text = lock.read_text("utf-8") if lock.exists() else ""
    return int(json.loads(text)["pid"]) if text else 0


@contextmanager
def run_and_kill(folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run nip-run until the end of the block, and kill it."""
    with subprocess.Popen(command(*arguments), cwd=folder, env=ONE_THREAD, stderr=subprocess.DEVNULL) as process:
        yield process
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()


def test_same_command_trains_again_after_a_kill_of_the_trainer(example: Path, check: SoftAssertions) -> None:
    (example / REQUESTS).unlink(missing_ok=True)
    with run_example_server(example) as address:
        arguments = [
            "verifier_only.yaml", "--run-id", "trainer-killed", "training.iterations=1", "training.test.limit=20",
            "training.datapoints_per_iteration=150", *make_address_overrides(address),
        ]  # fmt: skip
        job = example / "results/runs/trainer-killed/iterations/0/verifier.job"
        with subprocess.Popen(
            command(*arguments), cwd=example, env=ONE_THREAD, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: read_trainer_pid(job) != 0 or process.poll() is not None)
            os.kill(read_trainer_pid(job), signal.SIGKILL)
            _, message = process.communicate(timeout=10 * HANG_SECONDS)
        check(process.returncode == ExitCode.FAILED and "killed by SIGKILL" in message, message)
        done = nip_run(*arguments, "--json", cwd=example, timeout=10 * HANG_SECONDS, **ONE_THREAD)
    assert done.returncode == 0, done.stderr
    check((job / "trainer.1.log").exists(), "the killed trainer has left its log")
    saved_count = check_saved_answers(example, "trainer-killed", check)
    check(
        saved_count == len(read_requests(example)),
        f"{saved_count} saved answers, {len(read_requests(example))} answers of the server",
    )
    check_training(example, "trainer-killed", check)
