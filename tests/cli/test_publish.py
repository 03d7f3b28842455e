"""`nip-run publish` and `nip-run status`, as their users type them, on runs that were played."""

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
FORD = f"{HOMES}ford"
AS = ("--as", "acme", "--licence", "MIT", "--force")


@dataclass(frozen=True)
class Player:
    """A person with a home, who has played a run on a server of their own, and has published it."""

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
    def where(self) -> Path:
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
        one = Player(folder, home, str(server.port))
        done = nip_run_here(home / "spec.yaml", cwd=folder, **one.variables)
        assert done.returncode == 0, done.stderr
    (home / "spec.yaml").unlink()
    return one


def publish(player: Player, *words: str | Path) -> tuple[int, str, str]:
    done = nip_run_here("publish", "last", "--to", player.where, *words, cwd=player.folder, **player.variables)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def published(player: Player) -> tuple[int, str, str]:
    """What the first publish said."""
    return publish(player, *AS)


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_it_says_what_was_published_and_what_others_type(player: Player, published: tuple[int, str, str]) -> None:
    code, out, err = published
    assert code == 0, err
    first, *commands = out.splitlines()
    reference = f"run/acme/{player.run.name}@1"
    assert first.startswith(f"{reference}  sha256:")
    assert first.endswith("published")
    assert commands == [f"nip-run {verb} {reference} --from file:{player.where}" for verb in ("get", "reproduce")]
    for said in ("redacted: address (", "model path (", "not pinned: spec"):
        assert said in err


@pytest.mark.full
def test_no_byte_of_the_registry_tells_of_the_machine_and_the_journal_replays(
    player: Player, published: tuple[int, str, str]
) -> None:
    assert published[0] == 0
    files = all_files(player.where)
    encoded = base64.b64encode(KEY.encode()).decode()
    told = ["zaphod", str(player.home), str(player.folder), f":{player.port}", "127.0.0.1", KEY, encoded, HOMES,
            socket.gethostname()]  # fmt: skip
    assert all(told)
    raw = b"".join(all_files(player.run).values())
    assert all(one.encode() in raw for one in ("zaphod", str(player.home), f":{player.port}", "127.0.0.1"))
    found = [(name, one) for name, data in files.items() for one in told if one.encode() in data]
    assert found == []
    assert next(player.where.rglob("written/spec.yaml")).read_text().lstrip()[0] != "#"
    with connect(str(player.where)) as registry:
        (entry,) = registry.entries()
        assert list(find_release_problems(registry, entry)) == []
        release, _ = registry.read_manifest(entry)
        metrics = registry.read_file(entry, release, "data/metrics.json", 1 << 20)
    assert json.loads(metrics) == json.loads((player.run / "metrics.json").read_bytes())


def test_the_run_here_and_its_release_are_one_session(player: Player, published: tuple[int, str, str]) -> None:
    """Its identity is another where it is published, since its model's name was a path."""
    assert published[0] == 0
    said = nip_run_here(
        "history", "verifier", "--from", player.where, "--json", cwd=player.folder, **player.variables
    ).stdout
    (row,) = json.loads(said)["sessions"]
    assert (row["run_id"], row["published"]) == (player.run.name, [f"run/acme/{player.run.name}@1"])
    release = json.loads((player.where / row["published"][0].replace("@", "/") / "release.json").read_bytes())
    assert release["identity"]["run"] != json.loads((player.run / "manifest.json").read_bytes())["identity"]


@pytest.mark.full
def test_the_same_again_is_nothing(player: Player, published: tuple[int, str, str]) -> None:
    assert published[0] == 0
    before = all_files(player.where)
    code, out, _ = publish(player, *AS, "--json")
    said = json.loads(out)
    assert (code, said["ok"], said["releases"][0]["was_there"]) == (0, True, True)
    _, out, err = publish(player, *AS)
    assert (out.count("with the same content"), "same content" in err) == (1, False), out + err
    assert all_files(player.where) == before
    code, _, err = publish(player, *(word.replace("MIT", "ISC") for word in AS))
    assert (code, "in its licence (published MIT, here ISC)" in err) == (1, True), err
    assert all_files(player.where) == before


@pytest.mark.full
def test_another_machine_gives_the_same_manifest(
    player: Player, published: tuple[int, str, str], tmp_path: Path
) -> None:
    """Another home, user, folder, time zone and hash seed, in processes of their own."""
    ids = set()
    for number, seed in enumerate(("1", "977")):
        home = tmp_path / f"home{number}" / f"somebody{number}"
        home.mkdir(parents=True)
        results = home.joinpath(*["elsewhere"] * (number + 1), "results")
        shutil.copytree(player.folder / "results", results)
        done = nip_run(
            "publish", player.run.name, "--results", results, "--dry-run", "--json", *AS, cwd=home,
            HOME=str(home), USER=f"somebody{number}", TZ=("UTC", "America/Lima")[number], PYTHONHASHSEED=seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        ids.add(json.loads(done.stdout)["releases"][0]["sha256"])
    (whole,) = ids
    assert whole.startswith(published[1].split("sha256:")[1][:12])


def test_a_dry_run_shows_all_that_would_leave_and_sends_nothing(
    player: Player, published: tuple[int, str, str], tmp_path: Path
) -> None:
    assert published[0] == 0
    words = ("--as", "acme", "--dry-run", "--json", "--to", tmp_path / "nowhere")
    code, out, _ = publish(player, *words)
    (shown,) = json.loads(out)["releases"]
    failed = [check["check"] for check in shown["checks"] if not check["passed"]]
    assert (code, failed) == (1, ["terms"])
    assert not (tmp_path / "nowhere").exists()
    (folder,) = [path.parent for path in player.where.rglob("release.json")]
    sizes = {name: len(data) for name, data in all_files(folder).items() if not name.startswith("release.")}
    assert {entry["path"]: entry["size"] for entry in shown["files"]}.keys() == sizes.keys()
    assert [row["rule"] for row in shown["cleaned"]] == ["address", "comment", "model path"]
    assert shown["pinned"] is False


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of no server, in whose data a token and a home stand."""
    folder = tmp_path_factory.mktemp("plain")
    path = spec_file(folder, size=3)
    rows = (folder / "data.jsonl").read_text().replace("Write f(x)", f"Use hf_{'aB3' * 12} and {FORD}/x; write f")
    (folder / "data.jsonl").write_text(rows)
    run_spec(path, folder / "results")
    return folder


@pytest.mark.full
def test_everything_that_hinders_it_is_told_at_once_by_place_alone(plain: Path) -> None:
    done = nip_run_here("publish", "last", "--to", "registry", "--as", "acme", cwd=plain, HOME=FORD, USER="ford")
    assert done.returncode == 1
    assert not (plain / "registry").exists()
    for place in (
        "data/inputs/dataset.jsonl:1",
        "a token of Hugging Face",
        "the path of your home",
        "terms:",
    ):
        assert place in done.stderr
    assert "aB3aB3" not in done.stderr + done.stdout
    assert f"{FORD}/x" not in done.stderr


def test_a_run_that_is_being_played_is_not_published(plain: Path) -> None:
    with locked(only_run(plain / "results") / ".lock", "it"):
        done = nip_run_here("publish", "last", "--to", "registry", *AS, cwd=plain)
    assert done.returncode == 1
    assert "is in use by process" in done.stderr
    assert not (plain / "registry").exists()


@pytest.mark.full
def test_where_nothing_can_be_written_nothing_is_published(player: Player, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    code, _, err = publish(player, *AS, "--to", tmp_path / "file" / "registry")
    assert code == 1
    assert "cannot" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("last",), "the owner is missing"),
        (("last", "--as", "Acme"), "must be 1 to 100"),
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
def test_what_cannot_be_meant_is_refused(plain: Path, words: tuple[str, ...], said: str) -> None:
    done = nip_run_here("publish", *words, "--to", "registry", cwd=plain)
    assert done.returncode in (1, 2)
    assert said in done.stderr


def test_a_yanked_run_is_said_to_be(player: Player, published: tuple[int, str, str], tmp_path: Path) -> None:
    assert published[0] == 0
    where = tmp_path / "registry"
    shutil.copytree(player.where, where)
    name = f"acme/{player.run.name}@1"
    done = nip_run_here("publish", name, "--to", where, "--yank", "the label leaks", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"run/{name} is yanked in file:{where}: the label leaks\n")
    again = nip_run_here("publish", name, "--to", where, "--yank", "the label leaks", cwd=tmp_path)
    other = nip_run_here("publish", name, "--to", where, "--yank", "another reason", cwd=tmp_path)
    assert (again.returncode, other.returncode) == (0, 1)
    with connect(str(where)) as registry:
        assert [entry.yanked for entry in registry.entries()] == ["the label leaks"]


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("MIT", "MIT"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("mit OR apache-2.0", "MIT OR Apache-2.0"),
        ("LicenseRef-ours", "LicenseRef-ours"),
        (None, None),
    ],
)
def test_a_license_is_written_as_spdx_spells_it(given: str | None, canonical: str | None) -> None:
    assert canonical_license("--license", given) == canonical


@pytest.mark.parametrize("option", ["--license", "--licence", "--dataset-license"])
@pytest.mark.parametrize(
    ("given", "hint"), [("MITT", "did you mean 'MIT'?"), ("Apache 2.0", "did you mean 'Apache-2.0'?"), ("ours", "")]
)
def test_a_license_that_spdx_does_not_know_is_refused_before_anything_is_sent(
    player: Player, tmp_path: Path, option: str, given: str, hint: str
) -> None:
    where = tmp_path / "registry"
    words = ("publish", player.run, "--to", where, "--as", "acme", option, given)
    done = nip_run_here(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{given}: not an SPDX license expression" in done.stderr
    assert hint in done.stderr
    assert "LicenseRef-NAME" in done.stderr
    assert not where.exists()


@pytest.mark.full
def test_the_release_that_it_was_made_from_is_named_as_get_names_it_and_linked_by_hash(tmp_path: Path) -> None:
    (tmp_path / "terse").mkdir()
    (tmp_path / "terse" / "verifier.jinja").write_text("Say {{ stance }}.\n", "utf-8")
    words = ("publish", "terse", "--kind", "prompts", "--to", "registry", "--licence", "MIT", "--force", "--json")
    for more in (["--as", "acme/terse@1.0"], ["--as", "other/terse@2", "--child-of", "acme/terse"]):
        done = nip_run_here(*words, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    releases = tmp_path / "registry" / "prompts"
    first, child = (releases / name / "release.json" for name in ("acme/terse/1.0", "other/terse/2"))
    (link,) = json.loads(child.read_bytes())["links"]
    sha256 = hashlib.sha256(first.read_bytes()).hexdigest()
    assert (link["role"], link["release"], link["sha256"]) == ("child_of", "prompts/acme/terse@1.0", sha256)


@pytest.mark.full
def test_status_says_which_runs_can_be_published_and_why_not_the_others(plain: Path) -> None:
    done = nip_run_here("status", "--json", cwd=plain)
    (row,) = json.loads(done.stdout)
    assert (row["publishable"], row["status"], row["why_not"]) == (True, "done", [])
    assert row["notes"][-1] == "not pinned: spec: not in a git repository"
    done = nip_run_here("status", "last", "--json", cwd=plain, HOME=FORD)
    assert done.returncode == 1  # as `freeze` does
    (release,) = json.loads(done.stdout)["releases"]
    failed = [check["check"] for check in release["checks"] if not check["passed"]]
    assert failed == ["nothing private", "terms"]
    done = nip_run_here("status", "spec.yaml", "--json", cwd=plain)
    parts = {part["part"]: part for part in json.loads(done.stdout)}
    assert {name: part["pinned"] for name, part in parts.items()} == {
        "dataset": False, "spec": False, "prompts": True, "protocol": True,
    }  # fmt: skip
    shipped = nip_run_here("status", "specs/quickstart.yaml", "--json", cwd=plain)
    assert {part["pinned"] for part in json.loads(shipped.stdout)} == {True}, shipped.stderr


def release_json(folder: Path, version: str) -> dict[str, Any]:
    (path,) = (folder / "registry" / "run").rglob(f"{version}/release.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.mark.gate
def test_a_first_publish_needs_no_git_and_is_pinned_once_a_pushed_commit_has_the_same_bytes(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=3)
    run_spec(path, tmp_path / "results")
    name = only_run(tmp_path / "results").name.lower()
    words = ("publish", "last", "--to", "registry", "--licence", "MIT", "--as")
    done = nip_run_here(*words, "acme", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not pinned: spec: not in a git repository" in done.stderr
    assert "--pin SPEC" in done.stderr
    assert release_json(tmp_path, "1")["facts"]["pinned"] is False
    done = nip_run_here("get", f"acme/{name}", "got", "--from", "registry", cwd=tmp_path)
    assert "not pinned   its files are not in a public commit" in done.stdout
    again = (*words, f"acme/{name}@2", "--pin", "spec.yaml")
    done = nip_run_here(*again, cwd=tmp_path)
    assert (done.returncode, "cannot be pinned" in done.stderr, "in a git repository" in done.stderr) == (1, True, True)
    rows = (tmp_path / "data.jsonl").read_text()
    (tmp_path / "data.jsonl").write_text(rows + "\n")
    commit_and_push(tmp_path, "spec.yaml", "data.jsonl")
    done = nip_run_here(*again, cwd=tmp_path)
    assert (done.returncode, "dataset: the file is not the one that was played" in done.stderr) == (1, True)
    (tmp_path / "data.jsonl").write_text(rows)
    commit = commit_folder(tmp_path, "data.jsonl")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", commit)
    done = nip_run_here(*again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    release = release_json(tmp_path, "2")
    assert (release["facts"]["pinned"], release["sources"]["spec"]["commit"]) == (True, commit)
    done = nip_run_here(
        "leaderboard", "--from", "registry", "--json", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["release"], row["marks"]) == (f"run/acme/{name}@2", [])


@pytest.mark.full
def test_files_of_a_public_repository_that_are_not_pushed_stop_a_publish_without_force(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=3)
    commit_and_push(tmp_path)
    path.write_text(path.read_text() + "\n# changed\n")
    run_spec(path, tmp_path / "results")
    words = ("publish", "last", "--to", "registry", "--licence", "MIT", "--as", "acme")
    done = nip_run_here(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "pinned: spec: uncommitted changes; commit and push them (then add --pin SPEC), or" in done.stderr
    assert nip_run_here(*words, "--force", cwd=tmp_path).returncode == 0


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with a run that 0.1.0 played, which recorded neither where its files were nor its packages."""
    run = ROOT / "tests" / "fixtures" / "v0_1_0" / "results" / "runs" / "served-c534600bdb"
    shutil.copytree(run, tmp_path / "results" / "runs" / run.name)
    return tmp_path


@pytest.mark.full
def test_a_run_of_0_1_0_is_published_as_not_pinned_with_what_it_counted(old: Path) -> None:
    done = nip_run_here("publish", "served", "--to", "registry", *AS, "--json", cwd=old)
    (shown,) = json.loads(done.stdout)["releases"]
    notes = {check["check"]: check["notes"] for check in shown["checks"]}
    assert (done.returncode, shown["pinned"]) == (0, False)
    assert notes["pinned"] == ["not pinned: the commit of its files was not recorded"]
    assert "recorded by an earlier version (0.1.0)" in notes["numbers"][0]
    assert (len(notes["numbers"]) < 12, "not computed by that version: " in notes["numbers"][-1]) == (True, True)
    done = nip_run_here("verify", "served", cwd=old)
    assert all(note in done.stderr for note in notes["numbers"]), done.stderr  # by the same test
    assert (done.returncode, "and all other recorded numbers follow" in done.stdout) == (0, True), done.stdout


@pytest.mark.full
def test_a_number_that_does_not_follow_from_the_records_stops_it(old: Path) -> None:
    (path,) = old.rglob("metrics.json")
    said = json.loads(path.read_bytes())
    said["metrics"][0]["value"] = 0.99
    path.write_text(json.dumps(said))
    done = nip_run_here("publish", "served", "--to", "registry", *AS, cwd=old)
    assert done.returncode == 1
    assert "numbers: metric accuracy, value: recorded 0.99" in done.stderr
    assert not (old / "registry").exists()
