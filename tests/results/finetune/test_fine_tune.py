"""Fine-tuning files: their content, omitted examples with the reason, and exports without model calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.results.finetune.examples import SupervisedExample
from runner.results.finetune.formats import FORMATS
from tests.support.files import json_lines
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import merge_changes, spec_file

SOLO: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}


def find_dataset_files(folder: Path) -> set[Path]:
    """Return the dataset files below a folder, without their sidecars."""
    return {path for path in folder.rglob("*.jsonl") if not path.name.endswith(".trace.jsonl")}


def read_report(run: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a run's report by file."""
    return {row["file"]: row for row in json.loads((run / "fine_tune" / "report.json").read_text())}


@pytest.mark.full
def test_each_agent_and_each_model_group_has_a_file_in_each_format(tmp_path: Path) -> None:
    path = spec_file(
        tmp_path, models={"other": {"provider": "dummy"}}, agents={"prover": {"model": "other"}},
    )  # fmt: skip
    run = run_spec(path, tmp_path / "results").folder.path
    file_names = {str(p.relative_to(run / "fine_tune")) for p in find_dataset_files(run / "fine_tune")}
    assert file_names == {
        f"{name}.sft{suffix}.jsonl"
        for name in ("m", "other", "agents/verifier", "agents/prover")
        for suffix in ("", ".trl")
    }
    assert json_lines(run / "fine_tune" / "m.sft.jsonl") == json_lines(
        run / "fine_tune" / "agents" / "verifier.sft.jsonl"
    )
    assert {name: row["written"] for name, row in read_report(run).items()} == dict.fromkeys(file_names, True)


def test_a_group_of_several_agents_has_all_their_examples(tmp_path: Path) -> None:
    fine_tune = run_spec(spec_file(tmp_path), tmp_path / "results").folder.path / "fine_tune"
    group_examples = json_lines(fine_tune / "m.sft.jsonl")
    agent_examples = [json_lines(fine_tune / "agents" / f"{name}.sft.jsonl") for name in ("prover", "verifier")]
    assert len(group_examples) == sum(map(len, agent_examples))
    assert all(example in group_examples for example in agent_examples[0] + agent_examples[1])


def test_only_the_agents_that_the_spec_names_have_files(tmp_path: Path) -> None:
    path = spec_file(tmp_path, fine_tune={"agents": ["verifier"], "formats": ["openai"]})
    fine_tune = run_spec(path, tmp_path / "results").folder.path / "fine_tune"
    assert {p.name for p in find_dataset_files(fine_tune)} == {"m.sft.jsonl", "verifier.sft.jsonl"}


@pytest.mark.full
def test_the_openai_format_is_the_chat_as_the_model_got_it(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, models={"m": {"chat_format": "openai"}})
        run = run_spec(path, tmp_path / "results").folder.path
    raw_messages = {row["raw_message"] for row in table(run, "completions") if row["agent"] == "verifier"}
    examples = json_lines(run / "fine_tune" / "agents" / "verifier.sft.jsonl")
    assert len(examples) > 12  # its instructions count the questions that are left
    for example in examples:
        assert list(example) == ["messages"]
        messages = example["messages"]
        assert messages[0]["role"] == "system"
        assert messages[-1]["role"] == "assistant"
        assert {m["content"] for m in messages if m["role"] == "assistant"} <= raw_messages
        assert all(m.get("name") == "Expert" for m in messages if m["role"] == "user")
        assert all(set(m) <= {"role", "name", "content", "weight"} for m in messages)
        assert [m.get("weight") for m in messages if m["role"] == "assistant"][-1] is None


@pytest.mark.full
def test_export_in_another_chat_format_writes_the_sender_into_the_text(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, fine_tune=None), tmp_path / "results").folder.path
    examples_by_format = {}
    for chat_format in ("openai", "alternating"):
        process = nip_run_here(
            "export", "tiny", "--format", "trl", "--chat-format", chat_format, "--agent", "verifier", "--json",
            cwd=tmp_path,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        rows = {row["file"]: row for row in json.loads(process.stdout)["files"]}
        assert rows["m.sft.trl.jsonl"]["chat_format"] == chat_format
        assert rows["m.sft.trl.jsonl"]["as_played"] == (chat_format == "openai")
        report_path = run / "fine_tune" / "export-trl" / "report.json"
        assert json.loads(report_path.read_text()) == json.loads(process.stdout)["files"]
        examples_by_format[chat_format] = json_lines(
            run / "fine_tune" / "export-trl" / "agents" / "verifier.sft.trl.jsonl"
        )
    texts = [
        [message["content"] for line in lines for message in line["prompt"] if message["role"] == "user"]
        for lines in examples_by_format.values()
    ]
    named_messages = [
        message for line in examples_by_format["openai"] for message in line["prompt"] if "name" in message
    ]
    assert named_messages
    assert all(f"{message['name']}: {message['content']}" in "\n\n".join(texts[1]) for message in named_messages)
    assert not any("name" in message for line in examples_by_format["alternating"] for message in line["prompt"])


def test_true_label_replaces_guesses_but_no_messages_of_provers(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"fine_tune": {"replace_verifier_guess_with_true_label": True, "formats": ["openai"]}}
    run = run_spec(spec_file(tmp_path, **changes), tmp_path / "results").folder.path
    labels = {row["rollout_id"]: row["y"] for row in table(run, "rollouts")}
    path = run / "fine_tune" / "agents" / "verifier.sft.jsonl"
    last = {  # the last example of a game is that of its last turn
        trace["rollout_id"]: example["messages"][-1]["content"]
        for trace, example in zip(json_lines(path.with_name(path.name + ".trace.jsonl")), json_lines(path), strict=True)
    }
    assert last == {name: f"Decision: {'accept' if label else 'reject'}" for name, label in labels.items()}
    provers = json_lines(run / "fine_tune" / "agents" / "prover.sft.jsonl")
    assert not any("Decision:" in e["messages"][-1]["content"] for e in provers)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}], None),
        ([{"role": "developer", "content": "a"}, {"role": "assistant", "content": "b"}], None),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "no assistant message"),
        ([], "no assistant message"),
        ([{"role": "assistant", "content": ""}], "empty content"),
        ([{"role": "user", "content": " \n"}, {"role": "assistant", "content": "b"}], "empty content"),
        ([{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}], "unknown role"),
    ],
)
def test_each_example_is_checked_before_it_is_written(messages: list[Any], problem: str | None) -> None:
    result = FORMATS["openai", "sft"].problem(SupervisedExample(messages))
    assert result is None if problem is None else (result or "").startswith(problem)


def test_only_correct_option_omits_games_with_a_wrong_verdict(tmp_path: Path) -> None:
    run = run_spec(
        spec_file(tmp_path, fine_tune={"only_correct": True, "formats": ["openai"]}), tmp_path / "results"
    ).folder.path
    right = sum(row["correct"] for row in table(run, "rollouts"))
    row = read_report(run)["agents/prover.sft.jsonl"]
    silent = row["left_out"].get("the agent said nothing", 0)
    assert 0 < right < 12
    assert (row["examples"], row["left_out"]["wrong verdict"]) == (right - silent, 12 - right)
    trace = json_lines(run / "fine_tune" / "agents" / "verifier.sft.jsonl.trace.jsonl")
    assert len({line["rollout_id"] for line in trace}) == right


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("refusal", "outcome refused"),
        ("context_length_exceeded", "outcome context_exceeded"),
        ("server_error", "outcome transport_failed"),
        ("null_content", "outcome invalid_response"),
    ],
)
def test_failed_games_are_omitted_with_their_outcome(tmp_path: Path, kind: str, reason: str) -> None:
    changes = merge_changes(SOLO, {"retry": {"transient": {"attempts": 1}, "invalid_response": {"attempts": 1}}})
    with run_chat_server(kind=kind) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3, **changes), tmp_path / "results")
    row = read_report(result.folder.path)["agents/verifier.sft.jsonl"]
    assert (row["examples"], row["written"], row["left_out"]) == (0, False, {reason: 3})
    assert not (result.folder.path / "fine_tune" / "agents" / "verifier.sft.jsonl").exists()


@pytest.mark.full
def test_empty_answer_is_omitted(tmp_path: Path) -> None:
    with run_chat_server(text=" ") as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3, **SOLO), tmp_path / "results")
    assert read_report(result.folder.path)["agents/verifier.sft.jsonl"]["left_out"] == {"empty content": 3}


@pytest.mark.full
def test_silent_agent_has_no_example(tmp_path: Path) -> None:
    with run_chat_server(text="I am sure.\n\nDecision: accept") as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3), tmp_path / "results")
    report_rows = read_report(result.folder.path)
    assert report_rows["agents/prover.sft.jsonl"]["left_out"] == {"the agent said nothing": 3}
    assert report_rows["agents/verifier.sft.jsonl"]["examples"] == 3


@pytest.mark.full
def test_the_same_line_is_written_once(tmp_path: Path) -> None:
    # The server's answer follows from the request, so repeats of a datapoint are the same game.
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=4)
        run = run_spec(path, tmp_path / "results", "rollouts.per_datapoint=3").folder.path
    lines = (run / "fine_tune" / "agents" / "verifier.sft.jsonl").read_text().splitlines()
    row = read_report(run)["agents/verifier.sft.jsonl"]
    assert row["examples"] == len(lines) == len(set(lines)) >= 4
    assert row["left_out"] == {"duplicate line": 2 * len(lines)}


def test_too_few_examples_write_no_file_and_the_run_notes_why(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4, fine_tune={"min_examples": 50, "formats": ["openai"]})
    result = run_spec(path, tmp_path / "results")
    assert not list((result.folder.path / "fine_tune").rglob("*.jsonl*"))
    row = read_report(result.folder.path)["agents/prover.sft.jsonl"]
    assert not row["written"]
    assert "min_examples (50)" in row["why_not_written"]
    few = sum(not file_row["written"] for file_row in read_report(result.folder.path).values())
    assert (
        f"{few} fine-tune files not written because of fewer than 50 examples (fine_tune.min_examples); see "
        "fine_tune/report.json"
    ) in result.notes


@pytest.mark.full
def test_no_fine_tune_section_means_no_files(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, fine_tune=None), tmp_path / "results")
    assert not (result.folder.path / "fine_tune").exists()


@pytest.mark.full
@pytest.mark.parametrize("format_", ["openai", "trl"])
def test_export_equals_the_files_of_the_run_and_sends_no_request(tmp_path: Path, format_: str) -> None:
    with run_chat_server(faults={"bad_decision": 0.2, "null_content": 0.05}) as server:
        spec_file(tmp_path, server.base_url, fine_tune={"formats": [format_]})
        process = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        requests = server.requests
    run = only_run(tmp_path / "results")
    before = derived_files(run)
    process = nip_run_here("export", "tiny", "--format", format_, "--out", "out", "--json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert requests > 0
    run_files = {p.relative_to(run / "fine_tune"): p.read_bytes() for p in (run / "fine_tune").rglob("*.jsonl")}
    exported_files = {p.relative_to(tmp_path / "out"): p.read_bytes() for p in (tmp_path / "out").rglob("*.jsonl")}
    assert run_files == exported_files
    assert len(run_files) == 2 * 3
    assert derived_files(run) == before
    assert {row["file"] for row in json.loads(process.stdout)["files"]} == {
        str(path.relative_to(tmp_path / "out")) for path in find_dataset_files(tmp_path / "out")
    }


@pytest.mark.full
def test_export_can_select_other_examples_than_the_run(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, fine_tune=None), tmp_path / "results")
    process = nip_run_here(
        "export", "tiny", "--format", "openai", "--agent", "verifier", "--only-correct", "--true-labels", cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    run = only_run(tmp_path / "results")
    wrong = sum(not row["correct"] for row in table(run, "rollouts"))
    assert f"{wrong} wrong verdict" in process.stdout


@pytest.mark.full
def test_a_new_export_replaces_the_old_one_and_leaves_foreign_files_alone(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path), tmp_path / "results")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.jsonl").write_text("{}\n")
    (out / "notes.txt").write_text("keep")
    for _ in range(2):
        assert nip_run_here("export", "tiny", "--format", "openai", "--out", "out", cwd=tmp_path).returncode == 0
    assert (out / "notes.txt").read_text() == "keep"
    assert (out / "mine.jsonl").exists()


@pytest.mark.full
def test_export_of_an_unknown_agent_is_an_error(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, size=2), tmp_path / "results")
    process = nip_run_here("export", "tiny", "--format", "openai", "--agent", "verifyer", "--out", "out", cwd=tmp_path)
    assert process.returncode in (1, 2)
    assert "did you mean 'verifier'" in process.stderr
