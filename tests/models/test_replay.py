"""A finished run is played again with no network: the same bytes, or a clear word about what is missing."""

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


def replayed(spec: Path, run: Path, results: Path, *overrides: str, until_round: int | None = None) -> FinishedRun:
    return run_spec(spec, results, *overrides, replay=ReplayOf(run, until_round))


def same_bytes(one: Path, other: Path, *names: str) -> None:
    differing = [name for name in names or FILES if (one / name).read_bytes() != (other / name).read_bytes()]
    assert not differing
    assert derived_files(one) == derived_files(other)


def own_prompts(folder: Path) -> str:
    """A copy of the prompts that a test may edit."""
    shutil.copytree(ROOT / "prompts" / "code_validation" / "nip", folder / "prompts" / "own")
    return "prompts/own"


@pytest.fixture
def server() -> Any:
    with run_chat_server(cached_tokens=2) as running:
        yield running


@pytest.mark.gate
def test_a_replay_gives_the_same_bytes_with_no_request(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, rollouts={"per_datapoint": 2})
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    again = replayed(path, first.folder.path, tmp_path / "again")
    assert server.requests == asked
    assert again.folder.run_id == first.folder.run_id
    same_bytes(first.folder.path, again.folder.path)


@pytest.mark.full
def test_a_replay_of_a_run_with_failed_attempts_gives_the_same_bytes(tmp_path: Path) -> None:
    """The rows of failed calls are in the tables too, and come from the replayed journal."""
    with run_chat_server(faults={"server_error": 0.1, "drop": 0.05, "bad_decision": 0.1}) as server:
        path = spec_file(tmp_path, server.base_url)
        first = run_spec(path, tmp_path / "results")
        asked = server.requests
        again = replayed(path, first.folder.path, tmp_path / "again")
        assert server.requests == asked
    assert any(row["error"] for row in table(first.folder.path, "completions"))
    same_bytes(first.folder.path, again.folder.path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind", ["context_length_exceeded", "content_policy", "server_error", "refusal", "content_filter"]
)
def test_a_run_with_games_that_ended_badly_can_be_replayed(tmp_path: Path, kind: str) -> None:
    """What ended a game without an answer is a fact of the run, as an answer is."""
    with run_chat_server(kind=kind, after=30) as server:
        path = spec_file(tmp_path, server.base_url, retry={"transient": {"attempts": 2}}, rollouts={"concurrency": 2})
        first = run_spec(path, tmp_path / "results")
        asked = server.requests
        again = replayed(path, first.folder.path, tmp_path / "again")
        assert server.requests == asked
    outcomes = {row["outcome"] for row in table(first.folder.path, "rollouts")}
    assert len(outcomes) == 2
    same_bytes(first.folder.path, again.folder.path)


def test_a_replay_from_the_command_line_is_a_run_that_costs_nothing(tmp_path: Path, server: LoopbackServer) -> None:
    price = {"m": {"price": {"input": 1.0, "output": 2.0}}}
    first = run_spec(spec_file(tmp_path, server.base_url, models=price), tmp_path / "results")
    asked = server.requests
    done = nip_run_here("spec.yaml", "--replay", first.folder.run_id, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["run_id"] == f"{first.folder.run_id}-replay"
    assert result["cost_usd"] == 0
    assert result["metrics"] == first.metrics["metrics"]
    assert server.requests == asked


@pytest.mark.full
def test_a_replay_needs_no_key_and_no_server(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    elsewhere = ["models.m.base_url=http://127.0.0.1:9/v1", "models.m.api_key_env=NO_SUCH_KEY"]
    again = replayed(path, first.folder.path, tmp_path / "again", *elsewhere)
    same_bytes(first.folder.path, again.folder.path)


@pytest.mark.full
def test_a_replay_by_batch_settings_sends_no_batch(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    again = replayed(path, first.folder.path, tmp_path / "again", "models.m.batch=true")
    assert server.requests == asked
    same_bytes(first.folder.path, again.folder.path)


@pytest.mark.full
def test_other_payoffs_are_tried_for_free(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    again = replayed(path, first.folder.path, tmp_path / "results", "protocol.verifier_reward=3.5")
    assert server.requests == asked
    assert again.folder.run_id != first.folder.run_id
    same = ("datapoint_id", "decision", "correct", "rounds")
    one, other = table(first.folder.path, "rollouts"), table(again.folder.path, "rollouts")
    assert [[row[k] for k in same] for row in one] == [[row[k] for k in same] for row in other]
    paid = [json.loads(row["rewards"])["verifier"] for row in other if row["correct"]]
    assert set(paid) == {3.5}


def test_another_prompt_is_refused_with_the_place_where_it_differs(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url, prompts=own_prompts(tmp_path))
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    verifier = tmp_path / "prompts" / "own" / "verifier.jinja"
    verifier.write_text(verifier.read_text() + "\nBe brief.\n")
    done = nip_run_here("spec.yaml", "-q", "--replay", first.folder.run_id, cwd=tmp_path)
    assert server.requests == asked
    assert done.returncode == 1
    assert "verifier in round 0" in done.stderr
    assert "other messages" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_until_round_replays_the_first_rounds_and_asks_the_rest(tmp_path: Path, server: LoopbackServer) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    # From here on the server gives other answers.
    server.change(seed=99)
    again = replayed(path, first.folder.path, tmp_path / "again", until_round=2)
    said = [
        {(row["rollout_id"], row["round"], row["agent"]): row["content"] for row in table(folder, "messages")}
        for folder in (first.folder.path, again.folder.path)
    ]
    assert {k: v for k, v in said[0].items() if k[1] < 2} == {k: v for k, v in said[1].items() if k[1] < 2}
    later = [key for key in said[0] if key[1] >= 2]
    assert all(said[0][key] != said[1].get(key) for key in later)
    live = sum(row["round"] >= 2 for row in table(again.folder.path, "completions"))
    assert server.requests - asked == live > 0


def test_until_a_round_before_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="until round -1"):
        ReplayOf(tmp_path, -1)


@pytest.mark.full
def test_until_round_beyond_the_end_asks_nothing(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    again = replayed(path, first.folder.path, tmp_path / "again", until_round=99)
    assert server.requests == asked
    same_bytes(first.folder.path, again.folder.path)


@pytest.mark.full
def test_the_live_rounds_are_retried_once_by_the_policy_and_no_more(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(
        tmp_path, server.base_url, size=1, retry={"transient": {"attempts": 3}},
        protocol={"use": "solo_verifier", "max_message_rounds": None}, agents={"prover": None},
        prompts="prompts/code_validation/solo_verifier",
    )  # fmt: skip
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    server.change(kind="server_error")
    again = replayed(path, first.folder.path, tmp_path / "again", until_round=0)
    assert again.metrics["outcomes"]["transport_failed"] == 1
    assert server.requests - asked == 3


@pytest.mark.full
def test_a_partial_replay_spends_only_what_is_asked_live(tmp_path: Path, server: LoopbackServer) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    early = sum(row["round"] < 4 for row in table(first.folder.path, "completions"))
    live = len(table(first.folder.path, "completions")) - early
    asked = server.requests
    replayed(path, first.folder.path, tmp_path / "again", f"budget.completions={live}", until_round=4)
    assert server.requests - asked == live


@pytest.mark.full
def test_an_interrupted_partial_replay_goes_on_and_pays_for_nothing_twice(
    tmp_path: Path, server: LoopbackServer
) -> None:
    server.change(decide=0.0)
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    server.change(kind="insufficient_quota", after=asked + 10)
    words = ("spec.yaml", "-q", "--replay", first.folder.run_id, "--until-round", "2")
    assert nip_run_here(*words, cwd=tmp_path).returncode == 4
    refused = server.stats()["kinds"]["insufficient_quota"]
    server.change(kind=None)
    done = nip_run_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    live = sum(
        row["round"] >= 2
        for row in table(tmp_path / "results" / "runs" / f"{first.folder.run_id}-replay", "completions")
    )
    assert server.requests - asked - refused == live


@pytest.mark.full
def test_the_provider_replay_plays_a_run_by_its_folder(tmp_path: Path, server: LoopbackServer) -> None:
    first = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
    asked = server.requests
    run = f"results/runs/{first.folder.run_id}"
    replay = {"m": {"provider": "replay", "run": run, "base_url": None, "model": None, "timeout": None}}
    again = run_spec(spec_file(tmp_path, server.base_url, models=replay), tmp_path / "again")
    assert server.requests == asked
    assert again.manifest.cost_usd == 0
    drop = ("run_id", "rollout_id")
    for name in ("messages", "rollouts", "completions"):
        one, other = (
            [{k: v for k, v in row.items() if k not in drop} for row in table(folder, name)]
            for folder in (first.folder.path, again.folder.path)
        )
        assert one == other


@pytest.mark.full
def test_a_run_by_the_provider_replay_can_be_shown_and_its_spec_is_a_spec(
    tmp_path: Path, server: LoopbackServer
) -> None:
    """The saved spec names the replayed run from wherever it is read."""
    first = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
    replay = {"m": {"provider": "replay", "run": f"results/runs/{first.folder.run_id}"}}
    again = run_spec(spec_file(tmp_path, server.base_url, models=replay), tmp_path / "again")
    done = nip_run_here("check", again.folder.spec, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rollout = table(again.folder.path, "rollouts")[0]["rollout_id"]
    shown = nip_run_here("show", again.folder.path, rollout, "--results", "again", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def two_sources(folder: Path, server: LoopbackServer) -> tuple[Path, Path]:
    """Two runs of one spec whose server answered otherwise."""
    path = spec_file(folder, server.base_url, size=4)
    first = run_spec(path, folder / "results", run_id="a").folder.path
    server.change(seed=99)
    return first, run_spec(path, folder / "results", run_id="b").folder.path


def said_in(run: Path) -> list[str]:
    return [row["content"] for row in table(run, "messages")]


@pytest.mark.full
def test_a_sweep_over_replayed_runs_plays_each_of_them(tmp_path: Path, server: LoopbackServer) -> None:
    sources = two_sources(tmp_path, server)
    spec_file(
        tmp_path, size=4, models={"m": {"provider": "replay", "run": "results/runs/a"}},
        sweep={"models.m.run": ["results/runs/a", "results/runs/b"]},
    )  # fmt: skip
    done = nip_run_here("spec.yaml", "--json", "--results", "swept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [tmp_path / "swept" / "runs" / result["run_id"] for result in json.loads(done.stdout)]
    assert [said_in(run) for run in runs] == [said_in(source) for source in sources]
    assert said_in(runs[0]) != said_in(runs[1])


@pytest.mark.full
def test_under_one_run_id_another_run_cannot_be_replayed(tmp_path: Path, server: LoopbackServer) -> None:
    for source, code in zip(two_sources(tmp_path, server), (0, 1), strict=True):
        spec_file(tmp_path, size=4, models={"m": {"provider": "replay", "run": str(source)}})
        done = nip_run_here("spec.yaml", "-q", "--run-id", "p", cwd=tmp_path)
        assert done.returncode == code, done.stderr
    assert "these keys differ: models.m.run." in done.stderr


@pytest.mark.full
def test_a_replay_of_a_run_that_was_moved_is_the_same_run(tmp_path: Path, server: LoopbackServer) -> None:
    source, _ = two_sources(tmp_path, server)
    moved = tmp_path / "elsewhere"
    one = Plan(load_spec(spec_file(tmp_path, models={"m": {"provider": "replay", "run": str(source)}})))
    source.rename(moved)
    other = Plan(load_spec(spec_file(tmp_path, models={"m": {"provider": "replay", "run": str(moved)}})))
    assert one.identity == other.identity


@pytest.mark.full
def test_a_replay_is_shown_as_it_was_played_after_its_source_has_grown(tmp_path: Path, server: LoopbackServer) -> None:
    source, _ = two_sources(tmp_path, server)
    path = spec_file(tmp_path, size=4, models={"m": {"provider": "replay", "run": str(source)}})
    again = run_spec(path, tmp_path / "again").folder.path
    rollout = table(again, "rollouts")[0]["rollout_id"]
    spec = spec_file(tmp_path, server.base_url, size=4)
    run_spec(spec, tmp_path / "results", "rollouts.per_datapoint=2", run_id="a")
    shown = nip_run_here("show", again, rollout, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_a_run_without_a_journal_cannot_be_named_in_a_spec(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    spec_file(tmp_path, models={"m": {"provider": "replay", "run": "empty"}})
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "models.m.run: 'empty' has no readable journal.jsonl" in done.stderr


@pytest.mark.full
def test_a_replay_can_be_replayed(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    second = replayed(path, first.folder.path, tmp_path / "second")
    third = replayed(path, second.folder.path, tmp_path / "third")
    same_bytes(first.folder.path, third.folder.path)


@pytest.mark.full
def test_one_model_can_be_replayed_while_another_is_asked(tmp_path: Path, server: LoopbackServer) -> None:
    two = {"v": {"provider": "openai", "model": "tiny", "base_url": server.base_url, "timeout": HANG_SECONDS}}
    seats = {"verifier": {"model": "v"}}
    server.change(decide=0.0)
    first = run_spec(spec_file(tmp_path, server.base_url, models=two, agents=seats), tmp_path / "results")
    asked = server.requests
    both = {**two, "m": {"provider": "replay", "run": str(first.folder.path)}}
    again = run_spec(spec_file(tmp_path, server.base_url, models=both, agents=seats), tmp_path / "again")
    live = sum(row["agent"] == "verifier" for row in table(again.folder.path, "completions"))
    assert server.requests - asked == live


@pytest.mark.full
def test_an_answer_that_is_missing_is_named(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    done = nip_run_here(
        "spec.yaml", "-q", "rollouts.per_datapoint=2", "--replay", first.folder.run_id, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no answer number 0 of verifier in round 0" in done.stderr
    assert "(repeat 1)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_is_not_there_or_has_no_journal_is_a_clear_error(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    asked = server.requests
    assert nip_run_here("spec.yaml", "--replay", "nothing", cwd=tmp_path).returncode == 2
    (first.folder.path / "journal.jsonl").unlink()
    with pytest.raises(RunError, match="journal"):
        replayed(path, first.folder.path, tmp_path / "again")
    assert server.requests == asked


def test_a_replay_changes_nothing_of_the_replayed_run(tmp_path: Path, server: LoopbackServer) -> None:
    path = spec_file(tmp_path, server.base_url)
    first = run_spec(path, tmp_path / "results")
    before = {p: p.read_bytes() for p in first.folder.path.rglob("*") if p.is_file()}
    replayed(path, first.folder.path, tmp_path / "again")
    assert {p: p.read_bytes() for p in first.folder.path.rglob("*") if p.is_file()} == before
    assert only_run(tmp_path / "again").name == first.folder.run_id
