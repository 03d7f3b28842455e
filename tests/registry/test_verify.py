"""Everything that is wrong with a release, a got folder or a run is found and named, and nothing is written."""

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
from runner.registry.verification.verify import find_edited_files as edited_since
from runner.registry.verification.verify import find_folder_problems, find_release_problems, find_run_problems
from runner.results.folder import RunFolder
from runner.version import __version__
from tests.support.processes import nip_run_here
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import run_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `results/`, a `registry/` that has its run, and `got/`."""
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


def reference_in(folder: Path) -> str:
    with connect(str(folder / "registry")) as registry:
        return str(registry.entries()[0].reference)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_wrong_with_what_was_just_published_and_nothing_is_written(published_folder: Path) -> None:
    before = contents(published_folder)
    for what in (find_run(published_folder).name, "got", reference_in(published_folder)):
        done = nip_run_here("verify", what, "--from", published_folder / "registry", cwd=published_folder)
        assert (done.returncode, "every hash is right" in done.stdout) == (0, True), done.stdout + done.stderr
    assert contents(published_folder) == before


def wrong_of(registry: Path, reference: str) -> list[str]:
    named = parse_reference(reference)
    assert isinstance(named, Reference)
    try:
        with connect(str(registry)) as there:
            return list(find_release_problems(there, there.find(named)))
    except ReleaseError as error:
        return [str(error)]


def published_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "registry").rglob("*") if path.is_file())


def every(path: Path, step: int) -> Iterator[int]:
    """Every so many bytes of a file, and its last one."""
    size = path.stat().st_size
    yield from {*range(0, size, step), size - 1} if size else ()


FILES = (
    "README.md", "data/inputs/dataset.jsonl", "data/inputs/prompts/prover.jinja", "data/inputs/protocol.yaml",
    "data/journal.jsonl", "data/manifest.json", "data/metrics.json", "data/rollouts.jsonl", "data/spec.yaml",
    "environment.lock", "parameters.yaml", "release.json", "release.sha256", "spec.yaml",
)  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", FILES)
def test_a_byte_flipped_in_any_file_of_a_release_is_found_and_named(name: str, copy: Path) -> None:
    """Of each file the first byte, one in the middle, and the last."""
    reference = reference_in(copy)
    (path,) = [one for one in published_files(copy) if one.as_posix().endswith(f"/1/{name}")]
    good = path.read_bytes()
    for at in sorted({0, len(good) // 2, len(good) - 1}):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        wrong = wrong_of(copy / "registry", reference)
        assert any(path.name in line for line in wrong), (name, at, wrong)


@pytest.mark.full
def test_every_64th_byte_flipped_in_every_file_is_found_and_named(copy: Path) -> None:
    reference = reference_in(copy)
    for path in published_files(copy):
        good = path.read_bytes()
        for at in every(path, 64):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            wrong = wrong_of(copy / "registry", reference)
            assert any(path.name in line for line in wrong), (path, at, wrong)
        path.write_bytes(good)
    assert not wrong_of(copy / "registry", reference)


def test_all_damaged_files_are_named_at_once(copy: Path) -> None:
    names = ("metrics.json", "README.md", "protocol.yaml")
    for name in names:
        (path,) = (copy / "registry").rglob(name)
        path.write_bytes(path.read_bytes() + b" ")
    (copy / "registry" / reference_in(copy).replace("@", "/") / "extra.txt").write_text("more")
    done = nip_run_here("verify", reference_in(copy), "--from", copy / "registry", cwd=copy)
    assert done.returncode == 1
    assert all(name in done.stdout for name in (*names, "extra.txt")), done.stdout
    as_json = nip_run_here("verify", reference_in(copy), "--from", copy / "registry", "--json", cwd=copy)
    assert (as_json.returncode, len(json.loads(as_json.stdout)["wrong"])) == (1, 4)


def test_a_missing_file_is_named(copy: Path) -> None:
    (path,) = (copy / "registry").rglob("metrics.json")
    path.unlink()
    assert any("metrics.json" in line for line in wrong_of(copy / "registry", reference_in(copy)))


@pytest.mark.full
def test_files_that_were_changed_or_added_in_a_got_folder_are_named(copy: Path) -> None:
    got = copy / "got"
    (got / "parameters.yaml").write_text("seed: 9\n")
    (got / "data" / "inputs" / "prompts" / "more.jinja").write_text("more")
    (got / "notes.txt").write_text("a reader's own")
    wrong = list(find_folder_problems(got))
    assert len(wrong) == 1, wrong
    assert "more.jinja" in wrong[0]
    assert nip_run_here("verify", "got", cwd=copy).returncode == 1
    assert edited_since(got) == ["parameters.yaml"], "which is there to be edited, and is no damage"
    (got / "data" / "inputs" / "prompts" / "more.jinja").unlink()
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
def test_a_lock_that_pip_would_obey_more_of_is_refused(line: str, published_folder: Path, tmp_path: Path) -> None:
    lock = f"# Python 3.11.7\nnip-run==0.2.0\n{line}\n".encode()
    bundle = build_run_bundle(find_run(published_folder), environment_DOT_lock=lock)
    reference = publish_bundles(tmp_path / "registry", bundle)
    with (
        connect(str(tmp_path / "registry")) as registry,
        pytest.raises(ReleaseError, match=r"environment\.lock:3: expected NAME==VERSION"),
    ):
        fetch_release(registry, parse_reference(reference), tmp_path / "got")
    assert not (tmp_path / "got").exists()
    assert [one for one in wrong_of(tmp_path / "registry", reference) if "environment.lock:3" in one]


@pytest.mark.full
def test_a_run_whose_spec_was_saved_before_a_key_existed_is_not_called_changed(copy: Path) -> None:
    run = find_run(copy)
    said = yaml.safe_load((run / "spec.yaml").read_text())
    assert said.pop("cache", 0) is None
    (run / "spec.yaml").write_text(yaml.safe_dump(said))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["spec_sha256"] = tagged_hash("spec", said)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert not [line for line in find_run_problems(RunFolder(run)) if "spec.yaml" in line]


def edited(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), "utf-8")


def _dataset(run: Path) -> str:
    edited(run / "inputs" / "dataset.jsonl", "x + 0", "x + 7")
    return "inputs/dataset.jsonl"


def _prompt(run: Path) -> str:
    path = run / "inputs" / "prompts" / "prover.jinja"
    path.write_text(path.read_text() + " now")
    return "prover.jinja"


def _protocol(run: Path) -> str:
    edited(run / "inputs" / "protocol.yaml", "human_name: Expert", "human_name: Guru")
    return "inputs/protocol.yaml"


def _seed(run: Path) -> str:
    edited(run / "spec.yaml", "seed: 7", "seed: 8")
    return "spec.yaml"


def _journal(run: Path) -> str:
    path = run / "journal.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])
    return "journal.jsonl"


def _metric(run: Path) -> str:
    said = json.loads((run / "metrics.json").read_text())
    row = next(row for row in said["metrics"] if row["metric"] == "accuracy")
    row["value"] = 0.9999
    (run / "metrics.json").write_text(json.dumps(said))
    return "metric accuracy, value: recorded 0.9999"


def _metric_twice(run: Path) -> str:
    said = json.loads((run / "metrics.json").read_text())
    row = next(row for row in said["metrics"] if row["metric"] == "accuracy")
    said["metrics"].insert(0, {**row, "value": 0.9999})
    said["metrics"][-1].pop("clusters")
    (run / "metrics.json").write_text(json.dumps(said))
    edited(run / "manifest.json", f'"version": "{__version__}"', '"version": "0.2.1"')
    return "metric accuracy: recorded twice"


def _key_twice(run: Path) -> str:
    edited(run / "metrics.json", '"value"', '"value": 0.9999, "value"')
    return "metrics.json is damaged: its JSON has duplicate keys: value"


def _fact_twice(run: Path) -> str:
    edited(run / "manifest.json", '"seed"', '"seed": 3, "seed"')
    return "manifest.json is damaged: its JSON has duplicate keys: seed"


def _no_count(run: Path) -> str:
    edited(run / "manifest.json", f'"completions": {RunFolder(run).manifest().completions}', '"completions": null')
    return "manifest.json says completions None"


def _no_format(run: Path) -> str:
    edited(run / "manifest.json", '"format": 1,', "")
    return "manifest.json has no format"


def _interval_without_format(run: Path) -> str:
    _no_format(run)
    said = json.loads((run / "metrics.json").read_text())
    said["metrics"][0]["ci_low"] = 0.9999
    (run / "metrics.json").write_text(json.dumps(said))
    return "ci_low: recorded 0.9999"


def _address_taken_out(run: Path) -> str:
    edited(run / "spec.yaml", "base_url: null", "base_url: ???")
    return "spec.yaml does not have the hash in the manifest"


def _count(run: Path) -> str:
    said = json.loads((run / "manifest.json").read_text())
    said["completions"] += 1
    (run / "manifest.json").write_text(json.dumps(said))
    return "manifest.json says completions"


def _table(run: Path) -> str:
    path = run / "rollouts.parquet"
    with duckdb.connect() as database:
        database.execute(f"CREATE TABLE t AS SELECT * REPLACE (true AS correct) FROM '{path}'")
        database.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    return "rollouts.parquet, row"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "forge",
    [
        _metric, _metric_twice, _key_twice, _fact_twice, _seed, _dataset, _prompt, _protocol, _journal, _count,
        _no_count, _no_format, _interval_without_format, _address_taken_out, _table,
    ],
)  # fmt: skip
def test_what_was_changed_in_a_run_is_named(forge: Callable[[Path], str], copy: Path) -> None:
    run = find_run(copy)
    said = forge(run)
    before = contents(run)
    wrong = list(find_run_problems(RunFolder(run)))
    assert any(said in line for line in wrong), wrong
    assert contents(run) == before


@pytest.mark.full
def test_a_score_that_its_records_do_not_bear_is_named_in_a_release_whose_hashes_are_all_right(
    published_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(find_run(published_folder), tmp_path / "run")
    _metric(tmp_path / "run")
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(tmp_path / "run"))
    wrong = wrong_of(tmp_path / "registry", reference)
    assert any("metric accuracy, value: recorded 0.9999, recomputed" in line for line in wrong), wrong


@pytest.mark.full
def test_facts_that_are_not_those_of_the_files_are_named(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    accuracy = {**bundle.release.facts["accuracy"], "value": 0.9999}
    forged = replace(bundle, release=replace(bundle.release, facts={**bundle.release.facts, "accuracy": accuracy}))
    wrong = wrong_of(tmp_path / "registry", publish_bundles(tmp_path / "registry", forged))
    assert [line for line in wrong if "its facts say accuracy.value 0.9999" in line], wrong


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "before", "after", "told"),
    [
        ("parameters.yaml", "votes: 1", "votes: 3", "votes: 3, but data/ has 1"),
        ("parameters.yaml", "votes: 1", "votes: 1\nhooks: 1", "hooks: 1, but data/ has no such value"),
        ("parameters.yaml", "votes: 1", "votes: &a 1", "cannot be read"),
        ("spec.yaml", "data/spec.yaml, ", "", "extends: [parameters.yaml]"),
        ("run_data.yaml", "benchmark: ", "benchmark: better-", "benchmark: better-"),
    ],
)
def test_what_stands_beside_the_run_for_readers_is_what_follows_from_it(
    name: str, before: str, after: str, told: str, published_folder: Path, tmp_path: Path
) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    with open_content(bundle.contents[name]) as file:
        text = file.read().decode()
    assert before in text
    contents = {**bundle.contents, name: text.replace(before, after, 1).encode()}
    changed = publish_bundles(tmp_path / "registry", Bundle.of(replace(bundle.release, files=()), contents))
    (wrong,) = wrong_of(tmp_path / "registry", changed)
    assert wrong.startswith(f"{name} ")
    assert told in wrong


def test_a_run_without_its_rollouts_and_with_a_torn_log_is_told_without_advice_on_folders_that_are_gone(
    published_folder: Path, tmp_path: Path
) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    first, _, *rest = (find_run(published_folder) / "journal.jsonl").read_bytes().splitlines(keepends=True)
    contents = {path: content for path, content in bundle.contents.items() if "rollouts.jsonl" not in path}
    contents["data/journal.jsonl"] = b"".join([first, *rest])
    reference = publish_bundles(tmp_path / "registry", Bundle.of(replace(bundle.release, files=()), contents))
    damaged, missing = wrong_of(tmp_path / "registry", reference)
    assert damaged.startswith(f"data/journal.jsonl is damaged at byte {len(first)}: ")
    assert damaged.endswith("or is from another log"), damaged
    assert missing.endswith("data/rollouts.jsonl is missing")


def test_what_stands_behind_a_journals_last_record_is_named(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    journal = (find_run(published_folder) / "journal.jsonl").read_bytes() + bytes(100)
    torn = Bundle.of(replace(bundle.release, files=()), {**bundle.contents, "data/journal.jsonl": journal})
    wrong = wrong_of(tmp_path / "registry", publish_bundles(tmp_path / "registry", torn))
    assert wrong == ["data/journal.jsonl ends with 100 bytes of an incomplete record"]


def test_a_lock_that_is_too_large_is_told_without_a_folder_that_is_gone(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder), environment_DOT_lock=bytes(5 << 20))
    wrong = wrong_of(tmp_path / "registry", publish_bundles(tmp_path / "registry", bundle))
    assert any("environment.lock: larger than 4,096 KiB" in line for line in wrong), wrong
    assert not any(".nip-run-" in line for line in wrong), wrong


def test_facts_of_no_form_are_told_as_the_releases_fault(published_folder: Path, tmp_path: Path) -> None:
    bundle = build_run_bundle(find_run(published_folder))
    odd = replace(bundle, release=replace(bundle.release, facts={**bundle.release.facts, "accuracy": 5}))
    (wrong,) = wrong_of(tmp_path / "registry", publish_bundles(tmp_path / "registry", odd))
    assert wrong.endswith("invalid facts of a run: accuracy cannot be '5'")


def test_a_run_that_claims_more_games_than_it_has_answers_is_refused_at_once(
    published_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(find_run(published_folder), tmp_path / "run")
    spec = tmp_path / "run" / "spec.yaml"
    edited(spec, "per_datapoint: 1", "per_datapoint: 2000000000")
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(tmp_path / "run"))
    with connect(str(tmp_path / "registry")) as registry:
        found = fetch_release(registry, parse_reference(reference), tmp_path / "got")
    assert any(
        "is not the run that was played: its manifest and spec claim 8,000,000,000 games" in line
        for line in found.notes
    ), found.notes
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert (done.returncode, "8,000,000,000 games" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "results").exists()
