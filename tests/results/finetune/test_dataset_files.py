"""Fine-tuning files of complete runs: learned answers, rows for RL, splits, traces, and exports."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.game.protocols.tree_shape import TreeShape
from runner.results.finetune.examples import ExampleSource, Preference
from runner.results.finetune.files import FineTuneFiles, TreeSettings
from runner.results.finetune.formats import FORMATS
from runner.results.finetune.game_lines import build_example, is_in_validation
from runner.results.manifest import Status
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from runner.spec.experiment import FineTune
from runner.spec.loader import load_spec
from tests.support.files import json_lines, parquet_rows
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 6},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
}
VERDICTS = [{"role": "assistant", "content": f"Decision: {verdict}"} for verdict in ("accept", "reject")]
UNDECIDED = "I have checked it.\n\nDecision: undecided"


def assistant_messages(example: dict[str, Any]) -> list[dict[str, Any]]:
    return [message for message in example["messages"] if message["role"] == "assistant"]


# Learned answers


@pytest.mark.full
def test_answer_that_could_not_be_parsed_is_not_learned(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"retry": {"invalid_response": {"attempts": 1}}}
    with run_chat_server(faults={"bad_decision": 0.3}, decide=0.2) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, **changes), tmp_path / "results").folder.path
    agents = run / "fine_tune" / "agents"
    verifier_turns = [
        turn for example in json_lines(agents / "verifier.sft.jsonl") for turn in assistant_messages(example)
    ]
    assert {turn["content"] == UNDECIDED for turn in verifier_turns} == {True, False}
    assert all(turn.get("weight") == 0 for turn in verifier_turns if turn["content"] == UNDECIDED)
    learned_turns = [turn for line in json_lines(agents / "verifier.sft.trl.jsonl") for turn in line["completion"]]
    assert learned_turns
    assert all(set(turn) == {"role", "content"} and turn["content"] != UNDECIDED for turn in learned_turns)
    assert Counter(turn["content"] for turn in verifier_turns if "weight" not in turn) == Counter(
        t["content"] for t in learned_turns
    )
    # Provers have no unusable answers, because no verdict is parsed from them.
    prover_turns = [turn for example in json_lines(agents / "prover.sft.jsonl") for turn in assistant_messages(example)]
    assert not any("weight" in turn for turn in prover_turns)


@pytest.mark.full
def test_answer_cut_at_the_token_limit_is_not_learned(tmp_path: Path) -> None:
    with run_chat_server(faults={"length": 0.3}) as server:
        run = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results").folder.path
    cut = {c["raw_message"] for c in table(run, "completions") if c["finish_reason"] == "length"}
    for agent in ("verifier", "prover"):
        turns = [
            turn
            for e in json_lines(run / "fine_tune" / "agents" / f"{agent}.sft.jsonl")
            for turn in assistant_messages(e)
        ]
        assert any(turn["content"] in cut for turn in turns)
        assert all(turn.get("weight") == 0 for turn in turns if turn["content"] in cut)


@pytest.mark.full
def test_label_that_replaces_a_bad_answer_is_learned(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "retry": {"invalid_response": {"attempts": 1}},
        "fine_tune": {"replace_verifier_guess_with_true_label": True},
    }
    with run_chat_server(kind=None, text=UNDECIDED) as server:
        run = run_spec(spec_file(tmp_path, server.base_url, **changes), tmp_path / "results").folder.path
    examples = json_lines(run / "fine_tune" / "agents" / "verifier.sft.jsonl")
    assert examples
    for example in examples:
        *before, last = assistant_messages(example)
        assert last in VERDICTS
        assert all(turn["weight"] == 0 for turn in before)


# Debates


@pytest.mark.full
def test_debate_in_the_alternating_chat_format_has_alternating_roles(tmp_path: Path) -> None:
    path = spec_file(tmp_path, fine_tune={"chat_format": "alternating"}, **DEBATE)
    run = run_spec(path, tmp_path / "results").folder.path
    report = json.loads((run / "fine_tune" / "report.json").read_text())
    assert {(row["chat_format"], row["as_played"]) for row in report} == {("alternating", False)}
    chats_with_both_experts = 0
    for path in (run / "fine_tune").rglob("*.sft.trl.jsonl"):
        for example in (line for line in json_lines(path) if "prompt" in line):
            chat = [*example["prompt"], *example["completion"]]
            roles = [message["role"] for message in chat]
            assert roles[0] == "user" or roles[:2] == ["system", "user"]
            assert all(first != second for first, second in pairwise(roles))
            chats_with_both_experts += any(
                "Expert_1: " in m["content"] and "Expert_2: " in m["content"] for m in chat[1:]
            )
    assert chats_with_both_experts > 0


# Rows for RL


@pytest.mark.full
def test_rl_file_has_a_row_for_each_turn_with_the_chat_of_its_request(tmp_path: Path) -> None:
    with run_chat_server(faults={"bad_decision": 0.1, "length": 0.1}) as server:
        models = {"m": {"chat_format": "openai"}}
        path = spec_file(tmp_path, server.base_url, models=models, fine_tune={"formats": ["verl"]})
        folder = run_spec(path, tmp_path / "results").folder
    reconstructor = Reconstructor(folder, saved_plan(folder))
    chats = {}
    for request in reconstructor.requests():
        sample = request.sample
        # Parquet has one type for all messages: a missing name is null.
        chat = [{**message, "name": message.get("name")} for message in request.messages]
        chats[sample.datapoint, sample.agent, sample.round] = chat
    rollouts = {rollout.job.rollout_id: rollout for rollout in reconstructor.rollouts()}
    reconstructor.close()
    for agent in ("verifier", "prover"):
        rows = parquet_rows(folder.fine_tune / "agents" / f"{agent}.rl.parquet")
        turn_count = sum(agent in round_.raw for rollout in rollouts.values() for round_ in rollout.rounds)
        assert len(rows) == turn_count > 0
        assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
        for row in rows:
            info = row["extra_info"]
            rollout = rollouts[info["rollout_id"]]
            assert row["prompt"] == chats[info["datapoint_id"], agent, info["round"]]
            assert info["response"] == rollout.rounds[info["round"]].raw[agent]
            assert row["reward"] == info["reward"] == rollout.rewards[agent]
            assert row["reward_model"] == {"style": "rule", "ground_truth": rollout.job.datapoint.label}
            assert (row["data_source"], row["ability"]) == ("tiny/v1", agent)
            assert (info["run_id"], info["agent"], info["split"]) == (folder.run_id, agent, "train")


@pytest.mark.full
def test_failed_games_have_no_rows_for_rl(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"retry": {"transient": {"attempts": 1}}, "fine_tune": {"formats": ["verl"]}}
    with run_chat_server(kind="refusal") as server:
        run = run_spec(spec_file(tmp_path, server.base_url, size=3, **changes), tmp_path / "results").folder.path
    report = {row["file"]: row for row in json.loads((run / "fine_tune" / "report.json").read_text())}
    assert report["agents/verifier.rl.parquet"]["left_out"] == {"outcome refused": 3}


# Traces


@pytest.mark.full
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_every_line_of_a_file_is_traced_to_its_rollout(tmp_path: Path, share: float) -> None:
    settings = {"formats": ["openai", "trl", "verl"], "validation_share": share}
    folder = run_spec(spec_file(tmp_path, fine_tune=settings), tmp_path / "results").folder
    rollouts = {row["rollout_id"]: row for row in table(folder.path, "rollouts")}
    report = json.loads((folder.fine_tune / "report.json").read_text())
    assert len(report) == 3 * 3 * (2 if share else 1)
    for row in report:
        data = folder.fine_tune / row["file"]
        trace = json_lines(folder.fine_tune / row["trace"])
        size = len(parquet_rows(data)) if data.suffix == ".parquet" else len(json_lines(data))
        assert [line["line"] for line in trace] == list(range(1, size + 1))
        assert size == row["examples"]
        for line in trace:
            rollout = rollouts[line["rollout_id"]]
            assert line["run_id"] == folder.run_id
            assert line["reward"] == json.loads(rollout["rewards"])[line["agent"]]
            assert line["datapoint_id"] == rollout["datapoint_id"]
            assert 0 <= line["round"] < rollout["rounds"]
            assert line["other"] == {}


# Splits


@pytest.mark.full
def test_a_datapoint_is_in_one_split_with_all_its_repeats(tmp_path: Path) -> None:
    settings = {"formats": ["openai", "verl"], "validation_share": 0.4}
    path = spec_file(tmp_path, size=20, fine_tune=settings)
    fine_tune = run_spec(path, tmp_path / "results", "rollouts.per_datapoint=3").folder.fine_tune
    expected = {f"p{i}" for i in range(20) if is_in_validation(f"p{i}", 0.4)}
    assert 0 < len(expected) < 20
    for kind in ("sft", "rl"):
        suffix = "jsonl" if kind == "sft" else "parquet"
        train, validation = (
            {line["datapoint_id"] for line in json_lines(fine_tune / f"m.{kind}.{part}{suffix}.trace.jsonl")}
            for part in ("", "validation.")
        )
        assert validation == expected
        assert train == {f"p{i}" for i in range(20)} - expected
    assert {row["extra_info"]["split"] for row in parquet_rows(fine_tune / "m.rl.validation.parquet")} == {"validation"}
    lines_by_split = [(fine_tune / f"m.sft.{part}jsonl").read_text().splitlines() for part in ("", "validation.")]
    assert not set(lines_by_split[0]) & set(lines_by_split[1])


def test_smaller_validation_share_selects_a_subset_of_a_larger_one() -> None:
    datapoint_ids = [f"p{i}" for i in range(1000)]
    small, large = ({p for p in datapoint_ids if is_in_validation(p, share)} for share in (0.1, 0.3))
    assert small < large
    assert 70 < len(small) < 130
    assert not any(is_in_validation(p, 0.0) for p in datapoint_ids)


@pytest.mark.full
def test_rerun_without_a_validation_share_removes_the_validation_files(tmp_path: Path) -> None:
    spec_file(tmp_path, fine_tune={"validation_share": 0.4})
    assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
    fine_tune = only_run(tmp_path / "results") / "fine_tune"
    assert (fine_tune / "m.sft.validation.jsonl").exists()
    rerun = nip_run_here("spec.yaml", "-q", "fine_tune.validation_share=0", "rollouts.per_datapoint=2", cwd=tmp_path)
    assert rerun.returncode == 0, rerun.stderr
    assert (fine_tune / "m.sft.jsonl").exists()
    assert not list(fine_tune.rglob("*.validation.*"))


@pytest.mark.parametrize("share", ["1", "-0.1", "1.5"])
def test_validation_share_must_be_at_least_0_and_below_1(tmp_path: Path, share: str) -> None:
    spec_file(tmp_path)
    process = nip_run_here("check", "spec.yaml", f"fine_tune.validation_share={share}", cwd=tmp_path)
    assert process.returncode == 2
    assert "fine_tune.validation_share" in process.stderr


# Exports


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.full
@pytest.mark.parametrize(
    "format_", ["openai", *(pytest.param(name, marks=pytest.mark.full) for name in ("trl", "verl"))]
)
def test_exports_are_identical_in_every_process(tmp_path: Path, format_: str) -> None:
    run_spec(spec_file(tmp_path, size=30, fine_tune=None, **DEBATE), tmp_path / "results")
    exports = []
    for seed in ("1", "2"):
        process = nip_run("export", "tiny", "--format", format_, "--out", seed, cwd=tmp_path, PYTHONHASHSEED=seed)
        assert process.returncode == 0, process.stderr
        exports.append(read_files(tmp_path / seed))
    assert exports[0] == exports[1]
    method, kind = ("rl", "parquet") if format_ == "verl" else ("sft", "trl.jsonl" if format_ == "trl" else "jsonl")
    names = {f"{owner}.{method}.{kind}" for owner in ("m", "agents/prover0", "agents/prover1", "agents/verifier")}
    assert set(exports[0]) == names | {name + ".trace.jsonl" for name in names} | {"report.json"}


@pytest.mark.full
def test_an_export_for_verl_equals_the_file_of_the_run(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, fine_tune={"formats": ["verl"]}), tmp_path / "results").folder
    process = nip_run_here("export", "tiny", "--format", "verl", "--method", "rl", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    run_files = {p: data for p, data in read_files(run.fine_tune).items() if not p.startswith("export-")}
    assert run_files == read_files(run.fine_tune / "export-verl")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "openai", "--method", "dpo"), "no tree"),
        (("--format", "trl", "--method", "dpo"), "no tree"),
        (("--format", "verl", "--method", "sft"), "--format verl does not support --method sft; choose rl"),
        (("--format", "openai", "--method", "rl"), "--format openai does not support --method rl; choose sft"),
        (("--format", "verl", "--true-labels"), "--true-labels works only with sft"),
        (("--format", "trl", "--method", "dpo", "--only-correct"), "--only-correct selects whole games"),
        (("--format", "trl", "--true-labels"), "fine_tune.ensure_last_message_is_assistant=true"),
    ],
)
def test_unsupported_export_options_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    path = spec_file(tmp_path, size=2, fine_tune={"ensure_last_message_is_assistant": False})
    run_spec(path, tmp_path / "results")
    process = nip_run_here("export", "tiny", *arguments, "--out", "out", cwd=tmp_path)
    assert process.returncode == 2
    assert message in process.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [("openai",), ("trl",), ("verl",), ("openai", "--true-labels")])
def test_run_without_labels_has_no_fine_tuning_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    spec = spec_file(tmp_path, size=2, fine_tune=None)
    rows = [{**row, "label": None} for row in json_lines(tmp_path / "data.jsonl")]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_spec(spec, tmp_path / "results")
    assert main(["export", run.run_id, "--format", *options, "--results", str(tmp_path / "results")]) == 2
    assert f"{run.run_id} has no labels, and fine-tuning files need games with known" in capsys.readouterr().err


def test_fine_tuning_files_of_an_unfinished_run_are_announced_as_partial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder
    export = ["export", folder.run_id, "--format", "openai", "--results", str(tmp_path / "results")]
    assert main(export) == 0
    assert "export it again" not in capsys.readouterr().err
    folder.write_manifest(replace(folder.manifest(), status=Status.INTERRUPTED))
    assert main(export) == 0
    assert "is interrupted, so the files have only the games that are finished" in capsys.readouterr().err


@pytest.mark.parametrize("consumer", ["openai", "trl"])
def test_preferences_are_written_to_the_files_of_their_agent_and_group(tmp_path: Path, consumer: str) -> None:
    format_ = FORMATS[consumer, "dpo"]
    agents = Plan(load_spec(spec_file(tmp_path, size=2))).agents()
    settings = FineTune(formats=(consumer,), min_examples=1)
    files = FineTuneFiles(tmp_path / "out", settings, agents, "run", TreeSettings(TreeShape(2, 1), 0))
    for index in range(3):
        for agent in ("prover", "verifier"):
            pair = Preference([{"role": "user", "content": f"{agent} {index}"}], "good", "bad")
            rejected_facts = {"rejected_rollout_id": f"r{index}x", "rejected_reward": 0.0}
            source = ExampleSource("run", f"r{index}", agent, 0, 1.0, f"p{index}", rejected_facts)
            files.put([build_example(agent, format_, pair, source, 0.0)])
    assert {row["file"]: row["examples"] for row in files.close()} == {
        f"{owner}{format_.suffix}": size for owner, size in (("m", 6), ("agents/prover", 3), ("agents/verifier", 3))
    }
    traces = json_lines(tmp_path / "out" / f"m{format_.suffix}.trace.jsonl")
    assert Counter(line["agent"] for line in traces) == {"prover": 3, "verifier": 3}
    assert all(line["other"]["rejected_rollout_id"] == line["rollout_id"] + "x" for line in traces)
