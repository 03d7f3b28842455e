"""Whether what was published follows from its transcripts; and played anew, whether it is still so."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import Interrupted, ReleaseError, UsageError
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import parse_reference
from runner.registry.fetched_release import FetchedRelease, fetch_release, open_fetched
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.interface import StoredFile
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry
from runner.registry.verification.fresh_play import compare_with_published, fresh_plan
from runner.registry.verification.replay import replay_run
from runner.registry.verification.reproducibility import fetch_into_results
from runner.registry.verification.training_replay import find_model_differences, replay_training
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.saved_spec import with_published_identity
from runner.spec.loader import load_spec
from runner.training.plan import plan_of
from runner.training.stage_log import read_stages
from tests.support.processes import nip_run_here
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import metric, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.judges_client import judged_spec, run_judge_server
from tests.support.specs import spec_file
from tests.support.training import run_training, training_spec


def got_of(run: Path, folder: Path) -> FetchedRelease:
    """A run, published as it is and got again."""
    reference = publish_bundles(folder / "registry", build_run_bundle(run))
    with connect(str(folder / "registry")) as registry:
        return fetch_release(registry, parse_reference(reference), folder / "got")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    return run_spec(spec_file(folder, size=4), folder / "results").path


@pytest.fixture(scope="module")
def unedited(run: Path, tmp_path_factory: pytest.TempPathFactory) -> FetchedRelease:
    """The run, published and got, for tests that write nothing there."""
    return got_of(run, tmp_path_factory.mktemp("unedited"))


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "mine" / run.name)


@pytest.mark.full
def test_what_was_published_follows_from_its_transcripts(run: Path, unedited: FetchedRelease, tmp_path: Path) -> None:
    done = nip_run_here("reproduce", unedited.folder, cwd=tmp_path)
    assert (done.returncode, "follows from the transcripts" in done.stdout) == (0, True), done.stdout + done.stderr
    found = Results(tmp_path / "results").find(f"{run.name}-reproduced").manifest()
    assert found.reproduces is not None
    assert found.reproduces["release"] == f"run/acme/{run.name}@1"
    assert found.replay_of is not None
    assert found.replay_of.run_id == run.name


@pytest.mark.full
def test_by_its_reference_it_is_got_into_the_results_and_once(run: Path, tmp_path: Path) -> None:
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(run))
    for _ in range(2):
        done = nip_run_here("reproduce", reference, "--from", "registry", "--json", cwd=tmp_path)
        assert (done.returncode, json.loads(done.stdout)["follows"]) == (0, True), done.stderr
    assert (tmp_path / "results" / "published" / "acme" / run.name / "1" / "data" / "journal.jsonl").is_file()


def test_a_run_of_ones_own_is_said_to_be_one(run: Path, tmp_path: Path) -> None:
    results = run.parent.parent
    done = nip_run_here("reproduce", run.name, "--results", results, cwd=tmp_path)
    assert (done.returncode, f"nip-run verify {run.name} --results {results}" in done.stderr) == (2, True), done.stderr


@pytest.mark.full
def test_a_folder_that_nip_run_chose_and_that_is_damaged_is_named_to_be_removed(run: Path, tmp_path: Path) -> None:
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(run))
    results = Results(tmp_path / "my results")
    folder = results.path / "published" / "acme" / run.name / "1"
    with connect(str(tmp_path / "registry")) as registry:
        entry = registry.find(parse_reference(reference))
        for name in ("data/metrics.json", "release.json", ".nip-run-fetched"):
            fetch_into_results(registry, entry, results)
            (folder / name).write_bytes(b"{}")
            with pytest.raises(
                ReleaseError,
                match=re.escape(f"remove the folder and repeat the command: rm -r {shlex.quote(str(folder))}"),
            ):
                fetch_into_results(registry, entry, results)
            shutil.rmtree(folder)
        got = fetch_release(registry, parse_reference(reference), tmp_path / "mine")
    (got.folder / "data" / "metrics.json").write_bytes(b"{}")
    with pytest.raises(ReleaseError, match=re.escape(f"nip-run get {reference} NEW --from file:{tmp_path}/registry")):
        fresh_plan(got, [])


def forged(copy: Path, name: str) -> str:
    """A record of a run that is changed; what must be said of it."""
    if name == "metrics":
        said = json.loads((copy / "metrics.json").read_text())
        row = next(row for row in said["metrics"] if row["metric"] == "accuracy")
        row["ci_low"] += 1e-16 + row["ci_low"] * 1e-15
        (copy / "metrics.json").write_text(json.dumps(said))
        return f"metric accuracy, ci_low: recorded {row['ci_low']!r}, recomputed "
    said = json.loads((copy / "manifest.json").read_text())
    said["prompt_tokens"] += 1
    (copy / "manifest.json").write_text(json.dumps(said))
    return f"prompt_tokens: published {said['prompt_tokens']}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["metrics", "manifest"])
def test_what_does_not_follow_is_named_with_both_values(name: str, copy: Path, tmp_path: Path) -> None:
    said = forged(copy, name)
    got_of(copy, tmp_path)
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert (done.returncode, "does not follow" in done.stdout, said in done.stdout) == (1, True, True), done.stdout


@pytest.mark.full
def test_a_missing_rollout_is_told_by_its_id_in_one_line(run: Path, tmp_path: Path) -> None:
    lines = bytes(build_run_bundle(run).contents["data/rollouts.jsonl"]).splitlines()
    gone, following = json.loads(lines.pop(1))["rollout_id"], json.loads(lines[1])["rollout_id"]
    changed = build_run_bundle(run, data__rollouts_DOT_jsonl=b"\n".join(lines) + b"\n")
    reference = publish_bundles(tmp_path / "registry", changed)
    done = nip_run_here("reproduce", reference, "--from", "registry", "--json", cwd=tmp_path)
    (line,) = json.loads(done.stdout)["different"]
    assert (done.returncode, f"row 2: rollout {following}, but the journal gives rollout {gone} here" in line) == (
        1, True,
    ), line  # fmt: skip


@pytest.mark.full
def test_of_a_journal_that_was_cut_it_is_told_what_does_not_follow(run: Path, tmp_path: Path) -> None:
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    changed = build_run_bundle(run, data__journal_DOT_jsonl=b"".join(lines[:-1]))
    reference = publish_bundles(tmp_path / "registry", changed)
    with connect(str(tmp_path / "registry")) as registry:
        got = fetch_release(registry, parse_reference(reference), tmp_path / "got")
    missing, *different = replay_run(got, Results(tmp_path / "results")).errors
    assert "has no answer number" in missing
    assert [line for line in different if ": the journal gives only " in line], different
    assert [line for line in different if line.startswith("manifest.json says completions")], different


@pytest.mark.full
def test_a_run_of_another_version_is_recomputed_and_that_is_said(copy: Path, tmp_path: Path) -> None:
    said = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**said, "version": "0.0.9"}))
    got_of(copy, tmp_path)
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recomputed with" in done.stdout
    assert "played with 0.0.9: nothing differs" in done.stdout


def test_a_file_that_is_not_as_published_is_named_and_nothing_is_played(run: Path, tmp_path: Path) -> None:
    found = got_of(run, tmp_path)
    path = found.folder / "data" / "inputs" / "dataset.jsonl"
    path.write_text(path.read_text().replace("x + 1", "x + 9"))
    for fresh in ([], ["--fresh"]):
        done = nip_run_here("reproduce", "got", *fresh, cwd=tmp_path)
        assert (done.returncode, "data/inputs/dataset.jsonl is damaged" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "results").exists()


SHAPES: dict[str, dict[str, Any]] = {
    "votes and repeats": {"votes": 3, "rollouts": {"per_datapoint": 2}},
    "trees": {"rollouts": {"num_responses_per_timestep": 2}, "protocol": {"max_message_rounds": 4}},
    "stopped once it was decided": {"until": {"width": 0.9}},
    "both stances": {"stances": "both", "protocol": {"use": "adp", "max_message_rounds": None},
                     "prompts": "prompts/code_validation/adp"},
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
def test_runs_of_every_shape_follow(shape: str, tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=8, fine_tune=None, **SHAPES[shape]), tmp_path / "results")
    found = replay_run(got_of(result.path, tmp_path), Results(tmp_path / "results"))
    assert not found.errors


@pytest.mark.full
def test_a_rejudged_run_follows(run: Path, tmp_path: Path) -> None:
    done = nip_run_here("rejudge", run, "votes=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (judged,) = (tmp_path / "results" / "runs").iterdir()
    assert not replay_run(got_of(judged, tmp_path), Results(tmp_path / "results")).errors


@pytest.mark.full
def test_failed_calls_and_lost_games_follow_too(tmp_path: Path) -> None:
    with run_chat_server(faults={"drop": 0.3}, seed=3) as server:
        spec = spec_file(
            tmp_path, server.base_url, size=6, fine_tune=None, rollouts={"max_transport_failed": 1.0},
            retry={"transient": {"attempts": 2, "first_wait": 0.001}},
        )  # fmt: skip
        result = run_spec(spec, tmp_path / "results")
    assert result.manifest.failed_calls
    assert not replay_run(got_of(result.path, tmp_path), Results(tmp_path / "results")).errors


def training_release(folder: Path, **changes: Any) -> tuple[Path, str]:
    """A training run with its parts in a registry; `changes` are of the parent's files."""
    result = run_training(training_spec(folder, training={"iterations": 1}), folder / "results")
    parts = Results(folder / "results").parts_of(result.run_id)
    bundles = [build_run_bundle(part.path) for part in parts]
    links = tuple(ReleaseLink(role="part", release=str(one.release.reference), sha256=one.sha256) for one in bundles)
    return folder / "registry", publish_bundles(
        folder / "registry", *bundles, build_run_bundle(result.path, links=links, **changes)
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return training_release(tmp_path_factory.mktemp("training"))


@pytest.mark.full
def test_a_training_run_follows_with_its_parts_and_the_chain_of_its_models(
    training: tuple[Path, str], tmp_path: Path
) -> None:
    registry, reference = training
    done = nip_run_here("reproduce", reference, "--from", registry, cwd=tmp_path)
    assert (done.returncode, "the chain of its models follow" in done.stdout) == (0, True), done.stdout + done.stderr
    assert done.stdout.count("follows from the transcripts") == len(list((registry / "run" / "acme").iterdir())) - 1
    brought = nip_run_here("get", reference, "my copy", "--from", registry, cwd=tmp_path)
    assert f"nip-run reproduce '{tmp_path / 'my copy'}' --from file:{registry}" in brought.stdout, brought
    assert "--fresh" not in brought.stdout, "it would be refused"
    got = open_fetched(tmp_path / "my copy")
    with pytest.raises(UsageError, match=r"run/acme/.* to repeat the training: nip-run '"):
        fresh_plan(got, [])
    asked = nip_run_here("reproduce", "my copy", cwd=tmp_path)
    said = f"nip-run reproduce 'my copy' --from file:{registry}"
    assert (asked.returncode, said in asked.stderr) == (2, True), asked.stderr


@pytest.mark.full
def test_a_signal_ends_the_whole_chain_and_not_one_part_of_it(training: tuple[Path, str], tmp_path: Path) -> None:
    class Signalled(FolderTransport):
        def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
            raise Interrupted(f"interrupted at {prefix}")

    with connect(str(training[0])) as there:
        got = fetch_release(there, parse_reference(training[1]), tmp_path / "got")
    with pytest.raises(Interrupted):
        replay_training(got, Registry(Signalled(str(training[0]))), Results(tmp_path / "results"))


@pytest.mark.full
def test_a_part_that_is_gone_or_was_played_by_another_model_breaks_the_chain(
    training: tuple[Path, str], tmp_path: Path
) -> None:
    registry, reference = tmp_path / "registry", training[1]
    shutil.copytree(training[0], registry)
    last = max((registry / "run" / "acme").glob("*-i*"))
    shutil.rmtree(last)
    with connect(str(registry)) as there:
        got = fetch_release(there, parse_reference(reference), tmp_path / "got")
        found = replay_training(got, there, Results(tmp_path / "results"))
    assert any(last.name in line and "is not published" in line for line in found.errors), found.errors
    runs = (part.fetched.run for part in found.parts)
    named = {run.run_id: run.manifest() for run in runs if run is not None}
    other = {
        run_id: replace(one, agents=tuple({**row, "model": "another"} for row in one.agents))
        for run_id, one in named.items()
    }
    assert got.run is not None
    stages = read_stages(got.run.path)
    assert not [line for line in find_model_differences(got.run, stages, named) if "used the model" in line]
    assert [line for line in find_model_differences(got.run, stages, other) if "used the model another" in line]


LABELS = [number % 2 for number in range(160)]


def judged(folder: Path, sensitivity: float, seed: int) -> tuple[Path, float]:
    """A published run of a planted judge in a got folder below this one; and its accuracy."""
    with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed) as server:
        spec = judged_spec(folder, server.base_url, "solo_verifier", "seer", labels=LABELS, fine_tune=None)
        result = run_spec(spec, folder / "theirs")
    got_of(result.path, folder)
    return folder / "got", metric(result, "accuracy")["value"]


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    return judged(tmp_path_factory.mktemp("seer"), 3.0, 1)


def reproduce_fresh(got: Path, folder: Path, sensitivity: float, seed: int, *options: str) -> Any:
    """The got run played anew at a server whose judge is as sensitive as this."""
    with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed) as server:
        return nip_run_here(
            "reproduce", got, "--fresh", "--set", f"models.seer.base_url={server.base_url}", *options, cwd=folder
        )


@pytest.mark.full
def test_a_model_that_drifted_is_told_with_an_interval_that_holds_it(seer: tuple[Path, float], tmp_path: Path) -> None:
    """Accuracies of d' 3 and of d' 0.6 are about 0.93 and 0.62."""
    done = reproduce_fresh(seer[0], tmp_path, 0.6, 2, "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["outcome"]) == (1, "drifted"), done.stderr
    assert said["compared"]["ci_low"] <= 0.618 - 0.933 <= said["compared"]["ci_high"]
    assert said["verdict"].startswith("drifted by -")
    assert "flipped datapoints" in said["verdict"]
    manifest = Results(tmp_path / "results").find(said["run_id"]).manifest()
    assert manifest.reproduces is not None
    assert manifest.got_from == manifest.reproduces
    shown = reproduce_fresh(seer[0], tmp_path / "results", 0.6, 2)
    assert "nip-run show" in shown.stdout


@pytest.mark.full
def test_a_model_that_is_as_it_was_is_reproduced_if_its_interval_is_within_the_margin(
    seer: tuple[Path, float], tmp_path: Path
) -> None:
    done = reproduce_fresh(seer[0], tmp_path, 3.0, 5, "--margin", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy reproduced within 20 points: " in done.stdout
    got = open_fetched(seer[0])
    results = Results(tmp_path / "results")
    (folder,) = results.runs()
    narrower = compare_with_published(got, FinishedRun(folder, folder.manifest(), {}), results, "accuracy", 0.01)
    assert narrower.outcome == "undecided"
    assert "undecided: the difference is between " in narrower.verdict
    assert narrower.verdict.endswith("the result is reproduced if the difference is within 1 point")


@pytest.mark.full
def test_a_got_run_played_unedited_has_the_identity_of_the_published_one_and_edited_another(
    copy: Path, tmp_path: Path
) -> None:
    """Its spec names copies, and its dataset was selected."""
    folder = got_of(copy, tmp_path).folder
    manifest = RunFolder(copy).manifest()
    for spec in (folder / "spec.yaml", folder / "data" / "spec.yaml"):
        assert with_published_identity(plan_of(load_spec(spec))).identity == manifest.identity
    for words in (["votes=3"], ["dataset.limit=2"], ["seed=9"]):
        assert with_published_identity(plan_of(load_spec(folder / "spec.yaml", words))).identity != manifest.identity
    (folder / "data" / "manifest.json").unlink()
    assert with_published_identity(plan_of(load_spec(folder / "spec.yaml"))).identity != manifest.identity


@pytest.mark.full
def test_where_no_difference_could_have_been_seen_nothing_is_called_reproduced(
    unedited: FetchedRelease, tmp_path: Path
) -> None:
    """Four datapoints, and the very same answers again."""
    done = nip_run_here("reproduce", unedited.folder, "--fresh", cwd=tmp_path)
    assert (done.returncode, "undecided" in done.stdout, "reproduced" in done.stdout) == (5, True, False), done


@pytest.mark.full
def test_a_model_that_is_gone_is_said(seer: tuple[Path, float], tmp_path: Path) -> None:
    with run_judge_server(judges={"other": {}}) as server:
        done = nip_run_here(
            "reproduce", seer[0], "--fresh", "--set", f"models.seer.base_url={server.base_url}", cwd=tmp_path
        )
    assert (done.returncode, "cannot be played again: a model no longer exists" in done.stderr) == (4, True), (
        done.stderr
    )


def test_another_refusal_is_no_gone_model(seer: tuple[Path, float], tmp_path: Path) -> None:
    with run_chat_server(kind="unauthorized") as server:
        done = nip_run_here(
            "reproduce", seer[0], "--fresh", "--set", f"models.seer.base_url={server.base_url}", cwd=tmp_path
        )
    assert done.returncode == 4, done.stderr
    assert "the run cannot be played again. " in done.stderr
    assert "no longer exists" not in done.stderr


def test_an_address_that_was_not_published_is_asked_for_once(seer: tuple[Path, float], tmp_path: Path) -> None:
    done = nip_run_here("reproduce", seer[0], "--fresh", cwd=tmp_path)
    assert (done.returncode, "addresses are never published" in done.stderr) == (2, True), done.stderr
    assert "Set the address of your own server: --set models.seer.base_url=http://HOST:PORT/v1" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "word",
    ["seed=8", "models.m.model=other", "votes=3", "protocol.max_message_rounds=3", "prompts=mine", "sweep={seed: [1]}",
     "models={m: {provider: dummy}}", "agents.verifier.max_response_words=3", "dataset.path=mine.jsonl"],
)  # fmt: skip
def test_what_would_play_another_game_cannot_be_set(word: str, unedited: FetchedRelease) -> None:
    with pytest.raises(UsageError, match=rf"--set {word.partition('=')[0]} would change the games"):
        fresh_plan(unedited, [word])


@pytest.mark.sample(1)
@pytest.mark.parametrize("word", ["models.m.base_url=http://127.0.0.1:1/v1", "budget.usd=1", "rollouts.concurrency=2"])
def test_what_changes_no_game_can_be_set(word: str, unedited: FetchedRelease, tmp_path: Path) -> None:
    assert fresh_plan(unedited, [word]).games.game_hash == fresh_plan(unedited, []).games.game_hash
    done = nip_run_here("reproduce", unedited.folder, "--set", word, cwd=tmp_path)
    assert (done.returncode, "--set works only with --fresh" in done.stderr) == (2, True)
