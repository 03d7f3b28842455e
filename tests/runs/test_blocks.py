"""Blocks of games: each datapoint with both stances, and with the players of two agents exchanged."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.cli.main import main
from runner.game.protocols.rounds import Round
from runner.rollouts.estimate import estimate_costs
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import max_spending
from runner.runs.finished.reconstruction import saved_plan
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import warnings_of
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import python
from tests.support.runs import derived_files, journal_records, run_spec, table
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

SIZE = 2
MNIP = {"prompts": "prompts/code_validation/mnip", "protocol": {"use": "mnip", "max_message_rounds": 5}}
SAME_MODELS = {name: {"model": "cheap"} for name in ("prover0", "prover1", "verifier")}
DEBATE: dict[str, Any] = {
    "prompts": "prompts/code_validation/debate",
    "protocol": {"use": "debate", "max_message_rounds": 5},
}
MERLIN_ARTHUR = {
    "prompts": "prompts/code_validation/merlin_arthur",
    "protocol": {"use": "merlin_arthur", "max_message_rounds": None},
}


def write_two_model_spec(folder: Path, base_url: str | None = None, **changes: Any) -> Path:
    """Write a spec with four games a datapoint, for an expensive prover, a cheap prover and a cheap verifier."""
    server = (
        {"provider": "dummy"}
        if base_url is None
        else {"provider": "openai", "base_url": base_url, "timeout": HANG_SECONDS}
    )
    models = {
        "m": None,
        "dear": {**server, "model": "dear-1", "price": {"input": 10.0, "output": 10.0}},
        "cheap": {**server, "model": "cheap-1", "price": {"input": 1.0, "output": 1.0}},
    }
    agents = {
        "prover": None,
        "prover0": {"model": "dear"},
        "prover1": {"model": "cheap", "max_response_words": 40},
        "verifier": {"model": "cheap"},
    }
    design = {"stances": "both", "seats": "swap"}
    return spec_file(folder, size=SIZE, **{**MNIP, **design, "models": models, "agents": agents, **changes})


def test_a_block_is_four_games_with_one_seed(tmp_path: Path) -> None:
    path = write_two_model_spec(tmp_path, rollouts={"per_datapoint": 2})
    result = run_spec(path, tmp_path / "results")
    rows = table(result.path, "rollouts")
    blocks = [rows[at : at + 4] for at in range(0, len(rows), 4)]
    assert len(blocks) == 2 * SIZE
    for block in blocks:
        assert [(row["stance"], row["swapped"]) for row in block] == [(0, False), (0, True), (1, False), (1, True)]
        assert len({(row["datapoint_id"], row["repeat"], row["seed"]) for row in block}) == 1
    assert len({row["rollout_id"] for row in rows}) == 8 * SIZE
    assert result.accuracy is not None
    assert (result.accuracy.n, result.accuracy.clusters) == (8 * SIZE, SIZE)
    assert [block[0]["repeat"] for block in blocks] == [0] * SIZE + [1] * SIZE
    samples = {tuple(record["sample"]) for record in journal_records(result.path) if record["kind"] == "call"}
    assert {repeat for _, repeat, *_ in samples} == set(range(8))


def test_a_swap_exchanges_only_models_and_word_limits(tmp_path: Path) -> None:
    """The prompt, the channel, the stance and the reward stay with the seat."""
    plan = Plan(load_spec(write_two_model_spec(tmp_path)))
    as_written, swapped = plan.agents(), plan.agents(swapped=True)
    assert [swapped[f"prover{seat}"].model_name for seat in (0, 1)] == ["cheap-1", "dear-1"]
    assert swapped["verifier"].model_name == as_written["verifier"].model_name
    jobs = [job for job in plan.jobs() if job.stance == 1][:2]
    prompt, swapped_prompt = (
        cast["prover0"].prompt(job.observation(1, (Round(),)))[0]["content"]
        for cast, job in zip((as_written, swapped), jobs, strict=True)
    )
    assert prompt.replace("at most 150 words", "at most 40 words") == swapped_prompt != prompt


@pytest.mark.full
def test_provers_are_prompted_with_and_rewarded_for_their_stance(tmp_path: Path) -> None:
    result = run_spec(write_two_model_spec(tmp_path, fine_tune=None), tmp_path / "results")
    arrays = result.timesteps(prompts=True)
    rows = table(result.path, "rollouts")
    assert arrays["prover_stance"][:, 0].tolist() == [row["stance"] for row in rows]
    for row, prompts in zip(rows, arrays["agents", "prompt"], strict=True):
        texts = {text for text in prompts[:, 0, 0, 2] if text is not None}
        assert all(f'its verdict is "{("reject", "accept")[row["stance"]]}"' in text for text in texts)
        if row["outcome"] == "decided":
            assert json.loads(row["rewards"])["prover0"] == float(row["decision"] == row["stance"])


@pytest.mark.full
def test_opposed_provers_exchange_only_their_stances(tmp_path: Path) -> None:
    protocol = {"use": "debate", "max_message_rounds": 4, "verifier_first": False}  # provers speak in every game
    path = write_two_model_spec(tmp_path, **{**DEBATE, "protocol": protocol}, seats=None, fine_tune=None)
    result = run_spec(path, tmp_path / "results")
    rows, arrays = table(result.path, "rollouts"), result.timesteps(prompts=True)
    assert [(row["stances_exchanged"], row["stance"]) for row in rows] == [(False, None), (True, None)] * SIZE
    for row, prompts in zip(rows, arrays["agents", "prompt"], strict=True):
        sides = ["accept", "reject"] if row["stances_exchanged"] else ["reject", "accept"]
        for agent, side in enumerate(sides):
            texts = {text for text in prompts[:, agent, 0, 2] if text is not None}
            assert texts
            assert all(f"You are Expert_{agent + 1}." in text and f'its verdict is "{side}"' in text for text in texts)
        if row["outcome"] == "decided":
            winning_side = ("reject", "accept")[row["decision"]]
            rewards = json.loads(row["rewards"])
            assert [rewards[name] for name in ("prover0", "prover1")] == [float(side == winning_side) for side in sides]
    for written, exchanged in zip(rows[::2], rows[1::2], strict=True):
        assert all(written[name] == exchanged[name] for name in ("datapoint_id", "repeat", "seed"))
    verifier_prompts = [
        prompts[1, 2, 0, 2] for prompts in arrays["agents", "prompt"]
    ]  # the verifier does not see the exchange
    assert [verifier_prompts[at] == verifier_prompts[at + 1] is not None for at in (0, 2)] == [True, True]


@pytest.mark.full
def test_exchanging_stances_needs_prompts_that_use_the_stance(tmp_path: Path) -> None:
    path = write_two_model_spec(tmp_path, **DEBATE, seats=None)
    plan, unpaired_plan = Plan(load_spec(path)), Plan(load_spec(path, ["stances=null"]))
    assert plan.identity != unpaired_plan.identity
    assert [note for note in warnings_of(plan.spec) if "add `seats: swap` to separate them" in note]
    shutil.copytree(ROOT / "prompts" / "code_validation" / "debate", tmp_path / "own")
    prompt = (tmp_path / "own" / "prover1.jinja").read_text().replace("stance", "agent_name")
    (tmp_path / "own" / "prover1.jinja").write_text(prompt)
    with pytest.raises(SpecError) as refused:
        load_spec(write_two_model_spec(tmp_path, **{**DEBATE, "prompts": "own"}, seats=None))
    (problem,) = refused.value.problems
    assert (problem.key, "prover1.jinja:1:1 never uses the variable" in problem.message) == ("stances", True)


@pytest.mark.full
def test_each_answer_is_priced_and_trained_on_under_its_model(tmp_path: Path) -> None:
    with run_chat_server(decide=0.0) as server:
        path = write_two_model_spec(tmp_path, server.base_url)
        result = run_spec(path, tmp_path / "results")
    run, plan = result.path, saved_plan(result.folder)
    swapped = {row["rollout_id"]: row["swapped"] for row in table(run, "rollouts")}
    calls, usd = table(run, "completions"), 0.0
    seats = {"prover0": ("dear-1", "cheap-1"), "prover1": ("cheap-1", "dear-1"), "verifier": ("cheap-1", "cheap-1")}
    for row in calls:
        assert row["model"] == seats[row["agent"]][swapped[row["rollout_id"]]]
        usd += (row["prompt_tokens"] + row["completion_tokens"]) * (10 if row["model"] == "dear-1" else 1) / 1e6
    assert result.manifest.cost_usd == pytest.approx(usd)
    assert max_spending(plan, result.folder).usd == pytest.approx(usd)
    answers_by_model = {
        model: {row["raw_message"] for row in calls if row["model"] == model} for model in ("dear-1", "cheap-1")
    }
    for group, model in (("dear", "dear-1"), ("cheap", "cheap-1"), ("agents/prover0", "dear-1")):
        lines = (run / "fine_tune" / f"{group}.sft.jsonl").read_text().splitlines()
        answers = {json.loads(line)["messages"][-1]["content"] for line in lines}
        assert answers
        assert answers <= answers_by_model[model]
    low, high = {}, {}
    for estimate in estimate_costs(plan):
        low[estimate.group], high[estimate.group] = estimate.calls
    calls_by_model = Counter(row["model"] for row in calls)
    assert all(low[group] <= calls_by_model[f"{group}-1"] <= high[group] for group in ("dear", "cheap"))
    assert high["dear"] == calls_by_model["dear-1"] == 4 * SIZE * 2


@pytest.mark.full
def test_a_run_with_blocks_grows_resumes_and_replays_byte_for_byte(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = write_two_model_spec(tmp_path, server.base_url)
        small = run_spec(path, tmp_path / "results")
        small_count = server.requests
        grown = run_spec(path, tmp_path / "results", "rollouts.per_datapoint=2")
        full_count = server.requests
        fresh = run_spec(path, tmp_path / "fresh", "rollouts.per_datapoint=2")
        assert (grown.path, server.requests - full_count) == (small.path, full_count)
        assert 0 < small_count < full_count
        files = derived_files(fresh.path)
        assert derived_files(grown.path) == files
        # After a cut at a third of the journal, the run requests only the rest.
        journal = fresh.path / "journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        line_count = len(lines) // 3
        journal.write_bytes(b"".join(lines[:line_count]))
        for table_name in ("rollouts", "messages", "completions"):
            (fresh.path / f"{table_name}.parquet").unlink()
        manifest = json.loads((fresh.path / "manifest.json").read_text())
        (fresh.path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
        requests_before = server.requests
        resumed = run_spec(path, tmp_path / "fresh", "rollouts.per_datapoint=2")
        assert server.requests - requests_before == len(lines) - line_count
    assert derived_files(resumed.path) == files
    copy = shutil.copytree(resumed.path, tmp_path / "copy")
    replayed = run_spec(path, tmp_path / "replays", "rollouts.per_datapoint=2", replay=ReplayOf(copy, None))
    rows, replayed_rows = (table(run, "rollouts") for run in (resumed.path, replayed.path))
    assert [{**row, "run_id": ""} for row in rows] == [{**row, "run_id": ""} for row in replayed_rows]


@pytest.mark.full
def test_calls_are_shared_only_among_equal_games_of_a_block(tmp_path: Path) -> None:
    """A shared call has one prompt and one model."""
    with run_batch_provider() as provider:
        path = write_two_model_spec(
            tmp_path, provider.base_url,
            protocol={"use": "mnip", "max_message_rounds": 5, "verifier_first": False}, rollouts={"per_datapoint": 3},
        )  # fmt: skip
        share = [f"models.{group}.share_prompts=true" for group in ("dear", "cheap")]
        result = run_spec(path, tmp_path / "results", *share)
        call_sizes = Counter(provider.stats()["ns"])
    # Two provers open each of the four games of a block; one call serves all three repeats.
    assert call_sizes[3] == SIZE * 4 * 2
    opening = [row for row in table(result.path, "completions") if row["round"] == 0]
    assert len({(row["rollout_id"], row["agent"]) for row in opening}) == len(opening) == SIZE * 4 * 3 * 2
    modulo = {(record["sample"][1] % 4, record["of"] % 4) for record in journal_records(result.path) if "of" in record}
    assert modulo == {(variant, variant) for variant in range(4)}


@pytest.mark.full
def test_ids_of_a_block_are_the_same_in_another_process(tmp_path: Path) -> None:
    path = write_two_model_spec(tmp_path)
    code = (
        "from runner.rollouts.plan import Plan; from runner.spec.loader import load_spec; import sys;"
        "plan = Plan(load_spec(sys.argv[1])); print(plan.run_id, *(job.rollout_id for job in plan.jobs()))"
    )
    plan = Plan(load_spec(path))
    ids = [job.rollout_id for job in plan.jobs()]
    assert len(set(ids)) == 4 * SIZE
    assert python(code, path, PYTHONHASHSEED="7").stdout.split() == [plan.run_id, *ids]
    other_identities = {
        Plan(load_spec(path, change)).identity
        for change in (["stances=null"], ["seats=null"], ["stances=null", "seats=null"])
    }
    assert len({plan.identity, *other_identities}) == 4


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({**MERLIN_ARTHUR, "seats": None}, "stances", "chooses one of the opposed provers at random"),
        ({"agents": {"prover": None, **SAME_MODELS}}, "seats", "no two provers differ in model"),
        ({"seats": {"swap": ["prover0", "verifier"]}}, "seats", "different roles"),
        ({"seats": {"swap": ["prover0", "prover2"]}}, "seats", "no agent 'prover2'"),
        ({"seats": "swop"}, "seats", "must be swap"),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "stances", "trees of responses"),
    ],
)
def test_an_impossible_design_is_refused(tmp_path: Path, changes: Any, key: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(write_two_model_spec(tmp_path, **changes))
    assert any(problem.key == key and message in problem.message for problem in refused.value.problems)


@pytest.mark.full
def test_commands_describe_the_stance_and_swap_of_each_game(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_two_model_spec(tmp_path)
    assert main(["check", str(path), "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert (checked["rollouts"], checked["plays_per_block"]) == (4 * SIZE, 4)
    assert main(["check", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "played with both stances, as written and with the players of prover0 and prover1 exchanged" in output
    assert "the parity of its solution's hash" not in output
    for options, stance, limit in ((["--stance", "reject"], "reject", 150), (["--swapped"], "reject", 40),
                                 (["--stance", "accept", "--swapped"], "accept", 40)):  # fmt: skip
        assert main(["render", str(path), "prover0", *options]) == 0
        prompt = capsys.readouterr().out
        assert f'its verdict is "{stance}"' in prompt
        assert f"at most {limit} words" in prompt
    results = tmp_path / "results"
    result = run_spec(path, results)
    assert main(["show", "last", "p0", "--results", str(results)]) == 0
    captured = capsys.readouterr()
    assert "repeat 0  stance reject  seats as written" in captured.out
    assert "'p0' matches 4 rollouts; this is the first; others: " in captured.err
    assert "stance reject, seats swapped, repeat 0" in captured.err
    assert main(["show", "last", "--results", str(results)]) == 0
    assert "as written" in capsys.readouterr().out
    ids = [row["rollout_id"] for row in table(result.path, "rollouts")]
    assert "stance accept, seats swapped" in str(result.transcript(ids[3]))
    assert main(["show", "last", ids[3], "--prompt", "verifier", "--results", str(results)]) == 0
    assert "=== round 0: verifier" in capsys.readouterr().out
    sql = "SELECT swapped, count(*) AS games FROM rollouts GROUP BY swapped ORDER BY swapped"
    assert main(["sql", sql, "--json", "--results", str(results)]) == 0
    games = 2 * SIZE
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"swapped": False, "games": games}, {"swapped": True, "games": games}]
