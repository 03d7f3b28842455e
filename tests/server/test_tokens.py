"""Tokens and browser sessions: when they are valid, and that no log contains one."""

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


def token_id(token: str) -> str:
    return token.split("_")[1]


def test_token_is_valid_until_expiry_revocation_or_disabling_of_its_account(records: Connection) -> None:
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=100)
    viewer = viewer_of_token(records, token, NOW + 99)
    assert viewer is not None
    assert (viewer.account, viewer.scope) == ("acme", Scope.PUBLISH)
    assert viewer_of_token(records, token, NOW + 100) is None
    for wrong in (
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token.replace(token_id(token), "z" * 12),
        "",
        "nip_",
    ):
        assert viewer_of_token(records, wrong, NOW) is None
    set_disabled(records, "acme", NOW)
    assert viewer_of_token(records, token, NOW) is None
    set_disabled(records, "acme", None)
    assert viewer_of_token(records, token, NOW) is not None
    revoke_token(records, token_id(token), NOW)
    assert viewer_of_token(records, token, NOW) is None


def test_disabled_organization_has_no_members(records: Connection) -> None:
    add_account(records, "lab", NOW, is_organization=True)
    add_member(records, "lab", "acme", is_owner=True)
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
    for disabled_at, owners in ((None, {"acme", "lab"}), (NOW, {"acme"}), (None, {"acme", "lab"})):
        set_disabled(records, "lab", disabled_at)
        viewer = viewer_of_token(records, token, NOW)
        assert viewer is not None
        assert viewer.account_names == owners


def test_database_stores_only_the_hash_of_a_token(records: Connection) -> None:
    token = create_token(records, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
    cookie = sign_in(records, token, NOW)
    assert cookie is not None
    stored = repr([list(records.execute(select(table))) for table in tokens.metadata.sorted_tables])
    assert token_id(token) in stored
    assert token.split("_", 2)[2] not in stored
    assert cookie.partition(".")[2] not in stored


def test_browser_session_ends_with_sign_out_or_with_its_token(records: Connection) -> None:
    token = create_token(records, "acme", Scope.ADMIN, NOW, lifetime_seconds=20 * 3600)
    cookie = sign_in(records, token, NOW)
    assert cookie is not None
    session = find_browser_session(records, cookie, NOW + SESSION_SECONDS - 1)
    assert session is not None
    assert session.viewer == replace(session.viewer, account="acme", scope=Scope.READ)
    assert find_browser_session(records, cookie, NOW + SESSION_SECONDS) is None
    assert find_browser_session(records, cookie[:-1] + ("A" if cookie[-1] != "A" else "B"), NOW) is None
    late_cookie = sign_in(records, token, NOW + 15 * 3600)
    assert late_cookie is not None
    assert find_browser_session(records, late_cookie, NOW + 20 * 3600) is None
    other_cookie, cookie_to_sign_out = sign_in(records, token, NOW), sign_in(records, token, NOW)
    assert other_cookie is not None
    assert cookie_to_sign_out is not None
    session = find_browser_session(records, cookie_to_sign_out, NOW)
    assert session is not None
    sign_out(records, session)
    assert find_browser_session(records, cookie_to_sign_out, NOW) is None
    set_disabled(records, "acme", NOW)
    assert find_browser_session(records, other_cookie, NOW) is None
    set_disabled(records, "acme", None)
    assert find_browser_session(records, other_cookie, NOW) is not None
    revoke_token(records, token_id(token), NOW)
    assert find_browser_session(records, other_cookie, NOW) is None


def test_log_lines_redact_tokens_in_messages_paths_and_tracebacks() -> None:
    secret = "s" * 43
    try:
        raise ValueError(f"nip_abcdefghijkl_{secret} is wrong")
    except ValueError:
        record = logging.makeLogRecord({"msg": "nip_abcdefghijkl_" + secret, "path": f"/nip_abcdefghijkl_{secret}/x"})
        record.exc_info = sys.exc_info()
    line = JsonLines().format(record)
    assert secret not in line
    assert json.loads(line)["path"] == "/nip_abcdefghijkl_[secret removed]/x"


def test_database_error_message_contains_no_values(records: Connection) -> None:
    row = {"competition_id": 7, "datapoint_id": "SECRETROW", "label": 1, "is_held": False}
    with pytest.raises(IntegrityError) as error:
        records.execute(insert(competition_labels), [row, row])
    assert "SECRETROW" not in str(error.value)


@pytest.mark.full
def test_token_in_a_request_appears_in_no_response_and_no_log(served: ServerProcess) -> None:
    token = served.tokens["alice"]
    secret = token.split("_", 2)[2]
    for path in (f"/{token}", f"/api/v1/tree/{token}", f"/run/acme/{token}/1", f"/api/v1/uploads/{token}",
                 f"/api/v1/releases?limit={token}", f"/api/v1/competitions/acme/{token}",
                 f"/owner/{token}"):  # fmt: skip
        response = served.request(path)
        assert response.status in (401, 404, 422, 503), path  # 503 while the first board is being built
        assert secret.encode() not in response.body, path
        assert secret not in repr(response.headers)
    for authorization in (f"Basic {token}", f"Bearer {token}x", f"bearer  {token} {token}"):
        response = served.request("/api/v1", Authorization=authorization)
        assert response.status == 401
        assert secret.encode() not in response.body
    response = served.request("/api/v1/uploads", "POST", {"folders": [{"folder": token}]}, token=token)
    assert response.status == 422
    assert secret.encode() not in response.body
    assert secret not in served.log


@pytest.mark.full
def test_wrong_secret_and_unknown_token_id_take_equally_long(tmp_path: Path) -> None:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as connection:
        add_account(connection, "acme", NOW)
        token = create_token(connection, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
        revoked = create_token(connection, "acme", Scope.PUBLISH, NOW, lifetime_seconds=None)
        connection.execute(update(tokens).where(tokens.c.id == token_id(revoked)).values(revoked=NOW))
    first, last = f"nip_{token_id(token)}_", token[-42:]
    candidates = {
        "nearly right": token[:-1] + ("A" if token[-1] != "A" else "B"), "wrong at once": first + "A" + last,
        "unknown": token.replace(token_id(token), "0" * 12), "revoked": revoked,
    }  # fmt: skip
    durations: dict[str, list[float]] = {name: [] for name in candidates}
    with database.reading() as connection:
        for _ in range(3_000):
            for name, candidate in candidates.items():  # in turn, so that other load on the machine affects all alike
                started = time.perf_counter()
                viewer_of_token(connection, candidate, NOW)
                durations[name].append(time.perf_counter() - started)
    database.close()
    fastest = {
        name: min(seconds) * 1e6 for name, seconds in durations.items()
    }  # the durations least affected by other load
    print({name: f"{value:.1f} us" for name, value in fastest.items()})
    # The difference is too small to measure over a network; only hashes of secrets are compared.
    assert max(fastest.values()) - min(fastest.values()) < 100
    assert abs(fastest["nearly right"] - fastest["wrong at once"]) < 20
