"""`nip-run server`: accounts, organisations, members, tokens and hidden releases, by commands and over the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.documents.releases.manifest import MANIFEST
from runner.documents.releases.reference import Kind
from tests.support.processes import nip_run_here
from tests.support.registry_locations import bundle
from tests.support.server_process import ServerProcess


def keep(cwd: Path, action: str, *words: str | Path) -> Any:
    done = nip_run_here("server", action, cwd, *words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def refused(cwd: Path, action: str, *words: str) -> str:
    done = nip_run_here("server", action, cwd, *words, cwd=cwd)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_token_is_told_once_and_listed_without_its_secret(served: ServerProcess) -> None:
    made = keep(served.folder, "add-token", "bob", "--scope", "read", "--days", "2", "--label", "laptop")
    assert served.request("/api/v1", token=made["token"]).json["account"] == "bob"
    listed = keep(served.folder, "tokens", "bob")
    assert {"id": made["id"], "scope": "read", "label": "laptop", "state": "good"}.items() <= listed[0].items()
    secret = made["token"].split("_", 2)[2]
    assert secret not in json.dumps(listed) + json.dumps(keep(served.folder, "acts"))
    assert secret.encode() not in b"".join(path.read_bytes() for path in served.folder.glob("registry.sqlite*"))
    keep(served.folder, "revoke-token", made["id"])
    assert served.request("/api/v1", token=made["token"]).status == 401
    assert keep(served.folder, "tokens", "bob")[0]["state"] == "revoked"
    assert secret not in served.log


def test_an_account_that_is_disabled_is_nobody_until_it_is_enabled(served: ServerProcess) -> None:
    keep(served.folder, "add-account", "carol")
    token = keep(served.folder, "add-token", "carol")["token"]
    for action, status in (("disable", 401), ("enable", 200)):
        keep(served.folder, action, "carol")
        assert served.request("/api/v1", token=token).status == status


def test_members_publish_as_their_organisation_and_the_last_owner_stays(served: ServerProcess) -> None:
    keep(served.folder, "add-account", "dora", "emil")
    keep(served.folder, "add-organisation", "lab", "dora")
    token = keep(served.folder, "add-token", "emil")["token"]
    for action, owners in (("add-member", ["emil", "lab"]), ("remove-member", ["emil"])):
        keep(served.folder, action, "lab", "emil")
        assert served.request("/api/v1", token=token).json["owners"] == owners
    assert "the last owner" in refused(served.folder, "remove-member", "lab", "dora")
    assert "name an organization first" in refused(served.folder, "add-member", "dora", "emil")
    assert "there is no account 'zz'" in refused(served.folder, "add-member", "lab", "zz")


def test_names_that_look_like_others_or_are_reserved_are_refused(served: ServerProcess) -> None:
    for name, said in (
        ("A1ice", "must be 1 to 100 of a-z"), ("../x", "must be 1 to 100 of a-z"), ("\u0430lice", "must be 1 to"),
        ("alice", "'alice' is taken"), ("al-ice", "too similar to 'alice', which is taken"),
        ("admin", "is reserved"), ("adm1n", "too similar to 'admin', which is reserved"), ("r00t", "similar to 'root'"),
        ("ap1", "similar to 'api'"), ("l0gin", "similar to 'login'"), ("s-e-rver", "similar to 'server'"),
    ):  # fmt: skip
        assert said in refused(served.folder, "add-account", name)


def test_a_folder_without_a_server_is_said_to_be_one_and_stays_so(tmp_path: Path) -> None:
    assert "no server in" in refused(tmp_path, "accounts")
    assert not list(tmp_path.iterdir())


def test_who_keeps_the_server_hides_a_release_from_all_but_its_owner(served: ServerProcess) -> None:
    served.publish("alice", bundle("leak", kind=Kind.DATASET), bundle("fine", kind=Kind.DATASET))
    path = f"/api/v1/tree/dataset/acme/leak/1/{MANIFEST}"
    where = "/api/v1/hidden/dataset/acme/leak/1"
    assert served.request(path).status == 200
    for who, status in ((None, 401), ("alice", 403), ("mallory", 403), ("keeper-reads", 403), ("keeper", 204)):
        token = None if who is None else served.tokens[who]
        assert served.request(where, "PUT", {"why": "has the labels"}, token=token).status == status
    assert served.request(path).status == served.request(path, token=served.tokens["keeper"]).status == 404
    assert served.request(path, token=served.tokens["alice"]).status == 200
    assert any(act["why"] == "has the labels" and act["by"] == "keeper" for act in keep(served.folder, "acts"))
    keep(served.folder, "show", "dataset/acme/leak@1")
    assert served.request(path).status == 200
    assert "no public release" in refused(served.folder, "hide", "dataset/acme/nothing@1")
