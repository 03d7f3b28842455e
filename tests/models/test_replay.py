"""Replays of finished runs: the same bytes without a network, or an error that names the missing answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import RunError, UsageError
from runner.rollouts.plan import Plan
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

FILES = ("rollouts.parquet", "messages.parquet", "completions.parquet", "metrics.json")


def replay_run(spec: Path, run: Path, results: Path, *overrides: str, until_round: int | None = None) -> FinishedRun:
    return run_spec(spec, results, *overrides, replay=ReplayOf(run, until_round))


def assert_same_bytes(expected_run: Path, run: Path, *names: str) -> None:
    differing = [name for name in names or FILES if (expected_run / name).read_bytes() != (run / name).read_bytes()]
    assert not differing
    assert derived_files(expected_run) == derived_files(run)


def copy_prompts(folder: Path) -> str:
    """Copy the prompts into `folder`, so that a test can edit them."""
    shutil.copytree(ROOT / "prompts" / "code_validation" / "nip", folder / "prompts" / "own")
    return "prompts/own"


@pytest.fixture
def server() -> Any:
    with run_chat_server(cached_tokens=2) as running:
        yield running


@pytest.mark.gate
def test_replay_writes_the_same_bytes_without_sending_requests(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, rollouts={"per_datapoint": 2})
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    replay = replay_run(path, first.folder.path, tmp_path / "again")
    assert server.requests == requests_before
    assert replay.folder.run_id == first.folder.run_id
    assert_same_bytes(first.folder.path, replay.folder.path)


@pytest.mark.full
def test_replay_of_a_run_with_failed_attempts_writes_the_same_bytes(tmp_path: Path) -> None:
    """The rows of failed calls are in the tables too, and come from the replayed journal."""
    with run_chat_server(faults={"server_error": 0.1, "drop": 0.05, "bad_decision": 0.1}) as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
        requests_before = server.requests
        replay = replay_run(path, first.folder.path, tmp_path / "again")
        assert server.requests == requests_before
    assert any(row["error"] for row in table(first.folder.path, "completions"))
    assert_same_bytes(first.folder.path, replay.folder.path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind", ["context_length_exceeded", "content_policy", "server_error", "refusal", "content_filter"]
)
def test_run_with_games_that_ended_in_errors_can_be_replayed(tmp_path: Path, kind: str) -> None:
    """An error that ended a game is recorded and replayed, like an answer."""
    with run_chat_server(kind=kind, after=30) as server:
        path = spec_file(tmp_path, server.base_url, retry={"transient": {"attempts": 2}}, rollouts={"concurrency": 2})
        first = run_spec(path, tmp_path / "results")
        requests_before = server.requests
        replay = replay_run(path, first.folder.path, tmp_path / "again")
        assert server.requests == requests_before
    outcomes = {row["outcome"] for row in table(first.folder.path, "rollouts")}
    assert len(outcomes) == 2
    assert_same_bytes(first.folder.path, replay.folder.path)


def test_replay_from_the_command_line_costs_nothing(tmp_path: Path, server: LoopbackServer) -> None:
    price = {"m": {"price": {"input": 1.0, "output": 2.0}}}
    first = run_spec(spec_file(tmp_path, server.base_url, models=price), tmp_path / "results")
    requests_before = server.requests
    done = nip_run_here("spec.yaml", "--replay", first.folder.run_id, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["run_id"] == f"{first.folder.run_id}-replay"
    assert result["cost_usd"] == 0
    assert result["metrics"] == first.metrics["metrics"]
    assert server.requests == requests_before


@pytest.mark.full
def test_replay_needs_no_key_and_no_server(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    overrides = ["models.m.base_url=http://127.0.0.1:9/v1", "models.m.api_key_env=NO_SUCH_KEY"]
    replay = replay_run(path, first.folder.path, tmp_path / "again", *overrides)
    assert_same_bytes(first.folder.path, replay.folder.path)


@pytest.mark.full
def test_replay_with_batch_settings_sends_no_batch(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    replay = replay_run(path, first.folder.path, tmp_path / "again", "models.m.batch=true")
    assert server.requests == requests_before
    assert_same_bytes(first.folder.path, replay.folder.path)


@pytest.mark.full
def test_replay_with_other_rewards_sends_no_requests(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    replay = replay_run(path, first.folder.path, tmp_path / "results", "protocol.verifier_reward=3.5")
    assert server.requests == requests_before
    assert replay.folder.run_id != first.folder.run_id
    same_columns = ("datapoint_id", "decision", "correct", "rounds")
    first_rows, replay_rows = table(first.folder.path, "rollouts"), table(replay.folder.path, "rollouts")
    assert [[row[k] for k in same_columns] for row in first_rows] == [
        [row[k] for k in same_columns] for row in replay_rows
    ]
    verifier_rewards = [json.loads(row["rewards"])["verifier"] for row in replay_rows if row["correct"]]
    assert set(verifier_rewards) == {3.5}


def test_replay_with_a_changed_prompt_fails_and_names_the_differing_message(
    tmp_path: Path, server: LoopbackServer
) -> None:
    path = spec_file(tmp_path, server.base_url, prompts=copy_prompts(tmp_path))
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    verifier = tmp_path / "prompts" / "own" / "verifier.jinja"
    verifier.write_text(verifier.read_text() + "\nBe brief.\n")
    done = nip_run_here("spec.yaml", "-q", "--replay", first.folder.run_id, cwd=tmp_path)
    assert server.requests == requests_before
    assert done.returncode == 1
    assert "verifier in round 0" in done.stderr
    assert "other messages" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_until_round_replays_the_first_rounds_and_plays_the_rest_live(tmp_path: Path, server: LoopbackServer) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    # The server gives other answers from here on.
    server.change(seed=99)
    replay = replay_run(path, first.folder.path, tmp_path / "again", until_round=2)
    messages = [
        {(row["rollout_id"], row["round"], row["agent"]): row["content"] for row in table(folder, "messages")}
        for folder in (first.folder.path, replay.folder.path)
    ]
    assert {k: v for k, v in messages[0].items() if k[1] < 2} == {k: v for k, v in messages[1].items() if k[1] < 2}
    live_keys = [key for key in messages[0] if key[1] >= 2]
    assert all(messages[0][key] != messages[1].get(key) for key in live_keys)
    live_calls = sum(row["round"] >= 2 for row in table(replay.folder.path, "completions"))
    assert server.requests - requests_before == live_calls > 0


def test_negative_until_round_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="until round -1"):
        ReplayOf(tmp_path, -1)


@pytest.mark.full
def test_until_round_beyond_the_last_round_sends_no_requests(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    replay = replay_run(path, first.folder.path, tmp_path / "again", until_round=99)
    assert server.requests == requests_before
    assert_same_bytes(first.folder.path, replay.folder.path)


@pytest.mark.full
def test_live_rounds_of_a_replay_are_retried_as_often_as_the_policy_allows(
    tmp_path: Path, server: LoopbackServer
) -> None:
    path = spec_file(
        tmp_path, server.base_url, size=1, retry={"transient": {"attempts": 3}},
        protocol={"use": "solo_verifier", "max_message_rounds": None}, agents={"prover": None},
        prompts="prompts/code_validation/solo_verifier",
    )  # fmt: skip
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    server.change(kind="server_error")
    replay = replay_run(path, first.folder.path, tmp_path / "again", until_round=0)
    assert replay.metrics["outcomes"]["transport_failed"] == 1
    assert server.requests - requests_before == 3


@pytest.mark.full
def test_partial_replay_charges_the_budget_only_for_live_calls(tmp_path: Path, server: LoopbackServer) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    early_calls = sum(row["round"] < 4 for row in table(first.folder.path, "completions"))
    live_calls = len(table(first.folder.path, "completions")) - early_calls
    requests_before = server.requests
    replay_run(path, first.folder.path, tmp_path / "again", f"budget.completions={live_calls}", until_round=4)
    assert server.requests - requests_before == live_calls


@pytest.mark.full
def test_interrupted_partial_replay_resumes_without_repeating_calls(tmp_path: Path, server: LoopbackServer) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    server.change(kind="insufficient_quota", after=requests_before + 10)
    arguments = ("spec.yaml", "-q", "--replay", first.folder.run_id, "--until-round", "2")
    assert nip_run_here(*arguments, cwd=tmp_path).returncode == 4
    refused = server.stats()["kinds"]["insufficient_quota"]
    server.change(kind=None)
    done = nip_run_here(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    live_calls = sum(
        row["round"] >= 2
        for row in table(tmp_path / "results" / "runs" / f"{first.folder.run_id}-replay", "completions")
    )
    assert server.requests - requests_before - refused == live_calls


@pytest.mark.full
def test_replay_provider_replays_a_run_given_by_its_folder(tmp_path: Path, server: LoopbackServer) -> None:
    first = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
    requests_before = server.requests
    run = f"results/runs/{first.folder.run_id}"
    replay_models = {"m": {"provider": "replay", "run": run, "base_url": None, "model": None, "timeout": None}}
    replay = run_spec(spec_file(tmp_path, server.base_url, models=replay_models), tmp_path / "again")
    assert server.requests == requests_before
    assert replay.manifest.cost_usd == 0
    ignored_columns = ("run_id", "rollout_id")
    for name in ("messages", "rollouts", "completions"):
        first_rows, replay_rows = (
            [{k: v for k, v in row.items() if k not in ignored_columns} for row in table(folder, name)]
            for folder in (first.folder.path, replay.folder.path)
        )
        assert first_rows == replay_rows


@pytest.mark.full
def test_run_of_the_replay_provider_can_be_shown_and_its_saved_spec_is_valid(
    tmp_path: Path, server: LoopbackServer
) -> None:
    """The saved spec finds the replayed run from any working directory."""
    first = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
    replay_models = {"m": {"provider": "replay", "run": f"results/runs/{first.folder.run_id}"}}
    replay = run_spec(spec_file(tmp_path, server.base_url, models=replay_models), tmp_path / "again")
    done = nip_run_here("check", replay.folder.spec, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rollout = table(replay.folder.path, "rollouts")[0]["rollout_id"]
    show = nip_run_here("show", replay.folder.path, rollout, "--results", "again", cwd=tmp_path)
    assert show.returncode == 0, show.stderr


def create_two_runs(folder: Path, server: LoopbackServer) -> tuple[Path, Path]:
    """Create two runs of one spec with different answers."""
    path = spec_file(folder, server.base_url, size=4)
    first = run_spec(path, folder / "results", run_id="a").folder.path
    server.change(seed=99)
    return first, run_spec(path, folder / "results", run_id="b").folder.path


def read_message_texts(run: Path) -> list[str]:
    return [row["content"] for row in table(run, "messages")]


@pytest.mark.full
def test_sweep_over_replayed_runs_replays_each_of_them(tmp_path: Path, server: LoopbackServer) -> None:
    sources = create_two_runs(tmp_path, server)
    spec_file(
        tmp_path, size=4, models={"m": {"provider": "replay", "run": "results/runs/a"}},
        sweep={"models.m.run": ["results/runs/a", "results/runs/b"]},
    )  # fmt: skip
    done = nip_run_here("spec.yaml", "--json", "--results", "swept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [tmp_path / "swept" / "runs" / result["run_id"] for result in json.loads(done.stdout)]
    assert [read_message_texts(run) for run in runs] == [read_message_texts(source) for source in sources]
    assert read_message_texts(runs[0]) != read_message_texts(runs[1])


@pytest.mark.full
def test_run_id_of_a_replay_cannot_be_reused_for_the_replay_of_another_run(
    tmp_path: Path, server: LoopbackServer
) -> None:
    for source, code in zip(create_two_runs(tmp_path, server), (0, 1), strict=True):
        spec_file(tmp_path, size=4, models={"m": {"provider": "replay", "run": str(source)}})
        done = nip_run_here("spec.yaml", "-q", "--run-id", "p", cwd=tmp_path)
        assert done.returncode == code, done.stderr
    assert "these keys differ: models.m.run." in done.stderr


@pytest.mark.full
def test_replay_keeps_its_identity_when_its_source_run_is_moved(tmp_path: Path, server: LoopbackServer) -> None:
    source, _ = create_two_runs(tmp_path, server)
    moved = tmp_path / "elsewhere"
    plan_before = Plan(load_spec(spec_file(tmp_path, models={"m": {"provider": "replay", "run": str(source)}})))
    source.rename(moved)
    plan_after = Plan(load_spec(spec_file(tmp_path, models={"m": {"provider": "replay", "run": str(moved)}})))
    assert plan_before.identity == plan_after.identity


@pytest.mark.full
def test_replay_is_shown_unchanged_after_its_source_run_has_grown(tmp_path: Path, server: LoopbackServer) -> None:
    source, _ = create_two_runs(tmp_path, server)
    path = spec_file(tmp_path, size=4, models={"m": {"provider": "replay", "run": str(source)}})
    replay = run_spec(path, tmp_path / "again").folder.path
    rollout = table(replay, "rollouts")[0]["rollout_id"]
    spec = spec_file(tmp_path, server.base_url, size=4)
    run_spec(spec, tmp_path / "results", "rollouts.per_datapoint=2", run_id="a")
    show = nip_run_here("show", replay, rollout, cwd=tmp_path)
    assert show.returncode == 0, show.stderr


def test_check_rejects_a_replay_of_a_run_without_a_journal(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    spec_file(tmp_path, models={"m": {"provider": "replay", "run": "empty"}})
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "models.m.run: 'empty' has no readable journal.jsonl" in done.stderr


@pytest.mark.full
def test_replay_can_be_replayed(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    second = replay_run(path, first.folder.path, tmp_path / "second")
    third = replay_run(path, second.folder.path, tmp_path / "third")
    assert_same_bytes(first.folder.path, third.folder.path)


@pytest.mark.full
def test_one_model_can_be_replayed_while_another_is_called_live(tmp_path: Path, server: LoopbackServer) -> None:
    models = {"v": {"provider": "openai", "model": "tiny", "base_url": server.base_url, "timeout": HANG_SECONDS}}
    agents = {"verifier": {"model": "v"}}
    server.change(decide=0.0)
    first = run_spec(spec_file(tmp_path, server.base_url, models=models, agents=agents), tmp_path / "results")
    requests_before = server.requests
    replay_models = {**models, "m": {"provider": "replay", "run": str(first.folder.path)}}
    replay = run_spec(spec_file(tmp_path, server.base_url, models=replay_models, agents=agents), tmp_path / "again")
    live_calls = sum(row["agent"] == "verifier" for row in table(replay.folder.path, "completions"))
    assert server.requests - requests_before == live_calls


@pytest.mark.full
def test_replay_names_the_missing_answer(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    done = nip_run_here(
        "spec.yaml", "-q", "rollouts.per_datapoint=2", "--replay", first.folder.run_id, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no answer number 1 of verifier in round 0" in done.stderr
    assert "(repeat 1)" in done.stderr
    assert "Traceback" not in done.stderr


def test_replay_of_a_missing_run_or_journal_fails_without_requests(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    requests_before = server.requests
    assert nip_run_here("spec.yaml", "--replay", "nothing", cwd=tmp_path).returncode == 2
    (first.folder.path / "journal.jsonl").unlink()
    with pytest.raises(RunError, match="journal"):
        replay_run(path, first.folder.path, tmp_path / "again")
    assert server.requests == requests_before


def test_replay_does_not_change_the_replayed_run(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    before = {p: p.read_bytes() for p in first.folder.path.rglob("*") if p.is_file()}
    replay_run(path, first.folder.path, tmp_path / "again")
    assert {p: p.read_bytes() for p in first.folder.path.rglob("*") if p.is_file()} == before
    assert only_run(tmp_path / "again").name == first.folder.run_id
