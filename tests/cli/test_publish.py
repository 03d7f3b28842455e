"""`nip-run publish` and `nip-run status` on finished runs."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.base.storage.locks import locked
from runner.registry.licenses import canonical_license
from runner.registry.transports.locations import connect
from runner.registry.verification.verify import find_release_problems
from tests.support.git_repositories import commit_and_push, commit_folder, git
from tests.support.paths import ROOT
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

KEY = "abcd-efgh-ijkl-mnop/42"
HOMES = "/home" + "/"
FORD_HOME = f"{HOMES}ford"
PUBLISH_OPTIONS = ("--as", "acme", "--licence", "MIT", "--force")


@dataclass(frozen=True)
class Player:
    """A user with a home folder, a run played on a local server, and a registry."""

    folder: Path
    home: Path
    port: str

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": str(self.home), "USER": "zaphod", "MY_SERVER_KEY": KEY, "TZ": "Asia/Tokyo"}

    @property
    def run(self) -> Path:
        return only_run(self.folder / "results")

    @property
    def registry_folder(self) -> Path:
        return self.folder / "registry"


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    folder = tmp_path_factory.mktemp("player")
    home = folder / "home" / "zaphod"
    home.mkdir(parents=True)
    faults = {"rate_limit": 0.15, "server_error": 0.2, "drop": 0.1}
    with run_chat_server(faults=faults) as server:
        models = {"m": {"model": f"{home}/models/tiny-8b", "api_key_env": "MY_SERVER_KEY"}}
        spec_file(home, server.base_url, size=4, models=models)
        (home / "spec.yaml").write_text(f"# by zaphod@{socket.gethostname()}\n{(home / 'spec.yaml').read_text()}")
        publisher = Player(folder, home, str(server.port))
        process = nip_run_here(home / "spec.yaml", cwd=folder, **publisher.variables)
        assert process.returncode == 0, process.stderr
    (home / "spec.yaml").unlink()
    return publisher


def publish(player: Player, *arguments: str | Path) -> tuple[int, str, str]:
    process = nip_run_here(
        "publish", "last", "--to", player.registry_folder, *arguments, cwd=player.folder, **player.variables
    )
    return process.returncode, process.stdout, process.stderr


@pytest.fixture(scope="module")
def published(player: Player) -> tuple[int, str, str]:
    """Publish the run; return the exit code, stdout and stderr."""
    return publish(player, *PUBLISH_OPTIONS)


def read_all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_publish_prints_the_release_and_the_commands_to_use_it(player: Player, published: tuple[int, str, str]) -> None:
    code, stdout, stderr = published
    assert code == 0, stderr
    first, *commands = stdout.splitlines()
    reference = f"run/acme/{player.run.name}@1"
    assert first.startswith(f"{reference}  sha256:")
    assert first.endswith("published")
    assert commands == [
        f"nip-run {verb} {reference} --from file:{player.registry_folder}" for verb in ("get", "reproduce")
    ]
    for message in ("redacted: address (", "model path (", "not pinned: spec"):
        assert message in stderr


@pytest.mark.full
def test_registry_contains_no_private_text_and_the_release_verifies(
    player: Player, published: tuple[int, str, str]
) -> None:
    assert published[0] == 0
    files = read_all_files(player.registry_folder)
    encoded = base64.b64encode(KEY.encode()).decode()
    private_texts = [
        "zaphod", str(player.home), str(player.folder), f":{player.port}", "127.0.0.1", KEY, encoded, HOMES,
        socket.gethostname(),
    ]  # fmt: skip
    assert all(private_texts)
    run_bytes = b"".join(read_all_files(player.run).values())
    assert all(text.encode() in run_bytes for text in ("zaphod", str(player.home), f":{player.port}", "127.0.0.1"))
    leaks = [(name, text) for name, data in files.items() for text in private_texts if text.encode() in data]
    assert leaks == []
    assert next(player.registry_folder.rglob("written/spec.yaml")).read_text().lstrip()[0] != "#"
    with connect(str(player.registry_folder)) as registry:
        (entry,) = registry.entries()
        assert list(find_release_problems(registry, entry)) == []
        with registry.open(entry, "data/metrics.json") as file:
            metrics = file.read()
    assert json.loads(metrics) == json.loads((player.run / "metrics.json").read_bytes())


def test_local_run_and_its_release_are_one_session(player: Player, published: tuple[int, str, str]) -> None:
    """Publishing changes the identity, because the name of the model was a path."""
    assert published[0] == 0
    output = nip_run_here(
        "history", "verifier", "--from", player.registry_folder, "--json", cwd=player.folder, **player.variables
    ).stdout
    (row,) = json.loads(output)["sessions"]
    assert (row["run_id"], row["published"]) == (player.run.name, [f"run/acme/{player.run.name}@1"])
    release = json.loads((player.registry_folder / row["published"][0].replace("@", "/") / "release.json").read_bytes())
    assert release["identity"]["run"] != json.loads((player.run / "manifest.json").read_bytes())["identity"]


@pytest.mark.full
def test_publishing_the_same_run_again_changes_nothing(player: Player, published: tuple[int, str, str]) -> None:
    assert published[0] == 0
    before = read_all_files(player.registry_folder)
    code, stdout, _ = publish(player, *PUBLISH_OPTIONS, "--json")
    report = json.loads(stdout)
    assert (code, report["ok"], report["releases"][0]["was_there"]) == (0, True, True)
    _, stdout, stderr = publish(player, *PUBLISH_OPTIONS)
    assert (stdout.count("with the same content"), "same content" in stderr) == (1, False), stdout + stderr
    assert read_all_files(player.registry_folder) == before
    code, _, stderr = publish(player, *(option.replace("MIT", "ISC") for option in PUBLISH_OPTIONS))
    assert (code, "in its licence (published MIT, here ISC)" in stderr) == (1, True), stderr
    assert read_all_files(player.registry_folder) == before


@pytest.mark.full
def test_publish_on_another_machine_builds_the_same_manifest(
    player: Player, published: tuple[int, str, str], tmp_path: Path
) -> None:
    """Publish with another home, user, folder, time zone and hash seed, in separate processes."""
    hashes = set()
    for number, seed in enumerate(("1", "977")):
        home = tmp_path / f"home{number}" / f"somebody{number}"
        home.mkdir(parents=True)
        results = home.joinpath(*["elsewhere"] * (number + 1), "results")
        shutil.copytree(player.folder / "results", results)
        process = nip_run(
            "publish", player.run.name, "--results", results, "--dry-run", "--json", *PUBLISH_OPTIONS, cwd=home,
            HOME=str(home), USER=f"somebody{number}", TZ=("UTC", "America/Lima")[number], PYTHONHASHSEED=seed,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout
        hashes.add(json.loads(process.stdout)["releases"][0]["sha256"])
    (sha256,) = hashes
    assert sha256.startswith(published[1].split("sha256:")[1][:12])


def test_dry_run_lists_all_files_and_checks_and_sends_nothing(
    player: Player, published: tuple[int, str, str], tmp_path: Path
) -> None:
    assert published[0] == 0
    arguments = ("--as", "acme", "--dry-run", "--json", "--to", tmp_path / "nowhere")
    code, stdout, _ = publish(player, *arguments)
    (release,) = json.loads(stdout)["releases"]
    failed = [check["check"] for check in release["checks"] if not check["passed"]]
    assert (code, failed) == (1, ["terms"])
    assert not (tmp_path / "nowhere").exists()
    (folder,) = [path.parent for path in player.registry_folder.rglob("release.json")]
    sizes = {name: len(data) for name, data in read_all_files(folder).items() if not name.startswith("release.")}
    assert {entry["path"]: entry["size"] for entry in release["files"]}.keys() == sizes.keys()
    assert [row["rule"] for row in release["cleaned"]] == ["address", "comment", "model path"]
    assert release["pinned"] is False


@pytest.fixture(scope="module")
def offline_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished offline run whose data contain a token and a home path."""
    folder = tmp_path_factory.mktemp("plain")
    path = spec_file(folder, size=3)
    rows = (folder / "data.jsonl").read_text().replace("Write f(x)", f"Use hf_{'aB3' * 12} and {FORD_HOME}/x; write f")
    (folder / "data.jsonl").write_text(rows)
    run_spec(path, folder / "results")
    return folder


@pytest.mark.full
def test_all_publish_obstacles_are_listed_by_location_without_private_text(offline_run: Path) -> None:
    process = nip_run_here(
        "publish", "last", "--to", "registry", "--as", "acme", cwd=offline_run, HOME=FORD_HOME, USER="ford"
    )
    assert process.returncode == 1
    assert not (offline_run / "registry").exists()
    for message in (
        "data/inputs/dataset.jsonl:1",
        "a token of Hugging Face",
        "the path of your home",
        "terms:",
    ):
        assert message in process.stderr
    assert "aB3aB3" not in process.stderr + process.stdout
    assert f"{FORD_HOME}/x" not in process.stderr


def test_a_run_that_is_being_played_is_not_published(offline_run: Path) -> None:
    with locked(only_run(offline_run / "results") / ".lock", "it"):
        process = nip_run_here("publish", "last", "--to", "registry", *PUBLISH_OPTIONS, cwd=offline_run)
    assert process.returncode == 1
    assert "is in use by process" in process.stderr
    assert not (offline_run / "registry").exists()


@pytest.mark.full
def test_publish_to_an_unwritable_registry_fails(player: Player, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, _, stderr = publish(player, *PUBLISH_OPTIONS, "--to", tmp_path / "file" / "registry")
    assert code == 1
    assert "cannot" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("last",), "the owner is missing"),
        (("last", "--as", "Acme"), "must consist of 1 to 100"),
        (("results/leaderboard.duckdb", "--as", "acme"), "is a file, and a run is a folder"),
        (("last", "--as", "acme", "--kind", "protocl"), "did you mean 'protocol'"),
        (("last", "--as", "acme", "--part", "judge"), "--part selects a component"),
        (("prompts", "--as", "acme", "--kind", "prompts"), "OWNER/NAME@VERSION"),
        (("acme/x", "--yank", "wrong"), "the version is missing"),
        (("acme/x@1", "--yank", "wrong"), "has no run/acme/x@1"),
        (("protocols/nip.yaml", "--as", "acme/nip@1", "--kind", "protocol"), "comes with nip-run"),
        (("nobody", "--as", "acme"), "no run 'nobody'"),
        (("last", "--as", "acme", "--pull-request", "--sign-key", "key.pem"), "merge the pull request, then repeat"),
    ],
)
def test_invalid_publish_arguments_are_refused(offline_run: Path, arguments: tuple[str, ...], message: str) -> None:
    process = nip_run_here("publish", *arguments, "--to", "registry", cwd=offline_run)
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_yank_is_recorded_and_its_reason_cannot_be_changed(
    player: Player, published: tuple[int, str, str], tmp_path: Path
) -> None:
    assert published[0] == 0
    registry_folder = tmp_path / "registry"
    shutil.copytree(player.registry_folder, registry_folder)
    name = f"acme/{player.run.name}@1"
    process = nip_run_here("publish", name, "--to", registry_folder, "--yank", "the label leaks", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (
        0,
        f"run/{name} is yanked in file:{registry_folder}: the label leaks\n",
    )
    repeated = nip_run_here("publish", name, "--to", registry_folder, "--yank", "the label leaks", cwd=tmp_path)
    changed_reason = nip_run_here("publish", name, "--to", registry_folder, "--yank", "another reason", cwd=tmp_path)
    assert (repeated.returncode, changed_reason.returncode) == (0, 1)
    with connect(str(registry_folder)) as registry:
        assert [entry.yanked for entry in registry.entries()] == ["the label leaks"]


@pytest.mark.parametrize(
    ("license_text", "canonical"),
    [
        ("MIT", "MIT"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("mit OR apache-2.0", "MIT OR Apache-2.0"),
        ("LicenseRef-ours", "LicenseRef-ours"),
        (None, None),
    ],
)
def test_a_license_is_written_as_spdx_spells_it(license_text: str | None, canonical: str | None) -> None:
    assert canonical_license("--license", license_text) == canonical


@pytest.mark.parametrize("option", ["--license", "--licence", "--dataset-license"])
@pytest.mark.parametrize(
    ("license_text", "hint"),
    [("MITT", "did you mean 'MIT'?"), ("Apache 2.0", "did you mean 'Apache-2.0'?"), ("ours", "")],
)
def test_unknown_spdx_license_is_refused_before_publishing(
    player: Player, tmp_path: Path, option: str, license_text: str, hint: str
) -> None:
    registry_folder = tmp_path / "registry"
    arguments = ("publish", player.run, "--to", registry_folder, "--as", "acme", option, license_text)
    process = nip_run_here(*arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert f"{license_text}: not an SPDX license expression" in process.stderr
    assert hint in process.stderr
    assert "LicenseRef-NAME" in process.stderr
    assert not registry_folder.exists()


@pytest.mark.full
def test_child_of_option_links_the_parent_release_by_name_and_hash(tmp_path: Path) -> None:
    (tmp_path / "terse").mkdir()
    (tmp_path / "terse" / "verifier.jinja").write_text("Say {{ stance }}.\n", "utf-8")
    arguments = ("publish", "terse", "--kind", "prompts", "--to", "registry", "--licence", "MIT", "--force", "--json")
    for options in (["--as", "acme/terse@1.0"], ["--as", "other/terse@2", "--child-of", "acme/terse"]):
        process = nip_run_here(*arguments, *options, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
    releases = tmp_path / "registry" / "prompts"
    parent, child = (releases / name / "release.json" for name in ("acme/terse/1.0", "other/terse/2"))
    (link,) = json.loads(child.read_bytes())["links"]
    sha256 = hashlib.sha256(parent.read_bytes()).hexdigest()
    assert (link["role"], link["release"], link["sha256"]) == ("child_of", "prompts/acme/terse@1.0", sha256)


@pytest.mark.full
def test_status_reports_whether_runs_can_be_published_and_why_not(offline_run: Path) -> None:
    process = nip_run_here("status", "--json", cwd=offline_run)
    (row,) = json.loads(process.stdout)
    assert (row["publishable"], row["status"], row["why_not"]) == (True, "done", [])
    assert row["notes"][-1] == "not pinned: spec: not in a git repository"
    process = nip_run_here("status", "last", "--json", cwd=offline_run, HOME=FORD_HOME)
    assert process.returncode == 1  # as `freeze` does
    (release,) = json.loads(process.stdout)["releases"]
    failed = [check["check"] for check in release["checks"] if not check["passed"]]
    assert failed == ["nothing private", "terms"]
    process = nip_run_here("status", "spec.yaml", "--json", cwd=offline_run)
    parts = {part["part"]: part for part in json.loads(process.stdout)}
    assert {name: part["pinned"] for name, part in parts.items()} == {
        "dataset": False, "spec": False, "prompts": True, "protocol": True,
    }  # fmt: skip
    shipped = nip_run_here("status", "specs/quickstart.yaml", "--json", cwd=offline_run)
    assert {part["pinned"] for part in json.loads(shipped.stdout)} == {True}, shipped.stderr


def read_release(folder: Path, version: str) -> dict[str, Any]:
    (path,) = (folder / "registry" / "run").rglob(f"{version}/release.json")
    release: dict[str, Any] = json.loads(path.read_bytes())
    return release


@pytest.mark.gate
def test_first_publish_needs_no_git_and_a_later_one_is_pinned_to_a_pushed_commit(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=3)
    run_spec(path, tmp_path / "results")
    name = only_run(tmp_path / "results").name.lower()
    arguments = ("publish", "last", "--to", "registry", "--licence", "MIT", "--as")
    process = nip_run_here(*arguments, "acme", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "not pinned: spec: not in a git repository" in process.stderr
    assert "--pin SPEC" in process.stderr
    assert read_release(tmp_path, "1")["facts"]["pinned"] is False
    process = nip_run_here("get", f"acme/{name}", "got", "--from", "registry", cwd=tmp_path)
    assert "not pinned   its files are not in a public commit" in process.stdout
    pin_arguments = (*arguments, f"acme/{name}@2", "--pin", "spec.yaml")
    process = nip_run_here(*pin_arguments, cwd=tmp_path)
    assert (process.returncode, "cannot be pinned" in process.stderr, "in a git repository" in process.stderr) == (
        1,
        True,
        True,
    )
    rows = (tmp_path / "data.jsonl").read_text()
    (tmp_path / "data.jsonl").write_text(rows + "\n")
    commit_and_push(tmp_path, "spec.yaml", "data.jsonl")
    process = nip_run_here(*pin_arguments, cwd=tmp_path)
    assert (process.returncode, "dataset: the file is not the one that was played" in process.stderr) == (1, True)
    (tmp_path / "data.jsonl").write_text(rows)
    commit = commit_folder(tmp_path, "data.jsonl")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", commit)
    process = nip_run_here(*pin_arguments, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    release = read_release(tmp_path, "2")
    assert (release["facts"]["pinned"], release["sources"]["spec"]["commit"]) == (True, commit)
    process = nip_run_here(
        "leaderboard", "--from", "registry", "--json", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    (row,) = json.loads(process.stdout)["rows"]
    assert (row["release"], row["marks"]) == (f"run/acme/{name}@2", [])


@pytest.mark.full
def test_unpushed_files_of_a_public_repository_block_publish_without_force(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=3)
    commit_and_push(tmp_path)
    path.write_text(path.read_text() + "\n# changed\n")
    run_spec(path, tmp_path / "results")
    arguments = ("publish", "last", "--to", "registry", "--licence", "MIT", "--as", "acme")
    process = nip_run_here(*arguments, cwd=tmp_path)
    assert process.returncode == 1
    assert "pinned: spec: uncommitted changes; commit and push them (then add --pin SPEC), or" in process.stderr
    assert nip_run_here(*arguments, "--force", cwd=tmp_path).returncode == 0


@pytest.fixture
def v0_1_0_folder(tmp_path: Path) -> Path:
    """Return a folder with a run of 0.1.0, which did not record the sources of its files or its packages."""
    run = ROOT / "tests" / "fixtures" / "v0_1_0" / "results" / "runs" / "served-c534600bdb"
    shutil.copytree(run, tmp_path / "results" / "runs" / run.name)
    return tmp_path


@pytest.mark.full
def test_run_of_0_1_0_is_published_unpinned_with_notes_about_its_numbers(v0_1_0_folder: Path) -> None:
    process = nip_run_here("publish", "served", "--to", "registry", *PUBLISH_OPTIONS, "--json", cwd=v0_1_0_folder)
    (release,) = json.loads(process.stdout)["releases"]
    notes = {check["check"]: check["notes"] for check in release["checks"]}
    assert (process.returncode, release["pinned"]) == (0, False)
    assert notes["pinned"] == ["not pinned: the commit of its files was not recorded"]
    assert "recorded by an earlier version (0.1.0)" in notes["numbers"][0]
    assert (len(notes["numbers"]) < 12, "not computed by that version: " in notes["numbers"][-1]) == (True, True)
    process = nip_run_here("verify", "served", cwd=v0_1_0_folder)
    assert all(note in process.stderr for note in notes["numbers"]), process.stderr  # `verify` uses the same check
    assert (process.returncode, "and all other recorded numbers follow" in process.stdout) == (0, True), process.stdout


@pytest.mark.full
def test_number_that_contradicts_the_records_blocks_publish(v0_1_0_folder: Path) -> None:
    (path,) = v0_1_0_folder.rglob("metrics.json")
    metrics = json.loads(path.read_bytes())
    metrics["metrics"][0]["value"] = 0.99
    path.write_text(json.dumps(metrics))
    process = nip_run_here("publish", "served", "--to", "registry", *PUBLISH_OPTIONS, cwd=v0_1_0_folder)
    assert process.returncode == 1
    assert "numbers: metric accuracy, value: recorded 0.99" in process.stderr
    assert not (v0_1_0_folder / "registry").exists()
