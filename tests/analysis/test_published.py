"""Analyses in releases: their published files, and their use in a fetched release."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runner.analysis.labels import read_labels
from runner.analysis.results import read_analyses
from runner.analysis.results import write_analysis as write_own_analysis
from runner.analysis.validation_log import ValidationRecord, append_validations, read_validations
from runner.cli.main import main
from runner.documents.releases.bundle import open_content
from runner.registry.bundles.runs import LABELS_LICENSE, build_analysis_contents
from runner.registry.fetched_release import open_fetched
from runner.registry.redaction.draft_redaction import redact_drafts
from runner.registry.verification.verify import find_folder_problems
from runner.results.folder import RunFolder
from tests.support.analyses import INSTRUMENT, write_analysis, write_lines, yes
from tests.support.drafts import build_reference_draft
from tests.support.runs import run_spec
from tests.support.specs import spec_file

PRIVATE_MODEL = "/home" + "/somebody/models/judge-8b"
QUESTION = "b" * 64


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with results of an analysis, labels of two people, and a validation."""
    folder = tmp_path_factory.mktemp("published")
    spec = spec_file(folder, size=4, models={"m": {"model": PRIVATE_MODEL}}, fine_tune=None)
    run = RunFolder(run_spec(spec, folder / "results", "name=first").path)
    write_analysis(run.path, lambda number, _: [yes(number > 0, reason="It argues."), {"status": "failed"}],
                   model=PRIVATE_MODEL)  # fmt: skip
    (table,) = read_analyses(run)
    write_lines(run.path / "labels" / f"role_conformance-{QUESTION[:10]}.jsonl", *(
        {"unit_id": table.results[0].unit_id, "answer": answer, "reader": reader, "time": "2026-01-01T00:00:00Z",
         "analyzer": "role_conformance", "analyzer_sha256": "a" * 64, "question_sha256": QUESTION}
        for reader, answer in (("Zoe", "yes"), ("Ann", "no"))
    ))  # fmt: skip
    record = ValidationRecord(INSTRUMENT, table.analyzer, QUESTION, run.run_id, 1, 2, 1.0, None, None, None, None, "")
    append_validations(run.path, [record])
    return run


def parse_lines(content: bytes) -> list[dict[str, str]]:
    return [json.loads(line) for line in content.splitlines()]


def test_labels_are_published_only_under_a_license_and_without_the_names_of_readers(run: RunFolder) -> None:
    unlabeled = build_analysis_contents(run, None)
    assert sorted(unlabeled.files) == [
        f"data/analyses/role_conformance-{INSTRUMENT}.jsonl", "data/analyses/validations.jsonl"
    ]  # fmt: skip
    assert unlabeled.notes == (
        "2 labels of people left out: if their readers agree, publish them with --labels-license SPDX",
    )
    labeled = build_analysis_contents(run, "CC-BY-4.0")
    assert labeled.files[LABELS_LICENSE] == b"CC-BY-4.0\n"
    published = labeled.files[f"data/labels/role_conformance-{QUESTION[:10]}.jsonl"]
    assert isinstance(published, bytes)
    assert [(line["reader"], line["answer"]) for line in parse_lines(published)] == [
        ("reader-1", "yes"),
        ("reader-2", "no"),
    ]


def test_analyses_have_the_ids_and_models_of_the_redacted_run(run: RunFolder, tmp_path: Path) -> None:
    draft, files = build_reference_draft(run.path), build_analysis_contents(run, "MIT").files
    (redacted,) = redact_drafts([replace(draft, contents={**draft.contents, **files})], tmp_path)
    contents = {}
    for path in ("data/rollouts.jsonl", *files):
        with open_content(redacted.contents[path]) as file:
            contents[path] = file.read()
    rollouts = {row["rollout_id"] for row in parse_lines(contents["data/rollouts.jsonl"])}
    rows = parse_lines(contents[f"data/analyses/role_conformance-{INSTRUMENT}.jsonl"])
    (table,) = read_analyses(run)
    assert {row["rollout_id"] for row in rows} == rollouts
    assert rollouts.isdisjoint(result.rollout_id for result in table.results)
    assert {row["unit_id"].partition("/")[0] for row in rows} == rollouts
    assert {row["model"] for row in rows} == {"judge-8b"}


def check_additions_to_release(fetched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that new analyses, labels and validations are stored next to a fetched release and leave it intact."""
    release = open_fetched(fetched).run
    assert release is not None
    (published,) = read_analyses(release)
    command = ["analyze", str(fetched), "follow_up", "exact_quotation", "models.analyst.provider=dummy", "--quiet"]
    assert main([*command, "--results", str(fetched.parent / "results")]) == 0
    changed = replace(published, analysis_run_id="own")
    assert write_own_analysis(release, changed).parent == fetched / "analyses"
    assert [table.analysis_run_id for table in read_analyses(release) if table.name == published.name] == ["own"]
    assert {table.analyzer for table in read_analyses(release)} == {"role_conformance", "follow_up", "exact_quotation"}
    (labels,) = read_labels(release.path).values()
    name = f"role_conformance-{QUESTION[:10]}.jsonl"
    write_lines(fetched / "labels" / name, asdict(replace(labels[0], reader="Bob")))
    (extended_labels,) = read_labels(release.path).values()
    assert [label.reader for label in extended_labels] == ["reader-1", "reader-2", "Bob"]
    (record,) = read_validations(release.path).values()
    append_validations(release.path, [replace(record, labeled_units=2)])
    assert [validation.labeled_units for validation in read_validations(release.path).values()] == [2]
    capsys.readouterr()
    assert main(["verify", str(fetched)]) == 0
    assert "every hash is right" in capsys.readouterr().out


@pytest.mark.gate
def test_analyses_of_a_fetched_release_can_be_compared_and_verified(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, results = f"file:{tmp_path / 'local'}", str(run.path.parents[1])
    command = ["publish", run.run_id, "--results", results, "--to", registry, "--as", "acme", "--license", "MIT"]
    assert main([*command, "--force", "--labels-license", "CC-BY-4.0"]) == 0
    assert "2 labels of 2 readers included (CC-BY-4.0)" in capsys.readouterr().err
    fetched = tmp_path / "fetched"
    assert main(["get", f"acme/{run.run_id}", "--from", registry, str(fetched)]) == 0
    assert list(find_folder_problems(fetched)) == []
    release = open_fetched(fetched)
    assert release.run is not None
    (table,) = read_analyses(release.run)
    assert [result.value for result in table.results if result.status == "answered"] == [0.0, 1.0, 1.0, 1.0]
    assert main(["compare", str(fetched / "data"), "--assert", "analysis:role_conformance <= 0.01"]) == 5
    check_additions_to_release(fetched, capsys)
    path = fetched / "data" / "analyses" / f"role_conformance-{INSTRUMENT}.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"no"', b'"yes"'))
    assert [f"role_conformance-{INSTRUMENT}.jsonl" in line for line in find_folder_problems(fetched)] == [True]
