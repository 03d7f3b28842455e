"""Fetched releases: complete or absent, marked with their source, and ready to be read and played."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from runner import compare, open_run, rejudge, run
from runner.base.errors import DamagedRunError, NotFoundError, ReleaseError, UsageError
from runner.base.hashing import file_hash
from runner.documents.releases.manifest import digest
from runner.documents.releases.reference import Kind, parse_reference
from runner.registry.bundles.requirements import find_requirements
from runner.registry.fetched_release import fetch_release, open_fetched, replace_folder
from runner.registry.transports.locations import connect
from runner.results.folder import RunFolder
from runner.results.tasks import Task
from runner.spec.loader import load_spec
from runner.spec.origin import MARKER
from tests.support.processes import command, environment, nip_run_here, wait_until
from tests.support.run_bundles import build_run_bundle, publish_bundles
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """A registry with one run in it, its reference, and the folder of the run itself."""
    folder = tmp_path_factory.mktemp("published")
    result = run_spec(spec_file(folder), folder / "results")
    return folder / "registry", publish_bundles(folder / "registry", build_run_bundle(result.path)), result.path


def fetch(published: tuple[Path, str, Path], folder: Path) -> Path:
    with connect(str(published[0])) as registry:
        fetch_release(registry, parse_reference(published[1]), folder)
    return folder


@pytest.mark.full
def test_fetched_folder_records_its_source_and_has_the_published_bytes(
    published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    folder = fetch(published, tmp_path / "a" / "got")
    marker = json.loads((folder / MARKER).read_bytes())
    assert (marker["release"], marker["where"]) == (published[1], f"file:{published[0]}")
    assert marker["sha256"] == digest((folder / "release.json").read_bytes()) == open_fetched(folder).sha256
    assert (folder / "data" / "journal.jsonl").read_bytes() == (published[2] / "journal.jsonl").read_bytes()
    assert [path.name for path in folder.parent.iterdir()] == ["got"], "nothing is left beside it"


@pytest.mark.full
def test_tables_of_a_fetched_run_equal_those_of_the_run(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    folder = fetch(published, tmp_path / "got")
    for name in ("rollouts", "messages", "completions"):
        assert table(folder / "data", name) == table(published[2], name)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("metrics.json", ("show", "got")),
        ("metrics.json", ("report", "got", "-o", "report.html")),
        ("metrics.json", ("export", "got", "--format", "inspect", "--out", "out")),
        ("metrics.json", ("compare", "got", "RUN")),
        ("rollouts.parquet", ("show", "got", "--wrong")),
        ("rollouts.parquet", ("compare", "got", "RUN")),
    ],
)
def test_edited_file_of_a_fetched_run_is_an_error_that_suggests_verify(
    name: str, command: tuple[str, ...], published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    path = fetch(published, tmp_path / "got") / "data" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # the same size; in JSON it may be invalid afterward
    path.write_bytes(data)
    done = nip_run_here(*(str(published[2]) if argument == "RUN" else argument for argument in command), cwd=tmp_path)
    assert f"got/data/{name} is damaged" in done.stderr
    assert "nip-run verify got shows the differences; get the release again" in done.stderr
    verified = nip_run_here("verify", "got", cwd=tmp_path)
    assert (verified.returncode, name in verified.stdout) == (1, True), verified.stdout


def test_metrics_of_a_run_without_sealed_tables_are_compared_with_its_release(
    published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    folder = RunFolder.from_release(fetch(published, tmp_path / "got") / "data")
    folder.sums.unlink()  # as in a folder that an earlier version fetched
    assert open_run(tmp_path / "got").rollouts().fetchall()
    metrics = json.loads(folder.metrics.read_bytes())
    metrics["metrics"][0]["value"] = 0.95
    folder.metrics.write_text(json.dumps(metrics), "utf-8")
    with pytest.raises(DamagedRunError, match=r"nip-run verify .*got shows the differences"):
        open_run(tmp_path / "got")


def test_only_files_that_are_read_are_hashed_and_only_once(
    published: tuple[Path, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(published, tmp_path / "got")
    hashed: list[str] = []

    def counted_hash(path: Path) -> str:
        hashed.append(path.name)
        return file_hash(path)

    monkeypatch.setattr("runner.results.folder.file_hash", counted_hash)
    for _ in range(2):
        open_run(folder).rollouts()
    assert hashed == ["metrics.json", "rollouts.parquet"]


@pytest.mark.full
def test_fetched_run_is_opened_by_its_folder_or_its_data_folder(
    published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    folder = fetch(published, tmp_path / "got")
    for path in (folder, folder / "data"):
        opened = open_run(path, tmp_path / "results")
        assert opened.run_id == published[2].name
        assert opened.accuracy == open_run(published[2]).accuracy
        show_process = nip_run_here("show", path, cwd=tmp_path)
        assert (show_process.returncode, published[2].name in show_process.stdout) == (0, True), show_process.stderr
        assert f"in full: nip-run show {folder / 'data'} " in show_process.stdout, "there is no such run in the results"
    (rejudged,) = rejudge(folder, {"votes": 3}, results=tmp_path / "results")
    assert rejudged.manifest.rejudge_of is not None
    assert rejudged.manifest.rejudge_of.run_id == published[2].name
    exported = nip_run_here("export", folder, "--format", "openai", "--out", tmp_path / "out", cwd=tmp_path)
    assert (exported.returncode, any((tmp_path / "out").iterdir())) == (0, True), exported.stderr


@pytest.mark.full
def test_run_of_a_fetched_spec_records_its_source_and_has_the_same_task(
    published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    folder = fetch(published, tmp_path / "got")
    new_run = run(load_spec(folder / "spec.yaml", {"seed": 8}), tmp_path / "results")
    release = {"release": published[1], "sha256": open_fetched(folder).sha256}
    assert new_run.manifest.got_from == release
    (pair,) = compare(folder, new_run, results=tmp_path / "results").pairs
    assert (pair.paired, pair.datapoints, pair.base) == (True, 12, published[2].name)
    assert Task.of_run(RunFolder(published[2]), None) == Task.of_run(new_run.folder, None)
    assert (new_run.path / MARKER).read_bytes() == (folder / MARKER).read_bytes(), "no more trusted than what it is of"


def test_edited_parameters_override_the_fetched_spec(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    folder = fetch(published, tmp_path / "got")
    path = folder / "parameters.yaml"
    path.write_text(path.read_text().replace("max_response_words: 150", "max_response_words: 31"))
    agents = load_spec(folder / "spec.yaml").experiment.agents
    assert {agent.max_response_words for agent in agents.values()} == {31}


@pytest.mark.parametrize("existing", ["a file", "a folder with a file", "a link"])
def test_get_refuses_an_existing_target_and_leaves_it_unchanged(
    existing: str, published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "got"
    if existing == "a file":
        target.write_text("mine")
    elif existing == "a link":
        (tmp_path / "empty").mkdir()
        target.symlink_to(tmp_path / "empty")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="already exists"):
        fetch(published, target)
    assert sorted(tmp_path.rglob("*")) == before


def test_get_does_not_replace_the_current_folder(
    published: tuple[Path, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="is the current folder"):
        fetch(published, Path())


def test_second_of_two_gets_fails_and_old_temporary_folders_are_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / f".nip-run-{digit * 16}.got" for digit in "ab")
    for folder in (old, new):
        (folder / "data").mkdir(parents=True)
    for path in (old / "data", old):
        os.utime(path, (0, 0))
    with pytest.raises(UsageError, match="already exists"), replace_folder(tmp_path / "got") as staging:
        staging.mkdir()
        (tmp_path / "got").mkdir()
        (tmp_path / "got" / "theirs").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "got"]


@pytest.mark.full
def test_run_published_without_dataset_rows_is_reproduced_with_the_same_rows(tmp_path: Path) -> None:
    """The run is published by the command."""
    result = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    location = tmp_path / "registry"
    options = (
        "--as",
        "acme",
        "--licence",
        "CC-BY-4.0",
        "--dataset-licence",
        "none",
        "--force",
        "--results",
        tmp_path / "results",
    )
    publish_process = nip_run_here("publish", result.path.name, "--to", location, *options, cwd=tmp_path)
    assert publish_process.returncode == 0, publish_process.stderr
    name = f"acme/{result.path.name.lower()}"
    get_process = nip_run_here("get", name, "got", "--from", location, cwd=tmp_path)
    without_rows = "the rows of its dataset are not in the release"
    assert (get_process.returncode, without_rows in get_process.stderr) == (0, True), get_process.stderr
    assert get_process.stderr.count("rows") == 2, "only one note"
    assert f"nip-run reproduce run/{name}@1 --from file:{location} --set dataset.path=FILE" in publish_process.stdout
    run_process = nip_run_here("got", cwd=tmp_path)
    assert (run_process.returncode, without_rows in run_process.stderr) == (2, True), run_process
    missing = nip_run_here("reproduce", "got", "--set", "dataset.path=gone.csv", cwd=tmp_path)
    assert "dataset.path=gone.csv: there is no such file" in missing.stderr
    suggestion = f"nip-run reproduce {tmp_path / 'got'} --set dataset.path=FILE"
    assert (suggestion in get_process.stderr, f"{suggestion} --fresh" in get_process.stdout) == (True, True), (
        get_process
    )
    assert (
        f"nip-run reproduce {name.partition('/')[2]} --set dataset.path=FILE "
        in (tmp_path / "got" / "README.md").read_text()
    )
    for arguments in (("got",), (name, "--from", location)):
        checked = nip_run_here("verify", *arguments, cwd=tmp_path)
        assert (checked.returncode, "follow from the journal" in checked.stdout) == (0, False), checked
    refused = nip_run_here("reproduce", "got", cwd=tmp_path)
    assert (refused.returncode, "--set dataset.path=FILE" in refused.stderr) == (2, True), refused.stderr
    (tmp_path / "wrong.jsonl").write_text('{"id": "a", "label": 1, "problem": "p", "solution": "s"}\n')
    refused_rows = nip_run_here("reproduce", "got", "--set", "dataset.path=wrong.jsonl", cwd=tmp_path)
    assert (refused_rows.returncode, "does not have the rows that were played" in refused_rows.stderr) == (2, True), (
        refused_rows.stderr
    )
    reproduced = nip_run_here("reproduce", "got", "--set", "dataset.path=data.jsonl", cwd=tmp_path)
    assert (reproduced.returncode, "follows from the transcripts" in reproduced.stdout) == (0, True), (
        reproduced.stdout + reproduced.stderr
    )
    verified = nip_run_here("verify", "got", cwd=tmp_path)
    assert (verified.returncode, "follow from the journal" in verified.stdout) == (0, True), verified.stdout


def test_get_uses_an_empty_folder(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    (tmp_path / "got").mkdir()
    assert open_fetched(fetch(published, tmp_path / "got")).release.kind == Kind.RUN


def test_fetch_of_a_damaged_release_leaves_no_files(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    publish_bundles(registry, build_run_bundle(published[2]))
    (file,) = registry.rglob("metrics.json")
    file.write_bytes(file.read_bytes().replace(b"0", b"1", 1))
    with connect(str(registry)) as opened, pytest.raises(ReleaseError, match=r"data/metrics\.json is damaged"):
        fetch_release(opened, parse_reference(published[1]), tmp_path / "got")
    assert [path.name for path in tmp_path.iterdir()] == ["registry"]


def test_unknown_release_is_reported_with_the_nearest_name(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    misspelled = published[1].partition("@")[0][:-1]
    with connect(str(published[0])) as registry, pytest.raises(NotFoundError, match="did you mean"):
        fetch_release(registry, parse_reference(misspelled), tmp_path / "got")


def test_yanked_release_is_fetched_with_its_reason_as_a_warning(
    published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    registry = tmp_path / "registry"
    reference = publish_bundles(registry, build_run_bundle(published[2]))
    with connect(str(registry)) as opened:
        parsed = parse_reference(reference)
        opened.yank(opened.find(parsed).reference, "the labels are wrong")
    done = nip_run_here("get", reference, tmp_path / "got", "--from", registry, cwd=tmp_path)
    assert (done.returncode, "was yanked: the labels are wrong" in done.stderr) == (0, True), done.stderr


@pytest.mark.full
def test_get_prints_the_result_and_what_is_needed_to_play_it(published: tuple[Path, str, Path], tmp_path: Path) -> None:
    done = nip_run_here("get", published[1].removeprefix("run/"), "mine", "--from", published[0], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy = open_run(published[2]).accuracy
    assert accuracy is not None
    for text in (
        f"{accuracy.value:.3f}", "self-reported", "pip install -r", f"nip-run {tmp_path / 'mine'}",
        f"nip-run reproduce {tmp_path / 'mine'}", "sends no key", "12 to 72 calls",
    ):  # fmt: skip
        assert text in done.stdout
    as_json = nip_run_here("get", published[1], "other", "--from", published[0], "--json", cwd=tmp_path)
    details = json.loads(as_json.stdout)
    assert (details["release"], details["play"]["calls"], details["facts"]["rollouts"]) == (published[1], [12, 72], 12)


@pytest.mark.full
def test_fetched_run_lists_the_keys_and_addresses_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROW_VARIABLE", "sk-0123456789")
    with run_chat_server() as server:
        models = {"m": {"api_key_env": "ROW_VARIABLE"}}
        spec = spec_file(tmp_path, server.base_url, size=2, models=models)
        result = run_spec(spec, tmp_path / "results")
        reference = publish_bundles(tmp_path / "registry", build_run_bundle(result.path))
        with connect(str(tmp_path / "registry")) as registry:
            fetch_release(registry, parse_reference(reference), tmp_path / "got")
        requirements = find_requirements(tmp_path / "got")
        assert requirements.addresses == ("models.m.base_url",)
        assert [use.variable for use in requirements.keys] == ["ROW_VARIABLE"]
        assert requirements.add_fresh_options("nip-run reproduce got") == (
            "nip-run reproduce got --fresh --set models.m.base_url=http://HOST:PORT/v1 --allow-key VAR=HOST"
        )
        requests_before = server.requests
        refused = nip_run_here(tmp_path / "got", cwd=tmp_path, ROW_VARIABLE="sk-0123456789")
        assert refused.returncode == 2
        assert refused.stderr.count("models.m.base_url") == 2
        assert "addresses are never published" in refused.stderr
        assert "ROW_VARIABLE" not in requirements.command, "to allow it is to type what a stranger asks for"
        host = f"127.0.0.1:{server.port}"
        arguments = (
            requirements.command.replace("VAR=HOST", f"ROW_VARIABLE={host}").replace("HOST:PORT", host).split()[1:]
        )
        reader = tmp_path / "reader"  # because the publisher's results have this run
        reader.mkdir()
        done = nip_run_here(*arguments, cwd=reader, ROW_VARIABLE="sk-0123456789")
        assert (done.returncode, server.requests > requests_before) == (0, True), done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("wait", [0.0, 0.3, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7])
def test_killed_get_leaves_nothing_or_the_complete_release(
    wait: float, published: tuple[Path, str, Path], tmp_path: Path
) -> None:
    """The command is killed after it has begun to write."""
    process = subprocess.Popen(
        command("get", published[1], "got", "--from", published[0], "-q"), cwd=tmp_path, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: any(tmp_path.iterdir()) or process.poll() is not None)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (tmp_path / "got").exists():
        assert open_fetched(tmp_path / "got").run is not None
    repeated = nip_run_here("get", published[1], "other", "--from", published[0], cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
