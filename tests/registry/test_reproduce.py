"""`reproduce`: published runs follow from their transcripts, and fresh plays are compared with them."""

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
from runner.results.manifest import Status
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


def publish_and_fetch(run: Path, folder: Path) -> FetchedRelease:
    """Publish a run without redaction, and fetch it."""
    reference = publish_bundles(folder / "registry", build_run_bundle(run))
    with connect(str(folder / "registry")) as registry:
        return fetch_release(registry, parse_reference(reference), folder / "got")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    return run_spec(spec_file(folder, size=4), folder / "results").path


@pytest.fixture(scope="module")
def fetched_run(run: Path, tmp_path_factory: pytest.TempPathFactory) -> FetchedRelease:
    """The fetched run, for tests that do not change it."""
    return publish_and_fetch(run, tmp_path_factory.mktemp("unedited"))


@pytest.fixture
def run_copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "mine" / run.name)


@pytest.mark.full
def test_published_run_follows_from_its_transcripts(run: Path, fetched_run: FetchedRelease, tmp_path: Path) -> None:
    done = nip_run_here("reproduce", fetched_run.folder, cwd=tmp_path)
    assert (done.returncode, "follows from the transcripts" in done.stdout) == (0, True), done.stdout + done.stderr
    manifest = Results(tmp_path / "results").find(f"{run.name}-reproduced").manifest()
    assert manifest.reproduces is not None
    assert manifest.reproduces["release"] == f"run/acme/{run.name}@1"
    assert manifest.replay_of is not None
    assert manifest.replay_of.run_id == run.name


@pytest.mark.full
def test_reproduce_fetches_a_reference_once_into_the_results_folder(run: Path, tmp_path: Path) -> None:
    reference = publish_bundles(tmp_path / "registry", build_run_bundle(run))
    for _ in range(2):
        done = nip_run_here("reproduce", reference, "--from", "registry", "--json", cwd=tmp_path)
        assert (done.returncode, json.loads(done.stdout)["follows"]) == (0, True), done.stderr
    assert (tmp_path / "results" / "published" / "acme" / run.name / "1" / "data" / "journal.jsonl").is_file()


def test_reproduce_of_a_local_run_suggests_verify(run: Path, tmp_path: Path) -> None:
    results = run.parent.parent
    done = nip_run_here("reproduce", run.name, "--results", results, cwd=tmp_path)
    assert (done.returncode, f"nip-run verify {run.name} --results {results}" in done.stderr) == (2, True), done.stderr


@pytest.mark.full
def test_error_about_a_damaged_fetched_folder_says_to_remove_it(run: Path, tmp_path: Path) -> None:
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
        fetched = fetch_release(registry, parse_reference(reference), tmp_path / "mine")
    (fetched.folder / "data" / "metrics.json").write_bytes(b"{}")
    with pytest.raises(ReleaseError, match=re.escape(f"nip-run get {reference} NEW --from file:{tmp_path}/registry")):
        fresh_plan(fetched, [])


def forge_record(run_copy: Path, name: str) -> str:
    """Change a record of a run, and return the expected message."""
    if name == "metrics":
        document = json.loads((run_copy / "metrics.json").read_text())
        row = next(row for row in document["metrics"] if row["metric"] == "accuracy")
        row["ci_low"] += 1e-8
        (run_copy / "metrics.json").write_text(json.dumps(document))
        return f"metric accuracy, ci_low: recorded {row['ci_low']!r}, recomputed "
    document = json.loads((run_copy / "manifest.json").read_text())
    document["prompt_tokens"] += 1
    (run_copy / "manifest.json").write_text(json.dumps(document))
    return f"prompt_tokens: published {document['prompt_tokens']}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["metrics", "manifest"])
def test_forged_record_is_reported_with_both_values(name: str, run_copy: Path, tmp_path: Path) -> None:
    message = forge_record(run_copy, name)
    publish_and_fetch(run_copy, tmp_path)
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert (done.returncode, "does not follow" in done.stdout, message in done.stdout) == (1, True, True), done.stdout


@pytest.mark.full
def test_missing_rollout_is_reported_by_its_id_in_one_line(run: Path, tmp_path: Path) -> None:
    lines = bytes(build_run_bundle(run).contents["data/rollouts.jsonl"]).splitlines()
    missing, following = json.loads(lines.pop(1))["rollout_id"], json.loads(lines[1])["rollout_id"]
    changed = build_run_bundle(run, data__rollouts_DOT_jsonl=b"\n".join(lines) + b"\n")
    reference = publish_bundles(tmp_path / "registry", changed)
    done = nip_run_here("reproduce", reference, "--from", "registry", "--json", cwd=tmp_path)
    (line,) = json.loads(done.stdout)["different"]
    assert (done.returncode, f"row 2: rollout {following}, but the journal gives rollout {missing} here" in line) == (
        1, True,
    ), line  # fmt: skip


@pytest.mark.full
def test_truncated_journal_is_reported_with_what_does_not_follow(run: Path, tmp_path: Path) -> None:
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    changed = build_run_bundle(run, data__journal_DOT_jsonl=b"".join(lines[:-1]))
    reference = publish_bundles(tmp_path / "registry", changed)
    with connect(str(tmp_path / "registry")) as registry:
        fetched = fetch_release(registry, parse_reference(reference), tmp_path / "got")
    missing, *different = replay_run(fetched, Results(tmp_path / "results")).errors
    assert "has no answer number" in missing
    assert [line for line in different if ": the journal gives only " in line], different
    assert [line for line in different if line.startswith("manifest.json says completions")], different


@pytest.mark.full
def test_run_of_another_version_is_recomputed_with_a_notice(run_copy: Path, tmp_path: Path) -> None:
    manifest = json.loads((run_copy / "manifest.json").read_text())
    (run_copy / "manifest.json").write_text(json.dumps({**manifest, "version": "0.0.9"}))
    publish_and_fetch(run_copy, tmp_path)
    done = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recomputed with" in done.stdout
    assert "played with 0.0.9: nothing differs" in done.stdout


def test_damaged_file_is_named_and_nothing_is_played(run: Path, tmp_path: Path) -> None:
    fetched = publish_and_fetch(run, tmp_path)
    path = fetched.folder / "data" / "inputs" / "dataset.jsonl"
    path.write_text(path.read_text().replace("x + 1", "x + 9"))
    for options in ([], ["--fresh"]):
        done = nip_run_here("reproduce", "got", *options, cwd=tmp_path)
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
def test_runs_of_every_shape_follow_from_their_transcripts(shape: str, tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=8, fine_tune=None, **SHAPES[shape]), tmp_path / "results")
    replay = replay_run(publish_and_fetch(result.path, tmp_path), Results(tmp_path / "results"))
    assert not replay.errors


@pytest.mark.full
def test_rejudged_run_follows_from_its_transcripts(run: Path, tmp_path: Path) -> None:
    done = nip_run_here("rejudge", run, "votes=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (rejudged,) = (tmp_path / "results" / "runs").iterdir()
    assert not replay_run(publish_and_fetch(rejudged, tmp_path), Results(tmp_path / "results")).errors


@pytest.mark.full
def test_run_with_failed_calls_and_lost_games_follows_from_its_transcripts(tmp_path: Path) -> None:
    with run_chat_server(faults={"drop": 0.3}, seed=3) as server:
        spec = spec_file(
            tmp_path, server.base_url, size=6, fine_tune=None, rollouts={"max_transport_failed": 1.0},
            retry={"transient": {"attempts": 2, "first_wait": 0.001}},
        )  # fmt: skip
        result = run_spec(spec, tmp_path / "results")
    assert result.manifest.failed_calls
    assert not replay_run(publish_and_fetch(result.path, tmp_path), Results(tmp_path / "results")).errors


def publish_training(folder: Path, **changes: Any) -> tuple[Path, str]:
    """Publish a training run with its parts and changes of the parent's files."""
    result = run_training(training_spec(folder, training={"iterations": 1}), folder / "results")
    parts = Results(folder / "results").parts_of(result.run_id)
    bundles = [build_run_bundle(part.path) for part in parts]
    links = tuple(
        ReleaseLink(role="part", release=str(bundle.release.reference), sha256=bundle.sha256) for bundle in bundles
    )
    return folder / "registry", publish_bundles(
        folder / "registry", *bundles, build_run_bundle(result.path, links=links, **changes)
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return publish_training(tmp_path_factory.mktemp("training"))


@pytest.mark.full
def test_training_run_follows_with_its_parts_and_model_chain(training: tuple[Path, str], tmp_path: Path) -> None:
    registry, reference = training
    done = nip_run_here("reproduce", reference, "--from", registry, cwd=tmp_path)
    assert (done.returncode, "the chain of its models follow" in done.stdout) == (0, True), done.stdout + done.stderr
    assert done.stdout.count("follows from the transcripts") == len(list((registry / "run" / "acme").iterdir())) - 1
    get_process = nip_run_here("get", reference, "my copy", "--from", registry, cwd=tmp_path)
    assert f"nip-run reproduce '{tmp_path / 'my copy'}' --from file:{registry}" in get_process.stdout, get_process
    assert "--fresh" not in get_process.stdout, "it would be refused"
    fetched = open_fetched(tmp_path / "my copy")
    with pytest.raises(UsageError, match=r"run/acme/.* to repeat the training: nip-run '"):
        fresh_plan(fetched, [])
    refused = nip_run_here("reproduce", "my copy", cwd=tmp_path)
    command = f"nip-run reproduce 'my copy' --from file:{registry}"
    assert (refused.returncode, command in refused.stderr) == (2, True), refused.stderr


@pytest.mark.full
def test_interrupt_stops_the_replay_of_all_parts(training: tuple[Path, str], tmp_path: Path) -> None:
    class InterruptedFolder(FolderTransport):
        def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
            raise Interrupted(f"interrupted at {prefix}")

    with connect(str(training[0])) as registry:
        fetched = fetch_release(registry, parse_reference(training[1]), tmp_path / "got")
    with pytest.raises(Interrupted):
        replay_training(fetched, Registry(InterruptedFolder(str(training[0]))), Results(tmp_path / "results"))


@pytest.mark.full
def test_missing_part_or_part_played_by_another_model_is_reported(training: tuple[Path, str], tmp_path: Path) -> None:
    registry, reference = tmp_path / "registry", training[1]
    shutil.copytree(training[0], registry)
    last_part = max((registry / "run" / "acme").glob("*-i*"))
    shutil.rmtree(last_part)
    with connect(str(registry)) as opened:
        fetched = fetch_release(opened, parse_reference(reference), tmp_path / "got")
        replay = replay_training(fetched, opened, Results(tmp_path / "results"))
    assert any(last_part.name in line and "is not published" in line for line in replay.errors), replay.errors
    runs = (part.fetched.run for part in replay.parts)
    manifests = {run.run_id: run.manifest() for run in runs if run is not None}
    changed = {
        run_id: replace(manifest, agents=tuple({**row, "model": "another"} for row in manifest.agents))
        for run_id, manifest in manifests.items()
    }
    assert fetched.run is not None
    stages = read_stages(fetched.run.path)
    assert not [line for line in find_model_differences(fetched.run, stages, manifests) if "used the model" in line]
    assert [line for line in find_model_differences(fetched.run, stages, changed) if "used the model another" in line]


LABELS = [number % 2 for number in range(160)]


def publish_judged_run(folder: Path, sensitivity: float, seed: int) -> tuple[Path, float]:
    """Publish and fetch a run of a judge of known sensitivity; return the fetched folder and the accuracy."""
    with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed) as server:
        spec = judged_spec(folder, server.base_url, "solo_verifier", "seer", labels=LABELS, fine_tune=None)
        result = run_spec(spec, folder / "theirs")
    publish_and_fetch(result.path, folder)
    return folder / "got", metric(result, "accuracy")["value"]


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    return publish_judged_run(tmp_path_factory.mktemp("seer"), 3.0, 1)


def reproduce_fresh(fetched: Path, folder: Path, sensitivity: float, seed: int, *options: str) -> Any:
    """Play the fetched run again at a server whose judge has this sensitivity."""
    with run_judge_server(judges={"seer": {"sensitivity": sensitivity}}, seed=seed) as server:
        return nip_run_here(
            "reproduce", fetched, "--fresh", "--set", f"models.seer.base_url={server.base_url}", *options, cwd=folder
        )


@pytest.mark.full
def test_drifted_model_is_reported_with_an_interval_of_the_difference(seer: tuple[Path, float], tmp_path: Path) -> None:
    """A d' of 3 gives an accuracy of about 0.93, a d' of 0.6 one of 0.62."""
    done = reproduce_fresh(seer[0], tmp_path, 0.6, 2, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["outcome"]) == (1, "drifted"), done.stderr
    assert report["compared"]["ci_low"] <= 0.618 - 0.933 <= report["compared"]["ci_high"]
    assert report["verdict"].startswith("drifted by -")
    assert "flipped datapoints" in report["verdict"]
    manifest = Results(tmp_path / "results").find(report["run_id"]).manifest()
    assert manifest.reproduces is not None
    assert manifest.got_from == manifest.reproduces
    text_process = reproduce_fresh(seer[0], tmp_path / "results", 0.6, 2)
    assert "nip-run show" in text_process.stdout


@pytest.mark.full
def test_unchanged_model_is_reproduced_if_the_interval_is_within_the_margin(
    seer: tuple[Path, float], tmp_path: Path
) -> None:
    done = reproduce_fresh(seer[0], tmp_path, 3.0, 5, "--margin", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy reproduced within 20 points: " in done.stdout
    fetched = open_fetched(seer[0])
    results = Results(tmp_path / "results")
    (folder,) = results.runs()
    comparison = compare_with_published(fetched, FinishedRun(folder, folder.manifest(), {}), results, "accuracy", 0.01)
    assert comparison.outcome == "undecided"
    assert "undecided: the difference is between " in comparison.verdict
    assert comparison.verdict.endswith("the result is reproduced if the difference is within 1 point")


@pytest.mark.full
def test_fetched_run_has_the_published_identity_unless_it_is_edited(run_copy: Path, tmp_path: Path) -> None:
    """The fetched spec names copied files and a selected dataset."""
    folder = publish_and_fetch(run_copy, tmp_path).folder
    manifest = RunFolder(run_copy).manifest()
    for spec in (folder / "spec.yaml", folder / "data" / "spec.yaml"):
        assert with_published_identity(plan_of(load_spec(spec))).identity == manifest.identity
    for overrides in (["votes=3"], ["dataset.limit=2"], ["seed=9"]):
        assert (
            with_published_identity(plan_of(load_spec(folder / "spec.yaml", overrides))).identity != manifest.identity
        )
    (folder / "data" / "manifest.json").unlink()
    assert with_published_identity(plan_of(load_spec(folder / "spec.yaml"))).identity != manifest.identity


@pytest.mark.full
def test_run_with_too_few_datapoints_is_undecided(fetched_run: FetchedRelease, tmp_path: Path) -> None:
    """The run has four datapoints and gets equal answers."""
    done = nip_run_here("reproduce", fetched_run.folder, "--fresh", cwd=tmp_path)
    assert (done.returncode, "undecided" in done.stdout, "reproduced" in done.stdout) == (5, True, False), done


@pytest.mark.full
def test_model_that_no_longer_exists_is_reported(seer: tuple[Path, float], tmp_path: Path) -> None:
    with run_judge_server(judges={"other": {}}) as server:
        done = nip_run_here(
            "reproduce", seer[0], "--fresh", "--set", f"models.seer.base_url={server.base_url}", cwd=tmp_path
        )
    assert (done.returncode, "cannot be played again: a model no longer exists" in done.stderr) == (4, True), (
        done.stderr
    )


def test_unauthorized_call_is_not_reported_as_a_missing_model_and_the_same_run_resumes(
    seer: tuple[Path, float], tmp_path: Path
) -> None:
    with run_chat_server(kind="unauthorized") as server:
        done = nip_run_here(
            "reproduce", seer[0], "--fresh", "--set", f"models.seer.base_url={server.base_url}", cwd=tmp_path
        )
    assert done.returncode == 4, done.stderr
    assert "the run cannot be played again. " in done.stderr
    assert "no longer exists" not in done.stderr
    reproduce_fresh(seer[0], tmp_path, 3.0, 5)
    (resumed,) = Results(tmp_path / "results").runs()
    assert resumed.manifest().status == Status.DONE


def test_unpublished_server_address_is_required(seer: tuple[Path, float], tmp_path: Path) -> None:
    done = nip_run_here("reproduce", seer[0], "--fresh", cwd=tmp_path)
    assert (done.returncode, "addresses are never published" in done.stderr) == (2, True), done.stderr
    assert "Set the address of your own server: --set models.seer.base_url=http://HOST:PORT/v1" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "override",
    ["seed=8", "models.m.model=other", "votes=3", "protocol.max_message_rounds=3", "prompts=mine", "sweep={seed: [1]}",
     "models={m: {provider: dummy}}", "agents.verifier.max_response_words=3", "dataset.path=mine.jsonl"],
)  # fmt: skip
def test_set_refuses_overrides_that_change_the_games(override: str, fetched_run: FetchedRelease) -> None:
    with pytest.raises(UsageError, match=rf"--set {override.partition('=')[0]} would change the games"):
        fresh_plan(fetched_run, [override])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "override", ["models.m.base_url=http://127.0.0.1:1/v1", "budget.usd=1", "rollouts.concurrency=2"]
)
def test_set_accepts_overrides_that_change_no_game(override: str, fetched_run: FetchedRelease, tmp_path: Path) -> None:
    assert fresh_plan(fetched_run, [override]).games.game_hash == fresh_plan(fetched_run, []).games.game_hash
    done = nip_run_here("reproduce", fetched_run.folder, "--set", override, cwd=tmp_path)
    assert (done.returncode, "--set works only with --fresh" in done.stderr) == (2, True)
