"""`nip-run audit`: its arguments, exit codes, JSON and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import nip_run_here

CLEAN = [
    {"id": f"{n}-{label}", "problem": f"p{n}", "text": f"{n:02} {'ab'[(n + label) % 2] * 3}", "ok": "ny"[label]}
    for n in range(30)
    for label in (0, 1)
]
LEAKY = [row | {"text": row["text"] + ("<b>" if row["ok"] == "n" else "")} for row in CLEAN]
DATASET_OPTIONS = ("dataset.columns.label=ok", "dataset.labels={y: 1, n: 0}", "dataset.group_by=problem")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in (("clean", CLEAN), ("leaky", LEAKY)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "spec.yaml").write_text(
        "dataset:\n  path: leaky.jsonl\n  columns: {label: ok}\n  labels: {y: 1, n: 0}\n  group_by: problem\n"
        "  limit: 4\n  transform: [{step: truncate, columns: [text], characters: 6}]\n",
        "utf-8",
    )
    (tmp_path / "empty.yaml").write_text("datset: {path: clean.jsonl}\n", "utf-8")
    return tmp_path


def test_audit_exits_with_0_for_clean_and_1_for_leaky_data(folder: Path) -> None:
    done = nip_run_here("audit", "clean.jsonl", *DATASET_OPTIONS, cwd=folder)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "clean.jsonl: no findings")
    done = nip_run_here("audit", "leaky.jsonl", *DATASET_OPTIONS, cwd=folder)
    assert done.returncode == 1
    assert "column 'text': words predicts the label, AUC 1.000" in done.stdout


def test_dataset_section_of_a_spec_is_audited_after_its_transforms(folder: Path) -> None:
    done = nip_run_here("audit", "spec.yaml", "--json", cwd=folder)
    report = json.loads(done.stdout)
    assert (report["items"], report["groups"], report["findings"], report["exit_code"]) == (60, 30, [], 0)
    done = nip_run_here("audit", "spec.yaml", "dataset.transform=[]", "--json", cwd=folder)
    assert json.loads(done.stdout)["exit_code"] == done.returncode == 1


def test_the_page_has_the_findings_and_no_script(folder: Path) -> None:
    done = nip_run_here("audit", "leaky.jsonl", *DATASET_OPTIONS, "--html", "a.html", cwd=folder)
    page = (folder / "a.html").read_text("utf-8")
    assert done.returncode == 1
    assert "column &#39;text&#39;: words predicts the label" in page
    assert "<b>" not in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clean.jsonl",), "the file has no column 'label'"),
        (("clean.jsonl", *DATASET_OPTIONS, "dataset.group_by=problm"), "no column 'problm'; did you mean 'problem'?"),
        (("clean.jsonl", *DATASET_OPTIONS, "--ignore", "txt"), "--ignore txt: no such column; the audit uses text"),
        (("clean.jsonl", *DATASET_OPTIONS, "--max-auc", "0.3"), "must be from 0.5 to 1"),
        (("clean.jsonl", *DATASET_OPTIONS, "--html", "page"), "must end in .html"),
        (("missing.jsonl",), "missing.jsonl:1:1: dataset.path: there is no file 'missing.jsonl'"),
        (("missing.yaml",), "no such spec file"),
        (("clean.jsonl", *DATASET_OPTIONS, "datset.limit=4"), "datset: unknown key; did you mean 'dataset'?"),
        (("spec.yaml", "models.m.providr=dummy"), "models.m.providr: unknown key; did you mean 'provider'?"),
        (("empty.yaml",), "empty.yaml:1:1: dataset: missing key; write the file's path: dataset: {path: FILE}"),
        (("empty.yaml",), "empty.yaml:1:1: datset: unknown key; did you mean 'dataset'?"),
    ],
)
def test_invalid_arguments_exit_with_2_and_a_message(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = nip_run_here("audit", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_page_that_cannot_be_written_does_not_cost_the_results(folder: Path) -> None:
    done = nip_run_here("audit", "clean.jsonl", *DATASET_OPTIONS, "--html", "missing/a.html", cwd=folder)
    assert "clean.jsonl: no findings" in done.stdout
    assert "cannot write missing/a.html: No such file or directory" in done.stderr
    assert done.returncode == 1


def test_too_little_data_exits_with_5(folder: Path) -> None:
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CLEAN[:8]), "utf-8")
    done = nip_run_here("audit", "few.jsonl", *DATASET_OPTIONS, cwd=folder)
    assert done.returncode == 5
    assert "too little data: 4 groups with label 0, but 5 are needed" in done.stderr


@pytest.mark.gate
def test_shipped_programs_have_no_leaks() -> None:
    assert nip_run_here("audit", "specs/quickstart.yaml", cwd=ROOT).returncode == 0
