"""Tokens and organisations, kept over the API and on the page of whoever is signed in."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from runner.server.accounts.accounts import Scope, add_account, add_member, create_token
from tests.server.test_keeping import keep, refused
from tests.support.server_process import HttpResponse, ServerProcess

TOKENS, LAB = "/api/v1/tokens", "/api/v1/organisations/guild"


@pytest.fixture(scope="session")  # as the server is: tests of one module may run apart
def people(served: ServerProcess) -> dict[str, str]:
    """A token that publishes of each of three accounts; `ann` owns an organisation."""
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


def test_a_token_makes_none_that_may_more_or_lasts_longer_and_revokes_its_account_s_own(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    def asked(body: dict[str, Any], who: str = "ann") -> HttpResponse:
        return served.request(TOKENS, "POST", body, token=people[who])

    assert asked({"scope": "admin"}).status == 403
    assert asked({"scope": "read"}, "ann-reads").status == 403
    assert asked({"scpoe": "read"}).status == 422
    made = asked({"scope": "read", "label": "dashboard"}).json
    assert made["expires"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 3700))
    assert served.request("/api/v1", token=made["token"]).json["account"] == "ann"
    listed = served.request(TOKENS, token=people["ann-reads"])
    assert made["id"] in {one["id"] for one in listed.json["tokens"]}
    assert made["token"].split("_", 2)[2] not in listed.body.decode()
    where = f"{TOKENS}/{made['id']}"
    for who, status in (("ben", 404), ("ann-reads", 403), ("ann", 204), ("ann", 404)):
        assert served.request(where, "DELETE", token=people[who]).status == status
    assert served.request("/api/v1", token=made["token"]).status == 401
    assert {"add-token", "revoke-token"} <= {act["did"] for act in keep(served.folder, "acts") if act["by"] == "ann"}


def test_an_owner_invites_and_nobody_is_a_member_until_they_accept(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    def asked(who: str, method: str, path: str = "", body: dict[str, Any] | None = None) -> HttpResponse:
        return served.request(f"{LAB}{path}", method, body, token=people[who])

    def owners(who: str) -> list[str]:
        found: list[str] = served.request("/api/v1", token=people[who]).json["owners"]
        return found

    assert asked("ben", "GET").status == served.request(f"{LAB}x", token=people["ben"]).status == 404
    assert asked("ben", "PUT", "/members/ben", {}).status == 404
    assert asked("ann-reads", "PUT", "/members/ben", {}).status == 403
    assert asked("ann", "PUT", "/members/nobody", {}).status == 404
    assert asked("ann", "PUT", "/members/ben", {}).json == {"place": "invited"}
    assert (owners("ben"), asked("ben", "GET").json["members"]) == (["ben"], [])
    assert asked("cleo", "POST", "/accept").status == 404
    assert asked("ben", "POST", "/accept").json == {"place": "member"}
    assert owners("ben") == ["ben", "guild"]
    assert asked("ben", "PUT", "/members/cleo", {}).status == 403
    assert asked("ben", "DELETE", "/members/ann").status == 403
    last = [asked("ann", "DELETE", "/members/ann"), asked("ann", "PUT", "/members/ann", {"is_owner": False})]
    assert {(one.status, "the last owner" in one.json["message"]) for one in last} == {(400, True)}
    assert "the last owner" in refused(served.folder, "add-member", "guild", "ann")
    assert asked("ann", "PUT", "/members/ben", {"is_owner": True}).json == {"place": "owner"}
    assert asked("ben", "DELETE", "/members/ann").status == 204
    assert owners("ann") == ["ann"]
    assert asked("ben", "PUT", "/members/ann", {"is_owner": True}).json == {"place": "invited"}
    assert asked("ann", "POST", "/accept").json == {"place": "owner"}
    assert asked("ben", "DELETE", "/members/ben").status == 204


def signed(served: ServerProcess, token: str) -> str:
    """The cookie of a browser that is signed in."""
    first = served.request("/login")
    word = re.search(r'name="word" value="([^"]+)"', first.body.decode())
    assert word is not None
    body = urlencode({"word": word[1], "token": token}).encode()
    done = served.request("/login", "POST", body, Content_Type=FORM, Cookie=first.headers["set-cookie"].split(";")[0])
    assert done.status == 303
    return next(one.strip() for one in re.split("[;,]", done.headers["set-cookie"]) if "session=" in one)


FORM = "application/x-www-form-urlencoded"


def test_a_page_makes_and_revokes_tokens_with_its_own_forms_alone(
    served: ServerProcess, people: Mapping[str, str]
) -> None:
    cookie = signed(served, people["cleo"])

    def sent(said: dict[str, str]) -> HttpResponse:
        return served.request("/mine/account", "POST", urlencode(said).encode(), Content_Type=FORM, Cookie=cookie)

    page = served.request("/mine/account", Cookie=cookie)
    assert page.headers["cache-control"] == "private, no-store"
    found = re.search(r'name="word" value="([^"]+)"', page.body.decode())
    assert found is not None
    word = {"word": found[1]}
    wanted = {"what": "make", "scope": "read", "days": "3", "label": "<b>\0"}
    assert sent(wanted).status == sent({**wanted, "word": "x"}).status == 403
    told = re.search(r"shown only once: <code>(nip_[^<]+)", sent({**wanted, **word}).body.decode())
    assert told is not None
    assert served.request("/api/v1", token=told[1]).json["account"] == "cleo"
    assert b"&lt;b&gt;" in served.request("/mine/account", Cookie=cookie).body
    assert sent({"what": "make", "scope": "admin", "days": "3", **word}).status == 400
    assert sent({"what": "revoke", "token": told[1].split("_")[1], **word}).status == 303
    assert served.request("/api/v1", token=told[1]).status == 401
    assert sent({"what": "set", "name": "guild", "account": "cleo", **word}).status == 400


def test_a_browser_of_a_token_that_reads_changes_nothing(served: ServerProcess, people: Mapping[str, str]) -> None:
    cookie = signed(served, people["ben-reads"])
    word = re.search(r'name="word" value="([^"]+)"', served.request("/mine", Cookie=cookie).body.decode())
    assert word is not None
    body = urlencode({"what": "make", "scope": "read", "days": "3", "word": word[1]}).encode()
    done = served.request("/mine/account", "POST", body, Content_Type=FORM, Cookie=cookie)
    assert (done.status, b"token of scope read" in done.body) == (400, True)
    assert b'value="make"' not in done.body
