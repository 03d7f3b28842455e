"""`nip-run server`: accounts, organizations, members, tokens and hidden releases, by command and over the API."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from runner.documents.releases.manifest import MANIFEST
from runner.documents.releases.reference import Kind
from tests.support.processes import nip_run_here
from tests.support.registry_locations import bundle
from tests.support.server_process import ServerProcess


def run_server_command(cwd: Path, action: str, *arguments: str | Path) -> Any:
    process = nip_run_here("server", action, cwd, *arguments, "--json", cwd=cwd)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout) if process.stdout else None


def expect_server_command_error(cwd: Path, action: str, *arguments: str) -> str:
    process = nip_run_here("server", action, cwd, *arguments, cwd=cwd)
    assert process.returncode != 0
    assert "Traceback" not in process.stderr
    return process.stderr


def test_token_secret_is_shown_once_and_stored_or_listed_nowhere(served: ServerProcess) -> None:
    token = run_server_command(served.folder, "add-token", "bob", "--scope", "read", "--days", "2", "--label", "laptop")
    assert served.request("/api/v1", token=token["token"]).json["account"] == "bob"
    listed = run_server_command(served.folder, "tokens", "bob")
    assert {"id": token["id"], "scope": "read", "label": "laptop", "state": "good"}.items() <= listed[0].items()
    secret = token["token"].split("_", 2)[2]
    assert secret not in json.dumps(listed) + json.dumps(run_server_command(served.folder, "acts"))
    assert secret.encode() not in b"".join(path.read_bytes() for path in served.folder.glob("registry.sqlite*"))
    run_server_command(served.folder, "revoke-token", token["id"])
    assert served.request("/api/v1", token=token["token"]).status == 401
    assert run_server_command(served.folder, "tokens", "bob")[0]["state"] == "revoked"
    assert secret not in served.log


def test_token_lifetime_that_is_no_date_is_refused(tmp_path: Path) -> None:
    """Such a token could never be listed, and it would not expire."""
    run_server_command(tmp_path, "add-account", "dora")
    for days in ("nan", "inf", "1e308", "-1"):
        assert "must be from 0 to 36,500" in expect_server_command_error(
            tmp_path, "add-token", "dora", f"--days={days}"
        )
    assert run_server_command(tmp_path, "tokens", "dora") == []


def test_all_acts_are_listed_also_old_ones(tmp_path: Path) -> None:
    names = [f"person-{number}" for number in range(90)]
    run_server_command(tmp_path, "add-account", *names)
    for action in ("disable", "enable"):
        run_server_command(tmp_path, action, *names)
    acts = run_server_command(tmp_path, "acts")
    assert (len(acts), acts[-1]["did"], acts[-1]["to"]) == (270, "add-account", names[0])


def test_action_that_fails_confirms_none_of_its_changes(tmp_path: Path) -> None:
    """An error undoes all changes of a command, also those of earlier names."""
    run_server_command(tmp_path, "add-account", "dora")
    error = expect_server_command_error(tmp_path, "disable", "dora", "nobody")
    assert "there is no account 'nobody'" in error
    assert "disable: dora" not in error
    assert [row["state"] for row in run_server_command(tmp_path, "accounts")] == ["good"]


def test_database_error_of_an_action_is_reported_without_confirmation(tmp_path: Path) -> None:
    run_server_command(tmp_path, "add-account", "dora")
    with closing(sqlite3.connect(tmp_path / "registry.sqlite")) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON tokens BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    error = expect_server_command_error(tmp_path, "add-token", "dora")
    assert "cannot use the database of the server: disk is full; make room on the disk" in error
    assert "add-token:" not in error


def test_disabled_account_cannot_sign_in_until_it_is_enabled(served: ServerProcess) -> None:
    run_server_command(served.folder, "add-account", "carol")
    token = run_server_command(served.folder, "add-token", "carol")["token"]
    for action, status in (("disable", 401), ("enable", 200)):
        run_server_command(served.folder, action, "carol")
        assert served.request("/api/v1", token=token).status == status


def test_members_publish_as_their_organization_and_the_last_owner_cannot_be_removed(served: ServerProcess) -> None:
    run_server_command(served.folder, "add-account", "dora", "emil")
    run_server_command(served.folder, "add-organization", "lab", "dora")
    token = run_server_command(served.folder, "add-token", "emil")["token"]
    for action, owners in (("add-member", ["emil", "lab"]), ("remove-member", ["emil"])):
        run_server_command(served.folder, action, "lab", "emil")
        assert served.request("/api/v1", token=token).json["owners"] == owners
    assert "the last owner" in expect_server_command_error(served.folder, "remove-member", "lab", "dora")
    assert "name an organization first" in expect_server_command_error(served.folder, "add-member", "dora", "emil")
    assert "there is no account 'zz'" in expect_server_command_error(served.folder, "add-member", "lab", "zz")


def test_removed_member_cannot_join_again_with_an_earlier_invitation(served: ServerProcess) -> None:
    run_server_command(served.folder, "add-account", "frida", "hugo")
    run_server_command(served.folder, "add-organization", "club", "frida")
    owner, guest = (run_server_command(served.folder, "add-token", name)["token"] for name in ("frida", "hugo"))
    path = "/api/v1/organisations/club"
    for remover in ("owner", "command"):
        invited = served.request(f"{path}/members/hugo", "PUT", {"is_owner": True}, token=owner)
        assert invited.json == {"place": "invited"}
        run_server_command(served.folder, "add-member", "club", "hugo")
        assert [member["account"] for member in served.request(path, token=guest).json["members"]] == ["frida", "hugo"]
        if remover == "owner":
            assert served.request(f"{path}/members/hugo", "DELETE", token=owner).status == 204
        else:
            run_server_command(served.folder, "remove-member", "club", "hugo")
        assert served.request("/api/v1", token=guest).json["owners"] == ["hugo"]
        assert served.request(f"{path}/accept", "POST", token=guest).status == 404


def test_commands_that_change_members_update_the_boards(served: ServerProcess) -> None:
    """Two members of an organization do not count as independent, so a new member can change a run's tier."""
    run_server_command(served.folder, "add-account", "ines", "jan")
    commands = (
        ("add-organization", "team", "ines"), ("add-member", "team", "jan"), ("remove-member", "team", "jan"),
    )  # fmt: skip
    revisions = []
    with closing(served.open_database()) as database:
        for command in commands:
            run_server_command(served.folder, *command)
            with database.reading() as connection:
                revisions.append(database.revision(connection))
    assert len(set(revisions)) == len(commands)


def test_old_name_of_an_action_works_with_a_note(served: ServerProcess) -> None:
    run_server_command(served.folder, "add-account", "greta")
    done = nip_run_here("server", "add-organisation", str(served.folder), "foundry", "greta", cwd=served.folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        0, "note: 'add-organisation' is now called 'add-organization'"
    )  # fmt: skip


def test_reserved_and_confusable_account_names_are_refused(served: ServerProcess) -> None:
    for name, message in (
        ("A1ice", "must consist of 1 to"), ("../x", "must consist of 1 to"), ("\u0430lice", "must consist of 1 to"),
        ("alice", "'alice' is taken"), ("al-ice", "too similar to 'alice', which is taken"),
        ("admin", "is reserved"), ("adm1n", "too similar to 'admin', which is reserved"), ("r00t", "similar to 'root'"),
        ("ap1", "similar to 'api'"), ("l0gin", "similar to 'login'"), ("s-e-rver", "similar to 'server'"),
    ):  # fmt: skip
        assert message in expect_server_command_error(served.folder, "add-account", name)


def test_command_on_a_folder_without_a_server_fails_and_creates_nothing(tmp_path: Path) -> None:
    assert "no server in" in expect_server_command_error(tmp_path, "accounts")
    assert not list(tmp_path.iterdir())


def test_release_hidden_by_an_administrator_is_visible_only_to_its_owner(served: ServerProcess) -> None:
    served.publish("alice", bundle("leak", kind=Kind.DATASET), bundle("fine", kind=Kind.DATASET))
    path = f"/api/v1/tree/dataset/acme/leak/1/{MANIFEST}"
    hide_path = "/api/v1/hidden/dataset/acme/leak/1"
    assert served.request(path).status == 200
    for account, status in ((None, 401), ("alice", 403), ("mallory", 403), ("keeper-reads", 403), ("keeper", 204)):
        token = None if account is None else served.tokens[account]
        assert served.request(hide_path, "PUT", {"why": "has the labels"}, token=token).status == status
    assert served.request(path).status == served.request(path, token=served.tokens["keeper"]).status == 404
    assert served.request(path, token=served.tokens["alice"]).status == 200
    assert any(
        act["why"] == "has the labels" and act["by"] == "keeper" for act in run_server_command(served.folder, "acts")
    )
    run_server_command(served.folder, "show", "dataset/acme/leak@1")
    assert served.request(path).status == 200
    assert "no public release" in expect_server_command_error(served.folder, "hide", "dataset/acme/nothing@1")
