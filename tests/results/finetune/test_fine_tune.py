"""Fine-tune files: what they hold, what is left out and why, and that they can be made again for free."""

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


def datasets(folder: Path) -> set[Path]:
    """The dataset files below a folder, without their sidecars."""
    return {path for path in folder.rglob("*.jsonl") if not path.name.endswith(".trace.jsonl")}


def report(run: Path) -> dict[str, dict[str, Any]]:
    """The rows of a run's report by file."""
    return {row["file"]: row for row in json.loads((run / "fine_tune" / "report.json").read_text())}


@pytest.mark.full
def test_each_agent_and_each_model_group_has_a_file_in_each_format(tmp_path: Path) -> None:
    path = spec_file(
        tmp_path, models={"other": {"provider": "dummy"}}, agents={"prover": {"model": "other"}},
    )  # fmt: skip
    run = run_spec(path, tmp_path / "results").folder.path
    found = {str(p.relative_to(run / "fine_tune")) for p in datasets(run / "fine_tune")}
    assert found == {
        f"{name}.sft{suffix}.jsonl"
        for name in ("m", "other", "agents/verifier", "agents/prover")
        for suffix in ("", ".trl")
    }
    assert json_lines(run / "fine_tune" / "m.sft.jsonl") == json_lines(
        run / "fine_tune" / "agents" / "verifier.sft.jsonl"
    )
    assert {name: row["written"] for name, row in report(run).items()} == dict.fromkeys(found, True)


def test_a_group_of_several_agents_has_all_their_examples(tmp_path: Path) -> None:
    fine_tune = run_spec(spec_file(tmp_path), tmp_path / "results").folder.path / "fine_tune"
    both = json_lines(fine_tune / "m.sft.jsonl")
    apart = [json_lines(fine_tune / "agents" / f"{name}.sft.jsonl") for name in ("prover", "verifier")]
    assert len(both) == sum(map(len, apart))
    assert all(example in both for example in apart[0] + apart[1])


def test_only_the_agents_that_the_spec_names_have_files(tmp_path: Path) -> None:
    path = spec_file(tmp_path, fine_tune={"agents": ["verifier"], "formats": ["openai"]})
    fine_tune = run_spec(path, tmp_path / "results").folder.path / "fine_tune"
    assert {p.name for p in datasets(fine_tune)} == {"m.sft.jsonl", "verifier.sft.jsonl"}


@pytest.mark.full
def test_the_openai_format_is_the_chat_as_the_model_got_it(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, models={"m": {"chat_format": "openai"}})
        run = run_spec(path, tmp_path / "results").folder.path
    said = {row["raw_message"] for row in table(run, "completions") if row["agent"] == "verifier"}
    examples = json_lines(run / "fine_tune" / "agents" / "verifier.sft.jsonl")
    assert len(examples) > 12  # its instructions count the questions that are left
    for example in examples:
        assert list(example) == ["messages"]
        messages = example["messages"]
        assert messages[0]["role"] == "system"
        assert messages[-1]["role"] == "assistant"
        assert {m["content"] for m in messages if m["role"] == "assistant"} <= said
        assert all(m.get("name") == "Expert" for m in messages if m["role"] == "user")
        assert all(set(m) <= {"role", "name", "content", "weight"} for m in messages)
        assert [m.get("weight") for m in messages if m["role"] == "assistant"][-1] is None


@pytest.mark.full
def test_an_export_in_another_chat_format_says_the_sender_in_the_text(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, fine_tune=None), tmp_path / "results").folder.path
    written = {}
    for chat_format in ("openai", "alternating"):
        done = nip_run_here(
            "export", "tiny", "--format", "trl", "--chat-format", chat_format, "--agent", "verifier", "--json",
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows = {row["file"]: row for row in json.loads(done.stdout)["files"]}
        assert rows["m.sft.trl.jsonl"]["chat_format"] == chat_format
        assert rows["m.sft.trl.jsonl"]["as_played"] == (chat_format == "openai")
        report = run / "fine_tune" / "export-trl" / "report.json"
        assert json.loads(report.read_text()) == json.loads(done.stdout)["files"]
        written[chat_format] = json_lines(run / "fine_tune" / "export-trl" / "agents" / "verifier.sft.trl.jsonl")
    texts = [
        [message["content"] for line in lines for message in line["prompt"] if message["role"] == "user"]
        for lines in written.values()
    ]
    named = [message for line in written["openai"] for message in line["prompt"] if "name" in message]
    assert named
    assert all(f"{message['name']}: {message['content']}" in "\n\n".join(texts[1]) for message in named)
    assert not any("name" in message for line in written["alternating"] for message in line["prompt"])


def test_the_label_replaces_guesses_and_no_message_of_a_prover(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"fine_tune": {"replace_verifier_guess_with_true_label": True, "formats": ["openai"]}}
    run = run_spec(spec_file(tmp_path, **changes), tmp_path / "results").folder.path
    labels = {row["rollout_id"]: row["y"] for row in table(run, "rollouts")}
    path = run / "fine_tune" / "agents" / "verifier.sft.jsonl"
    last = {  # of the examples of one game, that of its last turn is the last
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
    found = FORMATS["openai", "sft"].problem(SupervisedExample(messages))
    assert found is None if problem is None else (found or "").startswith(problem)


def test_only_right_verdicts_where_the_spec_says_so(tmp_path: Path) -> None:
    run = run_spec(
        spec_file(tmp_path, fine_tune={"only_correct": True, "formats": ["openai"]}), tmp_path / "results"
    ).folder.path
    right = sum(row["correct"] for row in table(run, "rollouts"))
    row = report(run)["agents/prover.sft.jsonl"]
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
def test_games_that_failed_are_left_out_by_their_outcome(tmp_path: Path, kind: str, reason: str) -> None:
    changes = merge_changes(SOLO, {"retry": {"transient": {"attempts": 1}, "invalid_response": {"attempts": 1}}})
    with run_chat_server(kind=kind) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3, **changes), tmp_path / "results")
    row = report(result.folder.path)["agents/verifier.sft.jsonl"]
    assert (row["examples"], row["written"], row["left_out"]) == (0, False, {reason: 3})
    assert not (result.folder.path / "fine_tune" / "agents" / "verifier.sft.jsonl").exists()


@pytest.mark.full
def test_an_empty_answer_is_left_out(tmp_path: Path) -> None:
    with run_chat_server(text=" ") as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3, **SOLO), tmp_path / "results")
    assert report(result.folder.path)["agents/verifier.sft.jsonl"]["left_out"] == {"empty content": 3}


@pytest.mark.full
def test_an_agent_that_said_nothing_has_no_example(tmp_path: Path) -> None:
    with run_chat_server(text="I am sure.\n\nDecision: accept") as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=3), tmp_path / "results")
    found = report(result.folder.path)
    assert found["agents/prover.sft.jsonl"]["left_out"] == {"the agent said nothing": 3}
    assert found["agents/verifier.sft.jsonl"]["examples"] == 3


@pytest.mark.full
def test_the_same_line_is_written_once(tmp_path: Path) -> None:
    # The server's answer follows from the request, so repeats of a datapoint are the same game.
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=4)
        run = run_spec(path, tmp_path / "results", "rollouts.per_datapoint=3").folder.path
    written = (run / "fine_tune" / "agents" / "verifier.sft.jsonl").read_text().splitlines()
    row = report(run)["agents/verifier.sft.jsonl"]
    assert row["examples"] == len(written) == len(set(written)) >= 4
    assert row["left_out"] == {"duplicate line": 2 * len(written)}


def test_too_few_examples_are_no_file_and_the_run_says_why(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4, fine_tune={"min_examples": 50, "formats": ["openai"]})
    result = run_spec(path, tmp_path / "results")
    assert not list((result.folder.path / "fine_tune").rglob("*.jsonl*"))
    row = report(result.folder.path)["agents/prover.sft.jsonl"]
    assert not row["written"]
    assert "min_examples (50)" in row["why_not_written"]
    few = sum(not one["written"] for one in report(result.folder.path).values())
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
def test_an_export_equals_the_files_of_the_run_and_asks_nothing(tmp_path: Path, format_: str) -> None:
    with run_chat_server(faults={"bad_decision": 0.2, "null_content": 0.05}) as server:
        spec_file(tmp_path, server.base_url, fine_tune={"formats": [format_]})
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        asked = server.requests
    run = only_run(tmp_path / "results")
    before = derived_files(run)
    done = nip_run_here("export", "tiny", "--format", format_, "--out", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert asked > 0
    own = {p.relative_to(run / "fine_tune"): p.read_bytes() for p in (run / "fine_tune").rglob("*.jsonl")}
    exported = {p.relative_to(tmp_path / "out"): p.read_bytes() for p in (tmp_path / "out").rglob("*.jsonl")}
    assert own == exported
    assert len(own) == 2 * 3
    assert derived_files(run) == before
    assert {row["file"] for row in json.loads(done.stdout)["files"]} == {
        str(path.relative_to(tmp_path / "out")) for path in datasets(tmp_path / "out")
    }


@pytest.mark.full
def test_an_export_can_be_another_choice_than_that_of_the_run(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, fine_tune=None), tmp_path / "results")
    done = nip_run_here(
        "export", "tiny", "--format", "openai", "--agent", "verifier", "--only-correct", "--true-labels", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path / "results")
    wrong = sum(not row["correct"] for row in table(run, "rollouts"))
    assert f"{wrong} wrong verdict" in done.stdout


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
def test_an_export_of_an_agent_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path, size=2), tmp_path / "results")
    done = nip_run_here("export", "tiny", "--format", "openai", "--agent", "verifyer", "--out", "out", cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "did you mean 'verifier'" in done.stderr
