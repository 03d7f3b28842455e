"""`nip-run init --data FILE`: the spec and the prompts that it writes for the columns of a file."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner import load_spec
from tests.support.processes import nip_run_here
from tests.support.runs import only_run, table
from tests.support.servers.chat_client import run_chat_server

HEADER = ("Claim ID", "Claim (checked)", "Our Verdict?", "Topic", "Notes, misc")


def write_messy_csv(folder: Path) -> Path:
    """Write 60 claims with odd column names, a byte order mark, quotes, line ends, gaps and duplicates."""
    path = folder / "my claims.csv"
    rows: list[list[str]] = []
    for number in range(58):
        claim = f'The square of {number} is "{number**2 + number % 2}",\nthat is certain.'
        verdict = {7: "", 20: "", 11: "unsure"}.get(number, "refuted" if number % 2 else "Supported")
        rows.append([f"c{number}", claim, verdict, f"topic {number // 4}", "checked" if number % 5 else ""])
    rows.append(["c58", rows[4][1].upper() + " ", "supported", "topic 1", "again"])
    rows.append(["c4", rows[6][1], "refuted", "topic 1", "a contradiction"])
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def run_init(folder: Path, data: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run `init --data --json`; return its output and the spec that it wrote."""
    process = nip_run_here("init", "--data", data, *arguments, "--json", cwd=folder)
    assert process.returncode == 0, process.stdout + process.stderr
    printed: dict[str, Any] = json.loads(process.stdout)
    spec: dict[str, Any] = yaml.safe_load((folder / printed["files"][0]).read_text())
    return printed, spec


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text)
    return path


def test_spec_for_a_messy_claims_file_runs_at_once(tmp_path: Path) -> None:
    write_messy_csv(tmp_path)
    process = nip_run_here("init", "--data", "my claims.csv", "--protocol", "debate", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    checked = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert "no errors. Run my-claims-" in checked.stdout
    assert "on 54 datapoints (27 with label 1)" in checked.stdout
    played = nip_run_here("spec.yaml", "dataset.limit=4", cwd=tmp_path)
    assert played.returncode == 0, played.stderr
    rendered = nip_run_here("render", "spec.yaml", "verifier", cwd=tmp_path).stdout
    assert "Decide whether the claim is true. Two experts debate" in rendered
    assert "The square of 0 is" in rendered
    assert "Python" not in rendered


@pytest.mark.gate
def test_the_commands_that_init_prints_lead_to_a_comparison_with_the_verifier_alone(tmp_path: Path) -> None:
    printed, _ = run_init(tmp_path, write_messy_csv(tmp_path), "--protocol", "debate")
    tutorial = Path("docs/tutorials/debate-on-your-claims.md").read_text()
    assert printed["next"][3] == "nip-run spec.yaml stances=both --run-id debate"
    assert printed["next"][3].replace("spec.yaml", "claims.yaml") in tutorial
    assert printed["next"][5:] == ["nip-run report alone debate -o report.html"]
    processes = []
    for command in printed["next"]:
        processes.append(nip_run_here(*shlex.split(command)[1:], cwd=tmp_path))
        assert processes[-1].returncode == 0, processes[-1].stderr
    assert "debate minus alone" in processes[4].stdout
    assert (tmp_path / "report.html").is_file()
    rendered = nip_run_here("render", "spec.yaml", "verifier", "protocol={use: solo_verifier}", cwd=tmp_path).stdout
    assert "You decide alone" in rendered
    assert "expert" not in rendered.lower()


@pytest.mark.parametrize("protocol", ["debate", pytest.param("nip", marks=pytest.mark.full), "mnip"])
def test_no_verdict_counts_before_a_prover_has_spoken(tmp_path: Path, protocol: str) -> None:
    run_init(tmp_path, write_messy_csv(tmp_path), "--protocol", protocol)
    with run_chat_server(text="I know this.\n\nDecision: accept") as server:
        model = f"models.model={{base_url: '{server.base_url}', model: tiny, max_tokens: 99}}"
        process = nip_run_here("spec.yaml", "dataset.limit=4", model, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "before any prover spoke" not in process.stderr
    rows = table(only_run(tmp_path / "results"), "rollouts")
    assert [row["rounds"] for row in rows] == [2] * 4
    first = nip_run_here("render", "spec.yaml", "verifier", cwd=tmp_path).stdout
    assert "You decide alone" not in first
    assert "--- user" in first


def test_rows_that_need_attention_are_named_by_line_with_the_key_that_handles_them(tmp_path: Path) -> None:
    printed, spec = run_init(tmp_path, write_messy_csv(tmp_path))
    assert printed["columns"] == {"label": HEADER[2], "group": HEADER[3], "claim": HEADER[1]}
    assert printed["rows"] == {
        "used": 54, "with no label": 2, "with the label 'unsure'": 1, "repeated": 1, "with conflicting labels": 2,
    }  # fmt: skip
    conflict = (
        "the same claim with different labels, 'The square of 6 is \"36\",\\nthat is certain.': 1 with label 1 "
        "(line 14), 1 with label 0 (line 120); dataset.unique_by uses none of them: correct the labels, or remove the "
        "wrong rows"
    )
    assert printed["notices"] == [
        "lines 16, 42: no label; skipped by dataset.labels: {'': skip}",
        "line 24: the label 'unsure'; skipped by dataset.labels: {unsure: skip}",
        "lines 10, 118: the same claim; dataset.unique_by uses the first of them",
        conflict,
        "lines 10, 120: column 'Claim ID' is empty or not unique; dataset.ids: rows",
    ]
    assert spec["dataset"] == {
        "path": "my claims.csv",
        "columns": {"label": HEADER[2], "claim": HEADER[1]},
        "labels": {"supported": 1, "refuted": 0, "": "skip", "unsure": "skip"},
        "group_by": HEADER[3],
        "unique_by": ["claim"],
        "ids": "rows",
    }


def test_the_counts_of_rows_add_up_to_all_rows_and_the_odd_label_is_named(tmp_path: Path) -> None:
    square, sky = "A square has four sides.", "The sky is blue at noon."
    labels = [*[(square, "yes")] * 12, (square, "no"), (sky, "yes"), (sky, "unsure"), (sky, "yes"), ("  ", "no")]
    rows = "".join(f"{text},{label}\n" for text, label in [*labels, ("Snow is black.", "no"), ("Ice is hot.", "")])
    process = nip_run_here("init", "--data", write_csv(tmp_path, "claim,label\n" + rows), cwd=tmp_path)
    assert (
        "\n19 rows: 2 used, 1 with the label 'unsure', 1 with no label, 1 with no claim, 1 repeated, 13 with "
        "conflicting labels\n"
    ) in process.stdout
    assert f"'{square}': 12 with label 1 (lines 2, 3, 4, 5, 6 and 7 more), 1 with label 0 (line 14)" in process.stdout
    points = load_spec(tmp_path / "spec.yaml").dataset.datapoints
    assert [point.columns["claim"] for point in points] == [sky, "Snow is black."]


def test_spec_for_clean_data_has_no_keys_for_irregular_rows(tmp_path: Path) -> None:
    rows = "1,yes,Grass grows in spring.\n2,no,Grass grows in winter.\n"
    run_init(tmp_path, write_csv(tmp_path, "id,label,claim\n" + rows))
    spec = (tmp_path / "spec.yaml").read_text()
    assert not [key for key in ("labels", "group_by", "filter", "unique_by", "ids") if f"{key}:" in spec]


@pytest.mark.parametrize(
    "name",
    [
        "mnip",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("adp", "debate", "merlin_arthur", "nip", "solo_verifier")
        ),
    ],
)
def test_the_prompts_fit_each_protocol_without_a_warning(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{n},{'yes' if n % 2 else 'no'},Claim number {n} is true.\n" for n in range(24))
    run_init(tmp_path, write_csv(tmp_path, "id,label,claim\n" + rows), "--protocol", name)
    (checked,) = json.loads(nip_run_here("check", "spec.yaml", "--json", cwd=tmp_path).stdout)
    assert (checked["protocol"], checked["warnings"], checked["datapoints"]) == (name, [], 24)
    assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0


def test_programs_get_the_prompts_about_code(tmp_path: Path) -> None:
    rows = [(f"Write {f}.", f"def {f}(x):\n    return {x}\n", str(int(x == "x"))) for f in "fgh" for x in ("x", "0")]
    data = tmp_path / "data.csv"
    with data.open("w", newline="") as file:
        csv.writer(file).writerows([("problem", "code", "correct"), *rows])
    _, spec = run_init(tmp_path, data)
    assert spec["dataset"]["columns"] == {"label": "correct", "question": "problem", "solution": "code"}
    assert spec["dataset"]["group_by"] == "question"
    assert "Python" in (tmp_path / "prompts" / "verifier.jinja").read_text()
    assert nip_run_here("check", "spec.yaml", cwd=tmp_path).returncode == 0


def test_answers_to_questions_are_judged_as_solutions(tmp_path: Path) -> None:
    data = write_csv(tmp_path, "id,question,answer,label\n1,How many legs has an ant?,Six.,t\n2,And a spider?,Six.,f\n")
    _, spec = run_init(tmp_path, data)
    assert spec["dataset"]["labels"] == {"t": 1, "f": 0}
    verifier = (tmp_path / "prompts" / "verifier.jinja").read_text()
    assert "Decide whether the solution is right" in verifier
    assert "<question>\n{{ question }}\n</question>\n\n<solution>" in verifier


@pytest.mark.full
@pytest.mark.parametrize(("names", "right"), [("012", "index"), ("ABC", None)])
def test_questions_with_choices_and_an_answer_need_no_renamed_columns(
    tmp_path: Path, names: str, right: str | None
) -> None:
    data = tmp_path / "data.jsonl"
    answers = [int(name) if right else name for name in names]
    rows = [{"question": f"Which one is {i}?", "choices": ["x", "y", "z"], "answer": answers[i % 3]} for i in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, spec = run_init(tmp_path, data)
    assert spec["dataset"]["answers"] == "choices"
    assert spec["dataset"]["columns"]["label"] == "answer"
    assert spec["dataset"].get("right_answers") == right
    points = load_spec(tmp_path / "spec.yaml").dataset.datapoints
    assert [point.answers.right for point in points if point.answers is not None] == [(0,), (1,), (2,)] * 2


def test_label_words_without_a_known_meaning_are_left_to_the_user(tmp_path: Path) -> None:
    data = write_csv(tmp_path, "id,verdict,claim\n1,grün,Grass grows in spring.\n2,rot,Grass grows in winter.\n")
    process = nip_run_here("init", "--data", data, cwd=tmp_path)
    assert "CHANGE marks the lines to change for your data and a real model" in process.stdout
    checked = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert checked.returncode == 2
    assert "dataset.labels.grün" in checked.stderr


def test_numbers_that_are_no_labels_are_left_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"claim": "Grass grows in spring.", "label": 2.0}\n{"claim": "Snow is black.", "label": 0.5}\n')
    printed, spec = run_init(tmp_path, path)
    assert spec["dataset"]["labels"] == {"2": "CHANGE", "0.5": "CHANGE"}
    assert printed["rows"] == {}
    labels = "dataset.labels={2: 1, '0.5': 0}"
    assert "(1 with label 1)" in nip_run_here("check", "spec.yaml", labels, cwd=tmp_path).stdout


def test_a_spec_in_another_folder_names_the_file_from_there(tmp_path: Path) -> None:
    data = write_csv(tmp_path, "id,label,claim\n1,yes,Grass grows in spring.\n2,no,Grass grows in winter.\n")
    process = nip_run_here("init", "--data", data.name, "mine", cwd=tmp_path)
    assert process.returncode == 0
    assert yaml.safe_load((tmp_path / "mine" / "spec.yaml").read_text())["dataset"]["path"] == "../data.csv"
    assert nip_run_here("check", "mine/spec.yaml", cwd=tmp_path).returncode == 0


def test_a_missing_label_among_numbers_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"claim": f"Number {n} is odd.", "label": None if n == 3 else n % 2} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed, spec = run_init(tmp_path, path)
    assert printed["notices"] == ["line 4: no label; skipped by dataset.labels: {'': skip}"]
    assert spec["dataset"]["labels"] == {"": "skip"}
    assert "on 5 datapoints" in nip_run_here("check", "spec.yaml", cwd=tmp_path).stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("blank", ["", "  ", "\t", "\u00a0 "])
def test_a_row_without_a_claim_is_filtered(tmp_path: Path, blank: str) -> None:
    rows = f"1,yes,Grass grows in spring.\n2,no,{blank}\n3,no,Grass grows in winter.\n"
    printed, spec = run_init(tmp_path, write_csv(tmp_path, "id,label,claim\n" + rows))
    assert printed["notices"] == ["line 3: no claim; skipped by dataset.filter"]
    assert list(spec["dataset"]) == ["path", "filter"]
    points = load_spec(tmp_path / "spec.yaml").dataset.datapoints
    assert [point.id for point in points] == ["1", "3"]


def test_notices_name_the_lines_of_a_jsonl_file(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"statement": f"Number {n} is odd.", "truth": bool(n % 2)} for n in range(4)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, rows[1]]) + "\n")
    printed, spec = run_init(tmp_path, path)
    assert printed["notices"][0].startswith("lines 2, 5: the same claim")
    assert spec["dataset"]["columns"] == {"label": "truth", "claim": "statement"}


@pytest.mark.parametrize("text", ["id,claim\n1,Grass grows.\n", "id,label\n1,yes\n"])
def test_a_file_without_labels_or_claims_is_refused_with_the_columns_that_it_has(tmp_path: Path, text: str) -> None:
    process = nip_run_here("init", "--data", write_csv(tmp_path, text), cwd=tmp_path)
    assert process.returncode == 2
    assert f"columns {text.splitlines()[0].replace(',', ', ')}" in process.stderr
    assert not (tmp_path / "spec.yaml").exists()


def test_a_missing_or_empty_file_is_named_as_such(tmp_path: Path) -> None:
    missing = nip_run_here("init", "--data", "claims.csv", cwd=tmp_path)
    assert (missing.returncode, "there is no such file: claims.csv" in missing.stderr) == (2, True)
    for text in ("", "id,label,claim\n"):
        empty = nip_run_here("init", "--data", write_csv(tmp_path, text), cwd=tmp_path)
        assert (empty.returncode, "data.csv has no rows" in empty.stderr) == (2, True)


def test_the_printed_commands_run_next_to_the_data_so_that_errors_quote_it(tmp_path: Path) -> None:
    write_messy_csv(tmp_path)
    process = nip_run_here("init", "--data", "my claims.csv", "mine", "--json", cwd=tmp_path)
    (check, *_) = json.loads(process.stdout)["next"]
    assert check == "nip-run check mine/spec.yaml"
    error = nip_run_here(*shlex.split(check)[1:], "dataset.columns.label=verdct", cwd=tmp_path).stderr
    assert "the file has no column 'verdct'" in error


def test_an_error_in_data_outside_the_folder_of_the_spec_says_how_to_see_it(tmp_path: Path) -> None:
    write_messy_csv(tmp_path)
    nip_run_here("init", "--data", "my claims.csv", "mine", cwd=tmp_path)
    arguments = ("check", "spec.yaml", "dataset.columns.label=verdct")
    error = nip_run_here(*arguments, cwd=tmp_path / "mine").stderr
    (override,) = re.findall(r"To see the reason, add '(dataset\.path=[^']*)'", error)
    assert "the file has no column" not in error
    assert "the file has no column 'verdct'" in nip_run_here(*arguments, override, cwd=tmp_path / "mine").stderr
