"""Tokens and browsers that are signed in: who holds one, until when, and that nothing that is logged has one."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from runner.server.accounts.accounts import Scope, add_account, add_member, create_token, revoke_token, viewer_of_token
from runner.server.accounts.administration import set_disabled
from runner.server.accounts.browser_sessions import SESSION_SECONDS, find_browser_session, sign_in, sign_out
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, tokens
from runner.server.web.observability import JsonLines
from tests.support.server_process import ServerProcess

NOW = 1_000_000.0


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Connection]:
    """A database with an account acme."""
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as connection:
        add_account(connection, "acme", NOW)
        yield connection
    database.close()


def id_of(token: str) -> str:
    return token.split("_")[1]


def test_a_token_holds_until_it_expires_is_revoked_or_its_account_is_disabled(records: Connection) -> None:
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=100)
    found = viewer_of_token(records, token, NOW + 99)
    assert found is not None
    assert (found.account, found.scope) == ("acme", Scope.PUBLISH)
    assert viewer_of_token(records, token, NOW + 100) is None
    for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), token.replace(id_of(token), "z" * 12), "", "nip_"):
        assert viewer_of_token(records, wrong, NOW) is None
    set_disabled(records, "acme", NOW)
    assert viewer_of_token(records, token, NOW) is None
    set_disabled(records, "acme", None)
    assert viewer_of_token(records, token, NOW) is not None
    revoke_token(records, id_of(token), NOW)
    assert viewer_of_token(records, token, NOW) is None


def test_nobody_is_in_an_organisation_that_is_disabled(records: Connection) -> None:
    add_account(records, "lab", NOW, is_organization=True)
    add_member(records, "lab", "acme", is_owner=True)
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
    for at, owners in ((None, {"acme", "lab"}), (NOW, {"acme"}), (None, {"acme", "lab"})):
        set_disabled(records, "lab", at)
        found = viewer_of_token(records, token, NOW)
        assert found is not None
        assert found.account_names == owners


def test_a_token_is_kept_as_its_hash(records: Connection) -> None:
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
    cookie = sign_in(records, token, NOW)
    assert cookie is not None
    kept = repr([list(records.execute(select(table))) for table in tokens.metadata.sorted_tables])
    assert id_of(token) in kept
    assert token.split("_", 2)[2] not in kept
    assert cookie.partition(".")[2] not in kept


def test_a_browser_is_signed_in_until_it_signs_out_or_its_token_holds_no_more(records: Connection) -> None:
    token = create_token(records, "acme", Scope.ADMIN, NOW, lifetime_seconds=20 * 3600)
    cookie = sign_in(records, token, NOW)
    assert cookie is not None
    found = find_browser_session(records, cookie, NOW + SESSION_SECONDS - 1)
    assert found is not None
    assert found.viewer == replace(found.viewer, account="acme", scope=Scope.READ)
    assert find_browser_session(records, cookie, NOW + SESSION_SECONDS) is None
    assert find_browser_session(records, cookie[:-1] + ("A" if cookie[-1] != "A" else "B"), NOW) is None
    late = sign_in(records, token, NOW + 15 * 3600)
    assert late is not None
    assert find_browser_session(records, late, NOW + 20 * 3600) is None
    other, mine = sign_in(records, token, NOW), sign_in(records, token, NOW)
    assert other is not None
    assert mine is not None
    found = find_browser_session(records, mine, NOW)
    assert found is not None
    sign_out(records, found)
    assert find_browser_session(records, mine, NOW) is None
    set_disabled(records, "acme", NOW)
    assert find_browser_session(records, other, NOW) is None
    set_disabled(records, "acme", None)
    assert find_browser_session(records, other, NOW) is not None
    revoke_token(records, id_of(token), NOW)
    assert find_browser_session(records, other, NOW) is None


def test_no_line_of_the_log_has_a_token_wherever_it_stands() -> None:
    secret = "s" * 43
    try:
        raise ValueError(f"nip_abcdefghijkl_{secret} is wrong")
    except ValueError:
        record = logging.makeLogRecord({"msg": "nip_abcdefghijkl_" + secret, "path": f"/nip_abcdefghijkl_{secret}/x"})
        record.exc_info = sys.exc_info()
    said = JsonLines().format(record)
    assert secret not in said
    assert json.loads(said)["path"] == "/nip_abcdefghijkl_[secret removed]/x"


def test_an_error_of_the_database_names_no_value(records: Connection) -> None:
    row = {"competition_id": 7, "datapoint_id": "SECRETROW", "label": 1, "is_held": False}
    with pytest.raises(IntegrityError) as error:
        records.execute(insert(competition_labels), [row, row])
    assert "SECRETROW" not in str(error.value)


@pytest.mark.full
def test_a_token_in_an_address_is_in_no_answer_and_no_log(served: ServerProcess) -> None:
    token = served.tokens["alice"]
    secret = token.split("_", 2)[2]
    for path in (f"/{token}", f"/api/v1/tree/{token}", f"/run/acme/{token}/1", f"/api/v1/uploads/{token}",
                 f"/api/v1/releases?limit={token}", f"/api/v1/competitions/acme/{token}",
                 f"/owner/{token}"):  # fmt: skip
        answer = served.request(path)
        assert answer.status in (401, 404, 422, 503), path  # 503 while the first board is being built
        assert secret.encode() not in answer.body, path
        assert secret not in repr(answer.headers)
    for said in (f"Basic {token}", f"Bearer {token}x", f"bearer  {token} {token}"):
        answer = served.request("/api/v1", Authorization=said)
        assert answer.status == 401
        assert secret.encode() not in answer.body
    answer = served.request("/api/v1/uploads", "POST", {"folders": [{"folder": token}]}, token=token)
    assert answer.status == 422
    assert secret.encode() not in answer.body
    assert secret not in served.log


@pytest.mark.full
def test_a_wrong_secret_takes_as_long_as_an_id_that_nobody_has(tmp_path: Path) -> None:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as connection:
        add_account(connection, "acme", NOW)
        token = create_token(connection, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
        revoked = create_token(connection, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
        connection.execute(update(tokens).where(tokens.c.id == id_of(revoked)).values(revoked=NOW))
    first, last = f"nip_{id_of(token)}_", token[-42:]
    tried = {
        "nearly right": token[:-1] + ("A" if token[-1] != "A" else "B"), "wrong at once": first + "A" + last,
        "unknown": token.replace(id_of(token), "0" * 12), "revoked": revoked,
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in tried}
    with database.reading() as connection:
        for _ in range(3_000):
            for name, one in tried.items():  # by turns, so that what else the machine does is all of theirs
                begun = time.perf_counter()
                viewer_of_token(connection, one, NOW)
                taken[name].append(time.perf_counter() - begun)
    database.close()
    fastest = {name: min(found) * 1e6 for name, found in taken.items()}  # what nothing else on the machine held up
    print({name: f"{value:.1f} us" for name, value in fastest.items()})
    # By nothing that a network would show; of its secret the hash alone is compared.
    assert max(fastest.values()) - min(fastest.values()) < 100
    assert abs(fastest["nearly right"] - fastest["wrong at once"]) < 20
