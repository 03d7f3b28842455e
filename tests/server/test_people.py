"""Tokens and organizations, managed over the API and on the account page."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from runner.server.accounts.accounts import Scope, add_account, add_member, create_token
from tests.server.test_keeping import expect_server_command_error, run_server_command
from tests.support.server_process import HttpResponse, ServerProcess

TOKENS, ORGANIZATION = "/api/v1/tokens", "/api/v1/organisations/guild"


@pytest.fixture(scope="session")  # like the server's, because xdist may split a module's tests
def people(served: ServerProcess) -> dict[str, str]:
    """Publishing and reading tokens of three accounts; `ann` owns an organization."""
    tokens = {}
    with (records := served.open_database()).writing() as connection:
        add_account(connection, "guild", 0.0, is_organization=True)
        for name in ("ann", "ben", "cleo"):
            add_account(connection, name, 0.0)
            tokens[name] = create_token(connection, name, Scope.PUBLISH, time.time(), lifetime_seconds=3600.0)
            tokens[f"{name}-reads"] = create_token(connection, name, Scope.READ, time.time(), lifetime_seconds=None)
        add_member(connection, "guild", "ann", is_owner=True)
    records.close()
    return tokens


def test_token_creates_no_stronger_or_longer_token_and_revokes_only_its_accounts_own(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    def create(body: dict[str, Any], account: str = "ann") -> HttpResponse:
        return served.request(TOKENS, "POST", body, token=people[account])

    assert create({"scope": "admin"}).status == 403
    assert create({"scope": "read"}, "ann-reads").status == 403
    assert create({"scpoe": "read"}).status == 422
    created = create({"scope": "read", "label": "dashboard"}).json
    assert created["expires"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 3700))
    assert served.request("/api/v1", token=created["token"]).json["account"] == "ann"
    listed = served.request(TOKENS, token=people["ann-reads"])
    assert created["id"] in {token["id"] for token in listed.json["tokens"]}
    assert created["token"].split("_", 2)[2] not in listed.body.decode()
    token_path = f"{TOKENS}/{created['id']}"
    for requester, status in (("ben", 404), ("ann-reads", 403), ("ann", 204), ("ann", 404)):
        assert served.request(token_path, "DELETE", token=people[requester]).status == status
    assert served.request("/api/v1", token=created["token"]).status == 401
    assert {"add-token", "revoke-token"} <= {
        act["did"] for act in run_server_command(served.folder, "acts") if act["by"] == "ann"
    }


def test_invited_account_becomes_a_member_only_by_accepting(served: ServerProcess, people: Mapping[str, str]) -> None:
    def request(account: str, method: str, path: str = "", body: dict[str, Any] | None = None) -> HttpResponse:
        return served.request(f"{ORGANIZATION}{path}", method, body, token=people[account])

    def list_owners(account: str) -> list[str]:
        names: list[str] = served.request("/api/v1", token=people[account]).json["owners"]
        return names

    assert request("ben", "GET").status == served.request(f"{ORGANIZATION}x", token=people["ben"]).status == 404
    assert request("ben", "PUT", "/members/ben", {}).status == 404
    assert request("ann-reads", "PUT", "/members/ben", {}).status == 403
    assert request("ann", "PUT", "/members/nobody", {}).status == 404
    assert request("ann", "PUT", "/members/ben", {}).json == {"place": "invited"}
    assert (list_owners("ben"), request("ben", "GET").json["members"]) == (["ben"], [])
    assert request("cleo", "POST", "/accept").status == 404
    assert request("ben", "POST", "/accept").json == {"place": "member"}
    assert list_owners("ben") == ["ben", "guild"]
    assert request("ben", "PUT", "/members/cleo", {}).status == 403
    assert request("ben", "DELETE", "/members/ann").status == 403
    last_owner_responses = [
        request("ann", "DELETE", "/members/ann"),
        request("ann", "PUT", "/members/ann", {"is_owner": False}),
    ]
    assert {(response.status, "the last owner" in response.json["message"]) for response in last_owner_responses} == {
        (400, True)
    }
    assert "the last owner" in expect_server_command_error(served.folder, "add-member", "guild", "ann")
    assert request("ann", "PUT", "/members/ben", {"is_owner": True}).json == {"place": "owner"}
    assert request("ben", "DELETE", "/members/ann").status == 204
    assert list_owners("ann") == ["ann"]
    assert request("ben", "PUT", "/members/ann", {"is_owner": True}).json == {"place": "invited"}
    assert request("ann", "POST", "/accept").json == {"place": "owner"}
    assert request("ben", "DELETE", "/members/ben").status == 204


def sign_in(served: ServerProcess, token: str) -> str:
    """Sign in with a token and return the session cookie."""
    login_page = served.request("/login")
    match = re.search(r'name="word" value="([^"]+)"', login_page.body.decode())
    assert match is not None
    body = urlencode({"word": match[1], "token": token}).encode()
    response = served.request(
        "/login", "POST", body, Content_Type=FORM_TYPE, Cookie=login_page.headers["set-cookie"].split(";")[0]
    )
    assert response.status == 303
    return next(cookie.strip() for cookie in re.split("[;,]", response.headers["set-cookie"]) if "session=" in cookie)


FORM_TYPE = "application/x-www-form-urlencoded"


def test_account_page_creates_and_revokes_tokens_only_with_its_form_token(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    cookie = sign_in(served, people["cleo"])

    def post_form(fields: dict[str, str]) -> HttpResponse:
        return served.request(
            "/mine/account", "POST", urlencode(fields).encode(), Content_Type=FORM_TYPE, Cookie=cookie
        )

    page = served.request("/mine/account", Cookie=cookie)
    assert page.headers["cache-control"] == "private, no-store"
    match = re.search(r'name="word" value="([^"]+)"', page.body.decode())
    assert match is not None
    form_token = {"word": match[1]}
    token_fields = {"what": "make", "scope": "read", "days": "3", "label": "<b>\0"}
    assert post_form(token_fields).status == post_form({**token_fields, "word": "x"}).status == 403
    token_match = re.search(
        r"shown only once: <code>(nip_[^<]+)", post_form({**token_fields, **form_token}).body.decode()
    )
    assert token_match is not None
    assert served.request("/api/v1", token=token_match[1]).json["account"] == "cleo"
    assert b"&lt;b&gt;" in served.request("/mine/account", Cookie=cookie).body
    assert post_form({"what": "make", "scope": "admin", "days": "3", **form_token}).status == 400
    for days in ("0", "3651", "1e2", "000001" + 400 * "0"):
        assert post_form({**token_fields, "days": days, **form_token}).status == 400
    assert post_form({"what": "revoke", "token": token_match[1].split("_")[1], **form_token}).status == 303
    assert served.request("/api/v1", token=token_match[1]).status == 401
    assert post_form({"what": "set", "name": "guild", "account": "cleo", **form_token}).status == 400


def test_browser_signed_in_with_a_read_token_cannot_change_anything(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    cookie = sign_in(served, people["ben-reads"])
    match = re.search(r'name="word" value="([^"]+)"', served.request("/mine", Cookie=cookie).body.decode())
    assert match is not None
    body = urlencode({"what": "make", "scope": "read", "days": "3", "word": match[1]}).encode()
    response = served.request("/mine/account", "POST", body, Content_Type=FORM_TYPE, Cookie=cookie)
    assert (response.status, b"token of scope read" in response.body) == (400, True)
    assert b'value="make"' not in response.body
