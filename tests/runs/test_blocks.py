"""Games that are paired by design: each datapoint with both stances, and with the players of two seats exchanged."""

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
FREE = {"prompts": "prompts/code_validation/mnip", "protocol": {"use": "mnip", "max_message_rounds": 5}}
ALIKE = {name: {"model": "cheap"} for name in ("prover0", "prover1", "verifier")}
OPPOSED: dict[str, Any] = {
    "prompts": "prompts/code_validation/debate",
    "protocol": {"use": "debate", "max_message_rounds": 5},
}
DRAWN = {
    "prompts": "prompts/code_validation/merlin_arthur",
    "protocol": {"use": "merlin_arthur", "max_message_rounds": None},
}


def two_players(folder: Path, base_url: str | None = None, **changes: Any) -> Path:
    """A spec of four plays a datapoint, in which a dear model and a cheap one are the provers; the cheap one judges."""
    at = (
        {"provider": "dummy"}
        if base_url is None
        else {"provider": "openai", "base_url": base_url, "timeout": HANG_SECONDS}
    )
    models = {
        "m": None,
        "dear": {**at, "model": "dear-1", "price": {"input": 10.0, "output": 10.0}},
        "cheap": {**at, "model": "cheap-1", "price": {"input": 1.0, "output": 1.0}},
    }
    agents = {
        "prover": None,
        "prover0": {"model": "dear"},
        "prover1": {"model": "cheap", "max_response_words": 40},
        "verifier": {"model": "cheap"},
    }
    design = {"stances": "both", "seats": "swap"}
    return spec_file(folder, size=SIZE, **{**FREE, **design, "models": models, "agents": agents, **changes})


def test_a_block_is_four_plays_of_one_chance(tmp_path: Path) -> None:
    path = two_players(tmp_path, rollouts={"per_datapoint": 2})
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


def test_a_swap_exchanges_models_and_word_limits_and_nothing_else(tmp_path: Path) -> None:
    """The prompt, the channel, the stance and the reward stay with the seat."""
    plan = Plan(load_spec(two_players(tmp_path)))
    as_written, other = plan.agents(), plan.agents(swapped=True)
    assert [other[f"prover{seat}"].model_name for seat in (0, 1)] == ["cheap-1", "dear-1"]
    assert other["verifier"].model_name == as_written["verifier"].model_name
    jobs = [job for job in plan.jobs() if job.stance == 1][:2]
    written, exchanged = (
        cast["prover0"].prompt(job.observation(1, (Round(),)))[0]["content"]
        for cast, job in zip((as_written, other), jobs, strict=True)
    )
    assert written.replace("at most 150 words", "at most 40 words") == exchanged != written


@pytest.mark.full
def test_each_stance_is_told_to_provers_and_paid(tmp_path: Path) -> None:
    result = run_spec(two_players(tmp_path, fine_tune=None), tmp_path / "results")
    arrays = result.timesteps(prompts=True)
    rows = table(result.path, "rollouts")
    assert arrays["prover_stance"][:, 0].tolist() == [row["stance"] for row in rows]
    for row, prompts in zip(rows, arrays["agents", "prompt"], strict=True):
        said = {text for text in prompts[:, 0, 0, 2] if text is not None}
        assert all(f'its verdict is "{("reject", "accept")[row["stance"]]}"' in text for text in said)
        if row["outcome"] == "decided":
            assert json.loads(row["rewards"])["prover0"] == float(row["decision"] == row["stance"])


@pytest.mark.full
def test_opposed_provers_exchange_their_stances_and_nothing_else(tmp_path: Path) -> None:
    protocol = {"use": "debate", "max_message_rounds": 4, "verifier_first": False}  # provers speak in every game
    path = two_players(tmp_path, **{**OPPOSED, "protocol": protocol}, seats=None, fine_tune=None)
    result = run_spec(path, tmp_path / "results")
    rows, arrays = table(result.path, "rollouts"), result.timesteps(prompts=True)
    assert [(row["stances_exchanged"], row["stance"]) for row in rows] == [(False, None), (True, None)] * SIZE
    for row, prompts in zip(rows, arrays["agents", "prompt"], strict=True):
        argued = ["accept", "reject"] if row["stances_exchanged"] else ["reject", "accept"]
        for agent, side in enumerate(argued):
            said = {text for text in prompts[:, agent, 0, 2] if text is not None}
            assert said
            assert all(f"You are Expert_{agent + 1}." in text and f'its verdict is "{side}"' in text for text in said)
        if row["outcome"] == "decided":
            won = ("reject", "accept")[row["decision"]]
            rewards = json.loads(row["rewards"])
            assert [rewards[name] for name in ("prover0", "prover1")] == [float(side == won) for side in argued]
    for written, exchanged in zip(rows[::2], rows[1::2], strict=True):
        assert all(written[name] == exchanged[name] for name in ("datapoint_id", "repeat", "seed"))
    judge = [prompts[1, 2, 0, 2] for prompts in arrays["agents", "prompt"]]  # who is told nothing of it
    assert [judge[at] == judge[at + 1] is not None for at in (0, 2)] == [True, True]


@pytest.mark.full
def test_an_exchange_needs_prompts_that_follow_it(tmp_path: Path) -> None:
    path = two_players(tmp_path, **OPPOSED, seats=None)
    plan, other = Plan(load_spec(path)), Plan(load_spec(path, ["stances=null"]))
    assert plan.identity != other.identity
    assert [note for note in warnings_of(plan.spec) if "add `seats: swap` to separate them" in note]
    shutil.copytree(ROOT / "prompts" / "code_validation" / "debate", tmp_path / "own")
    fixed = (tmp_path / "own" / "prover1.jinja").read_text().replace("stance", "agent_name")
    (tmp_path / "own" / "prover1.jinja").write_text(fixed)
    with pytest.raises(SpecError) as refused:
        load_spec(two_players(tmp_path, **{**OPPOSED, "prompts": "own"}, seats=None))
    (problem,) = refused.value.problems
    assert (problem.key, "prover1.jinja:1:1 never uses the variable" in problem.message) == ("stances", True)


@pytest.mark.full
def test_each_answer_is_paid_for_and_trained_on_by_who_gave_it(tmp_path: Path) -> None:
    with run_chat_server(decide=0.0) as server:
        path = two_players(tmp_path, server.base_url)
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
    said = {model: {row["raw_message"] for row in calls if row["model"] == model} for model in ("dear-1", "cheap-1")}
    for group, model in (("dear", "dear-1"), ("cheap", "cheap-1"), ("agents/prover0", "dear-1")):
        lines = (run / "fine_tune" / f"{group}.sft.jsonl").read_text().splitlines()
        answers = {json.loads(line)["messages"][-1]["content"] for line in lines}
        assert answers
        assert answers <= said[model]
    low, high = {}, {}
    for one in estimate_costs(plan):
        low[one.group], high[one.group] = one.calls
    asked = Counter(row["model"] for row in calls)
    assert all(low[group] <= asked[f"{group}-1"] <= high[group] for group in ("dear", "cheap"))
    assert high["dear"] == asked["dear-1"] == 4 * SIZE * 2


@pytest.mark.full
def test_a_block_run_grows_and_goes_on_and_replays_to_the_byte(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = two_players(tmp_path, server.base_url)
        small = run_spec(path, tmp_path / "results")
        asked = server.requests
        grown = run_spec(path, tmp_path / "results", "rollouts.per_datapoint=2")
        whole = server.requests
        fresh = run_spec(path, tmp_path / "fresh", "rollouts.per_datapoint=2")
        assert (grown.path, server.requests - whole) == (small.path, whole)
        assert 0 < asked < whole
        files = derived_files(fresh.path)
        assert derived_files(grown.path) == files
        # Cut short after a third of its journal, it asks for the rest alone.
        journal = fresh.path / "journal.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        kept = len(lines) // 3
        journal.write_bytes(b"".join(lines[:kept]))
        for made in ("rollouts", "messages", "completions"):
            (fresh.path / f"{made}.parquet").unlink()
        manifest = json.loads((fresh.path / "manifest.json").read_text())
        (fresh.path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
        before = server.requests
        again = run_spec(path, tmp_path / "fresh", "rollouts.per_datapoint=2")
        assert server.requests - before == len(lines) - kept
    assert derived_files(again.path) == files
    copy = shutil.copytree(again.path, tmp_path / "copy")
    replayed = run_spec(path, tmp_path / "replays", "rollouts.per_datapoint=2", replay=ReplayOf(copy, None))
    rows, others = (table(run, "rollouts") for run in (again.path, replayed.path))
    assert [{**row, "run_id": ""} for row in rows] == [{**row, "run_id": ""} for row in others]


@pytest.mark.full
def test_answers_are_shared_among_like_plays_of_a_block_alone(tmp_path: Path) -> None:
    """What one call asks for is asked with one prompt, of one model."""
    with run_batch_provider() as provider:
        path = two_players(
            tmp_path, provider.base_url,
            protocol={"use": "mnip", "max_message_rounds": 5, "verifier_first": False}, rollouts={"per_datapoint": 3},
        )  # fmt: skip
        share = [f"models.{group}.share_prompts=true" for group in ("dear", "cheap")]
        result = run_spec(path, tmp_path / "results", *share)
        numbers = Counter(provider.stats()["ns"])
    # Two provers open in each of four plays: a call for all three repeats of each.
    assert numbers[3] == SIZE * 4 * 2
    opening = [row for row in table(result.path, "completions") if row["round"] == 0]
    assert len({(row["rollout_id"], row["agent"]) for row in opening}) == len(opening) == SIZE * 4 * 3 * 2
    modulo = {(record["sample"][1] % 4, record["of"] % 4) for record in journal_records(result.path) if "of" in record}
    assert modulo == {(variant, variant) for variant in range(4)}


@pytest.mark.full
def test_ids_of_a_block_are_the_same_in_another_process(tmp_path: Path) -> None:
    path = two_players(tmp_path)
    code = (
        "from runner.rollouts.plan import Plan; from runner.spec.loader import load_spec; import sys;"
        "plan = Plan(load_spec(sys.argv[1])); print(plan.run_id, *(job.rollout_id for job in plan.jobs()))"
    )
    plan = Plan(load_spec(path))
    ids = [job.rollout_id for job in plan.jobs()]
    assert len(set(ids)) == 4 * SIZE
    assert python(code, path, PYTHONHASHSEED="7").stdout.split() == [plan.run_id, *ids]
    others = {
        Plan(load_spec(path, change)).identity
        for change in (["stances=null"], ["seats=null"], ["stances=null", "seats=null"])
    }
    assert len({plan.identity, *others}) == 4


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({**DRAWN, "seats": None}, "stances", "chooses one of the opposed provers at random"),
        ({"agents": {"prover": None, **ALIKE}}, "seats", "no two provers differ in model"),
        ({"seats": {"swap": ["prover0", "verifier"]}}, "seats", "different roles"),
        ({"seats": {"swap": ["prover0", "prover2"]}}, "seats", "no agent 'prover2'"),
        ({"seats": "swop"}, "seats", "did you mean 'swap'"),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "stances", "trees of responses"),
    ],
)
def test_a_design_that_makes_no_sense_is_refused(tmp_path: Path, changes: Any, key: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(two_players(tmp_path, **changes))
    assert any(problem.key == key and says in problem.message for problem in refused.value.problems)


@pytest.mark.full
def test_a_design_says_what_it_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_players(tmp_path)
    assert main(["check", str(path), "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert (checked["rollouts"], checked["plays_per_block"]) == (4 * SIZE, 4)
    assert main(["check", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "played with both stances, as written and with the players of prover0 and prover1 exchanged" in said
    assert "the parity of its solution's hash" not in said
    for words, stance, limit in ((["--stance", "reject"], "reject", 150), (["--swapped"], "reject", 40),
                                 (["--stance", "accept", "--swapped"], "accept", 40)):  # fmt: skip
        assert main(["render", str(path), "prover0", *words]) == 0
        shown = capsys.readouterr().out
        assert f'its verdict is "{stance}"' in shown
        assert f"at most {limit} words" in shown
    results = tmp_path / "results"
    result = run_spec(path, results)
    assert main(["show", "last", "p0", "--results", str(results)]) == 0
    told = capsys.readouterr()
    assert "repeat 0  stance reject  seats as written" in told.out
    assert "'p0' matches 4 rollouts; this is the first; others: " in told.err
    assert "stance reject, seats swapped, repeat 0" in told.err
    assert main(["show", "last", "--results", str(results)]) == 0
    assert "as written" in capsys.readouterr().out
    ids = [row["rollout_id"] for row in table(result.path, "rollouts")]
    assert "stance accept, seats swapped" in str(result.transcript(ids[3]))
    assert main(["show", "last", ids[3], "--prompt", "verifier", "--results", str(results)]) == 0
    assert "=== round 0: verifier" in capsys.readouterr().out
    sql = "SELECT swapped, count(*) AS games FROM rollouts GROUP BY swapped ORDER BY swapped"
    assert main(["sql", sql, "--json", "--results", str(results)]) == 0
    games = 2 * SIZE
    told_rows = json.loads(capsys.readouterr().out)
    assert told_rows == [{"swapped": False, "games": games}, {"swapped": True, "games": games}]
