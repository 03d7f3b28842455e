"""Release drafts of runs: they have all inputs and records, and the same bytes for any location of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
import yaml

from runner.base import package_data
from runner.documents.dataclass_schema import to_plain
from runner.documents.layer_loading import load_layers
from runner.documents.releases.bundle import open_content
from runner.documents.releases.manifest import Release
from runner.registry.bundles.parameters import SPEC_TEXT, build_parameters
from runner.registry.bundles.run_facts import MAX_DATAPOINTS
from runner.registry.bundles.runs import build_run_draft, build_run_drafts
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.recomputed_run import write_tables
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.notes import Notes
from runner.results.provenance.input_files import write_inputs
from runner.results.table_columns import COLUMNS
from runner.spec.loader import load_spec, load_specs
from runner.training.plan import plan_of
from tests.compatibility.old import FIXTURES
from tests.support.git_repositories import commit_and_push
from tests.support.paths import ROOT
from tests.support.processes import python
from tests.support.runs import run_spec, table
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec

CHOICES = PublisherChoices("acme", licence="CC-BY-4.0")


def build_draft(run: Path, choices: PublisherChoices = CHOICES) -> Draft:
    folder = RunFolder(run)
    return build_run_draft(folder, Results.of(folder), choices)


def read_content(draft: Draft, path: str) -> bytes:
    with open_content(draft.contents[path]) as file:
        return file.read()


def write_draft(draft: Draft, target: Path) -> Path:
    """Write a draft's files to a folder as `get` does."""
    for path in draft.contents:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(read_content(draft, path))
    return target


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    spec = spec_file(folder, size=6, description="Sums | `and` *more*")
    commit_and_push(folder, "spec.yaml", "data.jsonl")
    return run_spec(spec, folder / "results", "seed=9").folder.path


def test_release_records_shutdown_dates_of_its_models(run: Path, tmp_path: Path) -> None:
    """The dummy provider played the run; the test changes its folder to OpenAI."""
    assert "shutdowns" not in build_draft(run).release.facts
    copy = tmp_path / "results" / "runs" / run.name
    shutil.copytree(run, copy)
    spec = yaml.safe_load((copy / "spec.yaml").read_text())
    spec["models"]["m"] |= {"provider": "openai", "model": "gpt-4o"}
    (copy / "spec.yaml").write_text(yaml.safe_dump(spec))
    manifest = json.loads((copy / "manifest.json").read_text())
    for agent in manifest["agents"]:
        agent |= {"provider": "openai", "model": "gpt-4o"}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    draft = build_draft(copy)
    assert draft.release.facts["shutdowns"] == {"gpt-4o": "2027-01-14"}
    assert b"2027" in read_content(draft, "README.md").partition(b"OpenAI shuts")[2]


@pytest.mark.full
def test_notes_are_never_published(run: Path) -> None:
    before = build_draft(run)
    notes = Notes(RunFolder(run))
    notes.write("kept at home", ["odd"], rollout_id="r1")
    try:
        after = build_draft(run)
        assert set(after.contents) == set(before.contents)
        assert not any(b"kept at home" in read_content(after, path) for path in after.contents)
        assert after.release == before.release
    finally:
        for path in run.glob("*notes*"):
            path.unlink()


def test_run_release_has_inputs_and_records_but_no_derived_files(run: Path) -> None:
    draft = build_draft(run)
    prompts = [f"data/inputs/prompts/{path.name}" for path in (run / "inputs" / "prompts").iterdir()]
    assert sorted(draft.contents) == sorted([
        "README.md", "croissant.json", "environment.lock", "parameters.yaml", "run_data.yaml", "spec.yaml",
        "data/inputs/dataset.jsonl", "data/inputs/protocol.yaml", "data/journal.jsonl", "data/manifest.json",
        "data/metrics.json", "data/rollouts.jsonl", "data/spec.yaml", *prompts,
        "written/files.json", "written/overrides.txt", "written/spec.yaml",
    ])  # fmt: skip
    assert (run / "fine_tune").is_dir()
    for path in draft.contents:
        if path.startswith("data/") and path != "data/rollouts.jsonl":
            assert read_content(draft, path) == (run / path.removeprefix("data/")).read_bytes()
    assert read_content(draft, "written/overrides.txt") == b"seed=9\n"
    assert draft.notes == ()


def test_release_manifest_describes_the_run_and_can_be_parsed(run: Path) -> None:
    bundle = build_draft(run).bundle()
    release = Release.from_bytes(bundle.manifest)
    manifest = json.loads((run / "manifest.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    accuracy = next(row for row in metrics if (row["agent"], row["metric"]) == (None, "accuracy"))
    assert str(release.reference) == f"run/acme/{manifest['run_id']}@1"
    assert release.identity["run"] == manifest["identity"]
    assert release.identity["game"] == manifest["game_sha256"]
    assert release.identity["spec"] == manifest["spec_sha256"]
    for name in ("run_id", "status", "rollouts", "prompt_tokens", "cost_usd", "python", "finished_at"):
        assert release.facts[name] == manifest[name]
    assert release.facts["accuracy"].items() <= accuracy.items()
    assert release.facts["models"] == {"prover": "dummy", "verifier": "dummy"}
    assert release.facts["pinned"] is True
    assert {name: source.clean for name, source in release.sources.items()} == {
        "spec": True, "prompts": True, "protocol": True, "dataset": True,
    }  # fmt: skip


def test_task_and_datapoint_hashes_equal_those_of_the_leaderboard(run: Path) -> None:
    facts = build_draft(run).release.facts
    board = duckdb.connect(str(run.parents[1] / "leaderboard.duckdb"), read_only=True)
    (task, content), *_ = board.execute("SELECT task, dataset_content_sha256 FROM runs").fetchall()
    hashes = [row[0] for row in board.execute("SELECT content_sha256 FROM datapoints ORDER BY 1").fetchall()]
    assert (facts["task"], facts["datapoints_sha256"]) == (task, hashes)
    assert build_draft(run).release.identity["dataset"] == content


@pytest.mark.full
def test_same_run_gives_the_same_release_on_every_machine(run: Path, tmp_path: Path) -> None:
    """The folder, the order of its files, the home, the time zone and the hash seed differ."""
    expected = build_draft(run).bundle().sha256
    copy = tmp_path / "else where" / "results" / "runs" / run.name
    for path in sorted(run.rglob("*"), reverse=True):
        if path.is_file():
            (copy / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / path.relative_to(run))
    code = """
import sys
from pathlib import Path
from runner.registry.draft import PublisherChoices
from runner.registry.bundles.runs import build_run_draft
from runner.results.folder import RunFolder
from runner.results.provenance.input_files import write_inputs
from runner.results.notes import Notes
from runner.results.leaderboard.results_folder import Results
folder = RunFolder(Path(sys.argv[1]))
print(build_run_draft(folder, Results.of(folder), PublisherChoices("acme", licence="CC-BY-4.0")).bundle().sha256)
"""
    hashes = [
        python(code, copy, cwd=tmp_path, HOME=str(tmp_path), TZ=zone, PYTHONHASHSEED=seed, USER=user).stdout.strip()
        for zone, seed, user in (("Asia/Tokyo", "1", "ann"), ("America/Lima", "2", "bob"))
    ]
    assert hashes == [expected, expected]


# Records


def test_rollout_lines_have_the_columns_of_the_table_in_order(run: Path) -> None:
    lines = read_content(build_draft(run), "data/rollouts.jsonl").splitlines()
    rows = [list(row.values()) for row in table(run, "rollouts")]
    records = [json.loads(line) for line in lines]
    assert [list(row) for row in records] == [list(COLUMNS["rollouts"])] * len(rows)
    for row, values in zip(records, rows, strict=True):
        for name, value in zip(COLUMNS["rollouts"], values, strict=True):
            nested = COLUMNS["rollouts"][name] == "JSON" and value is not None
            assert row[name] == (json.loads(value) if nested else value)


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, {"votes": 3, "stances": "both", "seats": None}])
def test_tables_rebuilt_from_a_release_equal_those_of_the_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = run_spec(spec_file(tmp_path, size=4, fine_tune=None, **changes), tmp_path / "results").folder.path
    draft = build_draft(path)
    folder = RunFolder.from_release(write_draft(draft, tmp_path / "got") / "data")
    write_tables(folder)
    for name in COLUMNS:
        original, rebuilt = table(path, name), table(folder.path, name)
        assert list(original[0]) == list(rebuilt[0])
        assert original == rebuilt


# Parameters


def test_published_spec_equals_the_played_spec(run: Path, tmp_path: Path) -> None:
    folder = write_draft(build_draft(run), tmp_path / "got")
    published, played = (
        to_plain(load_spec(path).experiment) for path in (folder / "spec.yaml", folder / "data" / "spec.yaml")
    )
    assert published == played


SPECS = [
    path
    for folder in ("specs", "specs/paper")
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if "hf://" not in str(load_layers(path, "", (), package_data.find_file).data["dataset"]["path"])
]


@pytest.mark.full
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_parameters_of_every_shipped_spec_give_its_resolved_spec(path: Path, tmp_path: Path) -> None:
    point = load_specs(path)[0]
    folder = RunFolder(tmp_path / "data")
    folder.path.mkdir()
    write_inputs(plan_of(point).games, folder)
    (tmp_path / "parameters.yaml").write_bytes(build_parameters(yaml.safe_load(folder.spec.read_text())))
    (tmp_path / "spec.yaml").write_text(SPEC_TEXT)
    published, resolved = load_spec(tmp_path / "spec.yaml"), load_spec(folder.spec)
    assert to_plain(published.experiment) == to_plain(resolved.experiment)
    assert plan_of(published).identity == plan_of(resolved).identity


EDITS: list[tuple[tuple[str, ...], Any]] = [
    (("seed",), 123),
    (("dataset", "limit"), 2),
    (("protocol", "max_message_rounds"), 4),
    (("models", "m", "temperature"), 0.25),
    (("models", "m", "extra_body"), {"top_k": 3}),
    (("models", "m", "base_url"), "http://127.0.0.1:9/v1"),
    (("agents", "verifier", "max_response_words"), 33),
    (("decision_format", "lenient"), True),
    (("votes",), 5),
    (("retry", "transient", "attempts"), 2),
    (("rollouts", "per_datapoint"), 3),
    (("stances",), "both"),
    (("until",), {"width": 0.2}),
    (("budget", "completions"), 50),
    (("fine_tune", "min_examples"), 7),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("key_path", "value"), EDITS, ids=[".".join(key_path) for key_path, _ in EDITS])
def test_edited_parameters_override_the_spec(run: Path, tmp_path: Path, key_path: tuple[str, ...], value: Any) -> None:
    folder = write_draft(build_draft(run), tmp_path / "got")
    file = folder / "parameters.yaml"
    parameters = yaml.safe_load(file.read_text())
    section = parameters
    for name in key_path[:-1]:
        section = section[name]
    assert key_path[-1] in section
    section[key_path[-1]] = value
    file.write_text(yaml.safe_dump(parameters))
    loaded: Any = to_plain(load_spec(folder / "spec.yaml").experiment)
    for name in key_path:
        loaded = loaded[name]
    assert value.items() <= loaded.items() if isinstance(value, dict) else loaded == value


@pytest.mark.full
def test_trainers_and_training_settings_can_be_edited(tmp_path: Path) -> None:
    folder = run_training(training_spec(tmp_path, training={"iterations": 1}), tmp_path / "results").folder
    draft = build_draft(folder.path)
    parameters = yaml.safe_load(read_content(draft, "parameters.yaml"))
    assert parameters["training"]["iterations"] == 1
    assert {"backend", "n_epochs", "beta"} <= next(iter(parameters["training"]["trainers"].values())).keys()
    fetched = write_draft(draft, tmp_path / "got")
    parameters["training"]["iterations"] = 2
    (fetched / "parameters.yaml").write_text(yaml.safe_dump(parameters))
    training = load_spec(fetched / "spec.yaml").experiment.training
    assert training is not None
    assert training.iterations == 2


# The dataset


def test_unlicensed_dataset_rows_are_left_out_and_their_hashes_published(run: Path) -> None:
    draft = build_draft(run, PublisherChoices("acme", dataset_licence="none"))
    assert "data/inputs/dataset.jsonl" not in draft.contents
    assert "croissant.json" not in draft.contents
    pin = orjson.loads(read_content(draft, "data/inputs/dataset.pin.json"))
    rows = [json.loads(line) for line in (run / "inputs" / "dataset.jsonl").read_text().splitlines()]
    assert (pin["file"], pin["source"]["clean"]) == ("data.jsonl", True)
    assert [row["id"] for row in pin["rows"]] == [row["id"] for row in rows]
    assert sorted(row["content_sha256"] for row in pin["rows"]) == draft.release.facts["datapoints_sha256"]
    for name in ("README.md", "data/inputs/dataset.pin.json", "run_data.yaml", "parameters.yaml", "data/spec.yaml"):
        assert not any(row["question"].encode() in read_content(draft, name) for row in rows)
    assert b"rows of the dataset are not in this release" in read_content(draft, "README.md")
    assert any("not published" in note for note in draft.notes)


def test_croissant_file_describes_rows_by_hash_and_column(run: Path) -> None:
    croissant = orjson.loads(read_content(build_draft(run), "croissant.json"))
    bundle = build_draft(run).bundle()
    entry = bundle.release.file("data/inputs/dataset.jsonl")
    assert entry is not None
    assert croissant["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert [(file["contentUrl"], file["sha256"]) for file in croissant["distribution"]] == [(entry.path, entry.sha256)]
    assert {field["name"]: field["dataType"] for field in croissant["recordSet"][0]["field"]} == {
        "id": "sc:Text", "label": "sc:Integer", "question": "sc:Text", "solution": "sc:Text",
    }  # fmt: skip


def test_manifest_with_most_datapoints_stays_below_the_size_limit() -> None:
    assert MAX_DATAPOINTS * 80 < (1 << 20) * 0.7


# README


def test_readme_has_the_result_and_the_commands(run: Path) -> None:
    draft = build_draft(run, PublisherChoices("acme", child_of="run/umbra/x@1"))
    text, name = read_content(draft, "README.md").decode(), draft.release.name
    assert "It is a child of run/umbra/x\\@1." in text
    accuracy = draft.release.facts["accuracy"]
    assert f"**{accuracy['value']:.3f}** [{accuracy['ci_low']:.3f}, {accuracy['ci_high']:.3f}]" in text
    for command in (
        f"get run/acme/{name}@1 {name} --from WHERE",
        f"reproduce {name}",
        f"show {name}/data",
        f"compare {name}/data last",
    ):
        assert f"nip-run {command}" in text


@pytest.mark.full
def test_readme_escapes_markup_in_user_text(tmp_path: Path) -> None:
    hostile = "x`</code><img src=x onerror=alert(1)>|[a](javascript:b)\n# Title"
    spec = spec_file(tmp_path, size=2, fine_tune=None, benchmark=hostile, models={"m": {"model": hostile}})
    text = read_content(
        build_draft(run_spec(spec, tmp_path / "results").folder.path, PublisherChoices("acme", description=hostile)),
        "README.md",
    )
    readme = text.decode()
    assert "\n# Title" not in readme
    outside = "".join(part for index, part in enumerate(readme.replace("\\`", "").split("``")) if index % 2 == 0)
    assert "<img" not in outside.replace("\\<img", "")
    assert "](javascript" not in outside


def test_readme_quotes_no_message_of_the_run(run: Path) -> None:
    text = read_content(build_draft(run), "README.md").decode()
    messages = [row["content"] for row in table(run, "messages")]
    assert messages
    assert not any(content in text for content in messages if len(content) > 3)


# Training runs, replays, and runs of 0.1.0


@pytest.mark.full
def test_training_run_is_published_after_its_parts_and_models(tmp_path: Path) -> None:
    folder = run_training(training_spec(tmp_path, training={"iterations": 1}), tmp_path / "results").folder
    drafts = build_run_drafts(folder, Results(tmp_path / "results"), CHOICES)
    kinds = [str(draft.release.kind) for draft in drafts]
    names = [draft.release.name for draft in drafts if draft.release.kind == "run"]
    assert kinds == [*sorted(kinds[:-1], reverse=True), "run"]
    assert names[-1] == folder.run_id.lower()
    assert f"{folder.run_id}-i0".lower() in names
    training_draft = drafts[-1]
    assert "data/stages.jsonl" in training_draft.contents
    assert not {"data/journal.jsonl", "data/rollouts.jsonl"} & training_draft.contents.keys()
    assert training_draft.release.facts["task"] is None
    for draft in drafts:
        Release.from_bytes(draft.bundle().manifest)


@pytest.mark.full
def test_release_with_a_replayed_model_needs_no_other_run(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=3, fine_tune=None), tmp_path / "results").folder
    replay_model = {"provider": "replay", "run": str(first.path)}
    second = run_spec(
        spec_file(tmp_path, size=3, fine_tune=None, name="b", models={"m": replay_model}), tmp_path / "results"
    ).folder
    draft = build_draft(second.path)
    assert str(tmp_path).encode() not in read_content(draft, "data/spec.yaml")
    assert ".." not in yaml.safe_load(read_content(draft, "data/spec.yaml"))["models"]["m"]["run"]
    folder = RunFolder.from_release(write_draft(draft, tmp_path / "got") / "data")
    shutil.rmtree(first.path)
    write_tables(folder)
    assert table(folder.path, "messages") == table(second.path, "messages")


def test_release_links_the_parent_that_the_user_names(run: Path) -> None:
    links = build_draft(run, PublisherChoices("acme", child_of="run/other/first@2")).release.links
    assert [(link.role, link.release) for link in links] == [("child_of", "run/other/first@2")]


@pytest.fixture(scope="module")
def old_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FIXTURES / "results", tmp_path_factory.mktemp("old") / "results"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", sorted(path.name for path in (FIXTURES / "results" / "runs").iterdir()))
def test_release_of_a_0_1_0_run_notes_what_it_lacks(old_results: Path, name: str) -> None:
    draft = build_draft(old_results / "runs" / name)
    release = Release.from_bytes(draft.bundle().manifest)
    assert (release.facts["pinned"], release.sources) == (False, {})
    assert any("not pinned" in note for note in draft.notes)
    assert "environment.lock" not in draft.contents
    assert b"the release is not pinned to a commit" in read_content(draft, "README.md")
