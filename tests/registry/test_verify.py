"""`verify` reports every problem of a release, a fetched folder or a run, and writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
import yaml

from runner.base.errors import ReleaseError
from runner.base.hashing import tagged_hash
from runner.documents.releases.bundle import Bundle, open_content
from runner.documents.releases.reference import Reference, parse_reference
from runner.registry.fetched_release import fetch_release
from runner.registry.transports.locations import connect
from runner.registry.verification.verify import (
    find_edited_files,
    find_folder_problems,
    find_release_problems,
    find_run_problems,
)
from runner.results.folder import RunFolder
from runner.version import __version__
from tests.support.processes import nip_run_here
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import run_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `results/`, a `registry/` with the run, and the fetched run in `got/`."""
    folder = tmp_path_factory.mktemp("there")
    result = run_spec(spec_file(folder, size=4), folder / "results")
    publish_bundles(folder / "registry", build_run_bundle(result.path))
    with connect(str(folder / "registry")) as registry:
        fetch_release(registry, registry.entries()[0].reference, folder / "got")
    return folder


@pytest.fixture
def copy(published_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(published_folder, tmp_path / "copy")
    return tmp_path / "copy"


def find_run(folder: Path) -> Path:
    return next((folder / "results" / "runs").iterdir())


def read_reference(folder: Path) -> str:
    with connect(str(folder / "registry")) as registry:
        return str(registry.entries()[0].reference)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_verify_finds_no_problem_in_a_new_release_and_writes_nothing(published_folder: Path) -> None:
    before = read_files(published_folder)
    for argument in (find_run(published_folder).name, "got", read_reference(published_folder)):
        done = nip_run_here("verify", argument, "--from", published_folder / "registry", cwd=published_folder)
        assert (done.returncode, "every hash is right" in done.stdout) == (0, True), done.stdout + done.stderr
    assert read_files(published_folder) == before


def find_problems(registry: Path, reference: str) -> list[str]:
    parsed = parse_reference(reference)
    assert isinstance(parsed, Reference)
    try:
        with connect(str(registry)) as opened:
            return list(find_release_problems(opened, opened.find(parsed)))
    except ReleaseError as error:
        return [str(error)]


def list_published_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "registry").rglob("*") if path.is_file())


def list_offsets(path: Path, step: int) -> Iterator[int]:
    """Yield the offset of every n-th byte of a file, and of its last byte."""
    size = path.stat().st_size
    yield from {*range(0, size, step), size - 1} if size else ()


FILES = (
    "README.md", "data/inputs/dataset.jsonl", "data/inputs/prompts/prover.jinja", "data/inputs/protocol.yaml",
    "data/journal.jsonl", "data/manifest.json", "data/metrics.json", "data/rollouts.jsonl", "data/spec.yaml",
    "environment.lock", "parameters.yaml", "release.json", "release.sha256", "spec.yaml",
)  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FILES)
def test_flipped_byte_in_a_release_file_is_reported_with_the_file(name: str, copy: Path) -> None:
    """Flip the first byte, one in the middle, and the last."""
    reference = read_reference(copy)
    (path,) = [file for file in list_published_files(copy) if file.as_posix().endswith(f"/1/{name}")]
    good = path.read_bytes()
    for offset in sorted({0, len(good) // 2, len(good) - 1}):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        problems = find_problems(copy / "registry", reference)
        assert any(path.name in line for line in problems), (name, offset, problems)


@pytest.mark.full
def test_flipped_byte_at_every_64th_position_is_reported_with_the_file(copy: Path) -> None:
    reference = read_reference(copy)
    for path in list_published_files(copy):
        good = path.read_bytes()
        for offset in list_offsets(path, 64):
            path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
            problems = find_problems(copy / "registry", reference)
            assert any(path.name in line for line in problems), (path, offset, problems)
        path.write_bytes(good)
    assert not find_problems(copy / "registry", reference)


def test_all_damaged_files_are_named_at_once(copy: Path) -> None:
    names = ("metrics.json", "README.md", "protocol.yaml")
    for name in names:
        (path,) = (copy / "registry").rglob(name)
        path.write_bytes(path.read_bytes() + b" ")
    (copy / "registry" / read_reference(copy).replace("@", "/") / "extra.txt").write_text("more")
    done = nip_run_here("verify", read_reference(copy), "--from", copy / "registry", cwd=copy)
    assert done.returncode == 1
    assert all(name in done.stdout for name in (*names, "extra.txt")), done.stdout
    as_json = nip_run_here("verify", read_reference(copy), "--from", copy / "registry", "--json", cwd=copy)
    assert (as_json.returncode, len(json.loads(as_json.stdout)["wrong"])) == (1, 4)


def test_missing_file_is_named(copy: Path) -> None:
    (path,) = (copy / "registry").rglob("metrics.json")
    path.unlink()
    assert any("metrics.json" in line for line in find_problems(copy / "registry", read_reference(copy)))


@pytest.mark.full
def test_changed_or_added_files_of_a_fetched_folder_are_named(copy: Path) -> None:
    fetched = copy / "got"
    (fetched / "parameters.yaml").write_text("seed: 9\n")
    (fetched / "data" / "inputs" / "prompts" / "more.jinja").write_text("more")
    (fetched / "notes.txt").write_text("a reader's own")
    problems = list(find_folder_problems(fetched))
    assert len(problems) == 1, problems
    assert "more.jinja" in problems[0]
    assert nip_run_here("verify", "got", cwd=copy).returncode == 1
    assert find_edited_files(fetched) == ["parameters.yaml"], "which is there to be edited, and is no damage"
    (fetched / "data" / "inputs" / "prompts" / "more.jinja").unlink()
    done = nip_run_here("verify", "got", cwd=copy)
    assert (done.returncode, "parameters.yaml was edited after the download" in done.stderr) == (0, True), done.stderr


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "line",
    [
        "--index-url http://evil",
        "-e git+https://evil/x",
        "x @ https://evil/x.whl",
        "x>=1",
        "x==1 --hash=sha256:0",
        "x==1;python_version",
        "# coding: utf-7",
        "  x==1",
        "${A}==1",
    ],
)
def test_environment_lock_with_other_pip_options_is_refused(line: str, published_folder: Path, tmp_path: Path) -> None:
    lock = f"# Python 3.11.7\nnip-run==0.2.0\n{line}\n".encode()
    bundle = build_run_bundle(find_run(published_folder), environment_DOT_lock=lock)
    reference = publish_bundles(tmp_path / "registry", bundle)
    with (
        connect(str(tmp_path / "registry")) as registry,
        pytest.raises(ReleaseError, match=r"environment\.lock:3: expected NAME==VERSION"),
    ):
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    assert not (tmp_path / "got").exists()
    assert [problem for problem in find_problems(tmp_path / "registry", reference) if "environment.lock:3" in problem]


@pytest.mark.full
def test_spec_saved_before_a_key_existed_is_not_reported_as_changed(copy: Path) -> None:
    run = find_run(copy)
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    assert spec.pop("cache", 0) is None
    (run / "spec.yaml").write_text(yaml.safe_dump(spec))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["spec_sha256"] = tagged_hash("spec", spec)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert not [line for line in find_run_problems(RunFolder(run)) if "spec.yaml" in line]


def edit_file(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), "utf-8")


def _change_dataset(run: Path) -> str:
    edit_file(run / "inputs" / "dataset.jsonl", "x + 0", "x + 7")
    return "inputs/dataset.jsonl"


def _change_prompt(run: Path) -> str:
    path = run / "inputs" / "prompts" / "prover.jinja"
    path.write_text(path.read_text() + " now")
    return "prover.jinja"


def _change_protocol(run: Path) -> str:
    edit_file(run / "inputs" / "protocol.yaml", "human_name: Expert", "human_name: Guru")
    return "inputs/protocol.yaml"


def _change_seed(run: Path) -> str:
    edit_file(run / "spec.yaml", "seed: 7", "seed: 8")
    return "spec.yaml"


def _change_journal(run: Path) -> str:
    path = run / "journal.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])
    return "journal.jsonl"


def _change_metric(run: Path) -> str:
    metrics = json.loads((run / "metrics.json").read_text())
    row = next(row for row in metrics["metrics"] if row["metric"] == "accuracy")
    row["value"] = 0.9999
    (run / "metrics.json").write_text(json.dumps(metrics))
    return "metric accuracy, value: recorded 0.9999"


def _duplicate_metric(run: Path) -> str:
    metrics = json.loads((run / "metrics.json").read_text())
    row = next(row for row in metrics["metrics"] if row["metric"] == "accuracy")
    metrics["metrics"].insert(0, {**row, "value": 0.9999})
    metrics["metrics"][-1].pop("clusters")
    (run / "metrics.json").write_text(json.dumps(metrics))
    edit_file(run / "manifest.json", f'"version": "{__version__}"', '"version": "0.2.1"')
    return "metric accuracy: recorded twice"


def _duplicate_key(run: Path) -> str:
    edit_file(run / "metrics.json", '"value"', '"value": 0.9999, "value"')
    return "metrics.json is damaged: its JSON has duplicate keys: value"


def _duplicate_fact(run: Path) -> str:
    edit_file(run / "manifest.json", '"seed"', '"seed": 3, "seed"')
    return "manifest.json is damaged: its JSON has duplicate keys: seed"


def _remove_count(run: Path) -> str:
    edit_file(run / "manifest.json", f'"completions": {RunFolder(run).manifest().completions}', '"completions": null')
    return "manifest.json says completions None"


def _remove_format(run: Path) -> str:
    edit_file(run / "manifest.json", '"format": 1,', "")
    return "manifest.json has no format"


def _change_interval_without_format(run: Path) -> str:
    _remove_format(run)
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["metrics"][0]["ci_low"] = 0.9999
    (run / "metrics.json").write_text(json.dumps(metrics))
    return "ci_low: recorded 0.9999"


def _redact_address(run: Path) -> str:
    edit_file(run / "spec.yaml", "base_url: null", "base_url: ???")
    return "spec.yaml does not have the hash in the manifest"


def _change_count(run: Path) -> str:
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["completions"] += 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    return "manifest.json says completions"


def _change_table(run: Path) -> str:
    path = run / "rollouts.parquet"
    with duckdb.connect() as database:
        database.execute(f"CREATE TABLE t AS SELECT * REPLACE (true AS correct) FROM '{path}'")
        database.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    return "rollouts.parquet, row"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "forge",
    [
        _change_metric, _duplicate_metric, _duplicate_key, _duplicate_fact, _change_seed, _change_dataset,
        _change_prompt, _change_protocol, _change_journal, _change_count,
        _remove_count, _remove_format, _change_interval_without_format, _redact_address, _change_table,
    ],
)  # fmt: skip
def test_change_in_a_run_is_reported(forge: Callable[[Path], str], copy: Path) -> None:
    run = find_run(copy)
    message = forge(run)
    before = read_files(run)
    problems = list(find_run_problems(RunFolder(run)))
    assert any(message in line for line in problems), problems
    assert read_files(run) == before


@pytest.mark.full
def test_forged_metric_is_reported_in_a_release_with_valid_hashes(published_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(find_run(published_folder), tmp_path / "run")
    _change_metric(tmp_path / "run")
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(tmp_path / "run"))
    problems = find_problems(tmp_path / "registry", reference)
    assert any("metric accuracy, value: recorded 0.9999, recomputed" in line for line in problems), problems


@pytest.mark.full
def test_facts_that_contradict_the_files_are_reported(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    accuracy = {**bundle.release.facts["accuracy"], "value": 0.9999}
    wrong_facts = {"accuracy": accuracy, "parent_run_id": "learn", "models": {"verifier": "gpt-9"}, "task": "0" * 64}
    facts = {**bundle.release.facts, **wrong_facts}
    forged = replace(bundle, release=replace(bundle.release, facts=facts))
    problems = find_problems(tmp_path / "registry", publish_bundles(tmp_path / "registry", forged))
    for fact in ("accuracy.value 0.9999", "parent_run_id 'learn'", "models {'verifier': 'gpt-9'}", "task '000"):
        assert [line for line in problems if f"its facts say {fact}" in line], problems


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("parameters.yaml", "votes: 1", "votes: 3", "votes: 3, but data/ has 1"),
        ("parameters.yaml", "votes: 1", "votes: 1\nhooks: 1", "hooks: 1, but data/ has no such value"),
        ("parameters.yaml", "votes: 1", "votes: &a 1", "cannot be read"),
        ("spec.yaml", "data/spec.yaml, ", "", "extends: [parameters.yaml]"),
        ("run_data.yaml", "benchmark: ", "benchmark: better-", "benchmark: better-"),
    ],
)
def test_parameters_and_spec_that_contradict_the_run_are_reported(
    name: str, before: str, after: str, message: str, published_folder: Path, tmp_path: Path
) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    with open_content(bundle.contents[name]) as file:
        text = file.read().decode()
    assert before in text
    contents = {**bundle.contents, name: text.replace(before, after, 1).encode()}
    reference = publish_bundles(tmp_path / "registry", Bundle.of(replace(bundle.release, files=()), contents))
    (problem,) = find_problems(tmp_path / "registry", reference)
    assert problem.startswith(f"{name} ")
    assert message in problem


def test_problems_of_a_fetched_release_give_no_advice_about_temporary_folders(
    published_folder: Path, tmp_path: Path
) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    first, _, *rest = (find_run(published_folder) / "journal.jsonl").read_bytes().splitlines(keepends=True)
    contents = {path: content for path, content in bundle.contents.items() if "rollouts.jsonl" not in path}
    contents["data/journal.jsonl"] = b"".join([first, *rest])
    reference = publish_bundles(tmp_path / "registry", Bundle.of(replace(bundle.release, files=()), contents))
    damaged, missing = find_problems(tmp_path / "registry", reference)
    assert damaged.startswith(f"data/journal.jsonl is damaged at byte {len(first)}: ")
    assert damaged.endswith("or is from another log"), damaged
    assert missing.endswith("data/rollouts.jsonl is missing")


def test_bytes_after_the_last_journal_record_are_reported(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    journal = (find_run(published_folder) / "journal.jsonl").read_bytes() + bytes(100)
    torn = Bundle.of(replace(bundle.release, files=()), {**bundle.contents, "data/journal.jsonl": journal})
    problems = find_problems(tmp_path / "registry", publish_bundles(tmp_path / "registry", torn))
    assert problems == ["data/journal.jsonl ends with 100 bytes of an incomplete record"]


def test_too_large_environment_lock_is_reported_without_a_temporary_path(
    published_folder: Path, tmp_path: Path
) -> None:
    bundle = build_run_bundle(find_run(published_folder), environment_DOT_lock=bytes(5 << 20))
    problems = find_problems(tmp_path / "registry", publish_bundles(tmp_path / "registry", bundle))
    assert any("environment.lock: larger than 4,096 KiB" in line for line in problems), problems
    assert not any(".nip-run-" in line for line in problems), problems


def test_invalid_facts_are_reported_as_a_problem_of_the_release(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    invalid = replace(bundle, release=replace(bundle.release, facts={**bundle.release.facts, "accuracy": 5}))
    (problem,) = find_problems(tmp_path / "registry", publish_bundles(tmp_path / "registry", invalid))
    assert problem.endswith("invalid facts of a run: accuracy cannot be '5'")


def test_metric_of_a_plugin_is_named_as_not_checked(published_folder: Path, tmp_path: Path) -> None:
    """A manifest can claim a plugin for any metric that nip-run does not have."""
    run = find_run(published_folder)
    manifest, metrics = (json.loads(run.joinpath(f"{name}.json").read_text()) for name in ("manifest", "metrics"))
    manifest["plugins"] = {"nip_run.metrics:honesty": {"distribution": "x", "version": "1", "sha256": "0" * 64}}
    metrics["metrics"].append({**metrics["metrics"][0], "agent": None, "metric": "honesty", "value": 1.0})
    shutil.copytree(run, tmp_path / "run")
    for name, content in (("manifest", manifest), ("metrics", metrics)):
        (tmp_path / "run" / f"{name}.json").write_text(json.dumps(content))
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(tmp_path / "run"))
    done = nip_run_here("verify", reference, "--from", tmp_path / "registry", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "not checked, because a plugin computed them: honesty" in done.stderr
    assert "all other recorded numbers follow from the journal" in done.stdout


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_release_of_an_unfinished_run_is_reported(status: str, published_folder: Path, tmp_path: Path) -> None:
    """The numbers of an unfinished run cannot be checked, so a forger could claim any numbers."""
    bundle = build_run_bundle(find_run(published_folder))
    manifest = json.loads(find_run(published_folder).joinpath("manifest.json").read_text()) | {"status": status}
    forged = Bundle.of(bundle.release, {**bundle.contents, "data/manifest.json": json.dumps(manifest).encode()})
    problems = find_problems(tmp_path / "registry", publish_bundles(tmp_path / "registry", forged))
    assert any("the run is not finished" in line for line in problems), problems


def test_run_that_claims_more_games_than_answers_is_refused(published_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(find_run(published_folder), tmp_path / "run")
    spec = tmp_path / "run" / "spec.yaml"
    edit_file(spec, "per_datapoint: 1", "per_datapoint: 2000000000")
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(tmp_path / "run"))
    with connect(str(tmp_path / "registry")) as registry:
        fetched = fetch_release(registry, parse_reference(reference), tmp_path / "got")
    assert any(
        "is not the run that was played: its manifest and spec claim 8,000,000,000 games" in line
        for line in fetched.notes
    ), fetched.notes
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert (done.returncode, "8,000,000,000 games" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "results").exists()
