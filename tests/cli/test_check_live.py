"""`check --live`: its price, the features it detects on each server, and its advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.models.settings import ModelSettings
from runner.runs.planning.server_features import CONSECUTIVE, FEATURES, LOGPROBS, SCHEMA, SYSTEM, N, make_probe
from tests.support.processes import nip_run, nip_run_here
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.servers.messages_client import run_messages_server
from tests.support.specs import spec_file

ANSWER = '{"first_word": "Harbor", "second_word": "lantern"}'
PRICE = {"price": {"input": 1.0, "output": 2.0}, "max_tokens": 100}


def run_live_check(folder: Path, base_url: str, *, code: int = 0, key: str = "", **changes: Any) -> dict[str, Any]:
    """Run `check --live --json` and return its only report."""
    spec = spec_file(folder, base_url, models={"m": changes})
    process = nip_run_here("check", spec, "--live", "--json", cwd=folder, **({"MY_KEY": key} if key else {}))
    assert process.returncode == code, process.stdout + process.stderr
    (document,) = json.loads(process.stdout)
    (report,) = document["live"]
    assert isinstance(report, dict)
    return report


def read_feature_support(report: dict[str, Any]) -> dict[str, bool | None]:
    return {name: finding["supported"] for name, finding in report["features"].items()}


def read_request_bodies(server: LoopbackServer) -> list[dict[str, Any]]:
    return [json.loads(request["body"]) for request in server.recorded_requests()]


def test_live_check_prints_the_price_before_one_request_probes_all_features(tmp_path: Path) -> None:
    with run_chat_server(text=ANSWER, logprobs=True, cached_tokens=7, model="tiny-2026", record=9) as server:
        spec = spec_file(tmp_path, server.base_url, models={"m": PRICE})
        process = nip_run("check", spec, "--live", cwd=tmp_path)
        (body,) = read_request_bodies(server)
    assert process.returncode == 0, process.stderr
    price, report = process.stdout.split("live check of m: at most 1 request, ")[1].split("m: tiny at 127.0.0.1:")
    tokens, usd = price.split(" tokens, $")[0], float(price.split(" tokens, $")[1].split()[0])
    assert int(tokens) >= 2 * 100  # two answers of 100 tokens
    assert usd == pytest.approx((int(tokens) - 200) * 1.25e-6 + 200 * 2e-6, rel=0.02)  # if all of the prompt is cached
    lines = dict(line.strip().split("  ", 1) for line in report.splitlines()[1:] if "  " in line.strip())
    assert lines["model"].strip() == "tiny-2026; the spec asks for tiny"
    assert "(7 cached)" in lines["tokens"]
    assert [report.count(f"\n  {name:<18} yes\n") for name in FEATURES] == [1] * 5
    assert body["n"] == 2
    assert body["logprobs"] is True
    assert [message["role"] for message in body["messages"]] == ["system", "user", "user"]


def test_refused_combined_probe_is_followed_by_one_request_per_feature(tmp_path: Path) -> None:
    with run_chat_server(text="harbor", refused=["response_format"], max_n=1, record=9) as server:
        report = run_live_check(tmp_path, server.base_url)
        sent = read_request_bodies(server)
    assert read_feature_support(report) == {SYSTEM: True, CONSECUTIVE: None, LOGPROBS: False, N: False, SCHEMA: False}
    assert "Unsupported parameter: 'response_format'" in report["features"][SCHEMA]["reason"]
    assert report["requests"] == len(sent) == 7
    assert not {"response_format", "logprobs", "n"} & sent[1].keys(), "the second request is as in games"


def test_answer_that_the_token_limit_cut_off_shows_nothing_about_schemas(tmp_path: Path) -> None:
    with run_chat_server(text='{"first_word": "harbor', finish_reason="length") as server:
        finding = run_live_check(tmp_path, server.base_url)["features"][SCHEMA]
    assert finding["supported"] is None
    assert finding["reason"].endswith(
        "reached the token limit before its end; set a higher models.m.max_completion_tokens"
    )


def test_the_report_has_the_highest_possible_cost_if_the_price_is_known(tmp_path: Path) -> None:
    with run_chat_server(text=ANSWER) as server:
        report = run_live_check(tmp_path, server.base_url, price=PRICE["price"], max_tokens=100)
        assert 1e-6 * report["tokens"] <= report["cost_usd"] <= 2e-6 * report["tokens"]
        assert run_live_check(tmp_path, server.base_url)["cost_usd"] is None


def test_live_check_detects_a_strict_chat_template(tmp_path: Path) -> None:
    with run_chat_server(text=ANSWER, alternates=True, takes_system=False) as server:
        report = run_live_check(tmp_path, server.base_url)
    assert read_feature_support(report)[SYSTEM] is False
    assert read_feature_support(report)[CONSECUTIVE] is False
    assert report["error"] is None, "the spec's own chats work"
    with run_chat_server(text=ANSWER, alternates=True) as server:
        report = run_live_check(tmp_path, server.base_url, code=4, chat_format="openai")
    assert "models.m.chat_format to alternating" in report["error"]["next"]


@pytest.mark.parametrize(
    ("kind", "code", "name", "advice"),
    [
        ("unauthorized", 4, "key or account", "It comes from $MY_KEY; set a valid key"),
        ("insufficient_quota", 4, "key or account", "Add credit"),
        ("unknown_model", 4, "unknown model", "Check models.m.model ('tiny')"),
        ("unsupported_parameter", 4, "refused request", "models.m.temperature"),
        ("server_error", 1, "the server failed", "server's log"),
        ("rate_limit", 1, "rate limit", "models.m.requests_per_minute"),
    ],
)
def test_an_error_has_a_kind_and_a_next_step(tmp_path: Path, kind: str, code: int, name: str, advice: str) -> None:
    with run_chat_server(kind=kind) as server:
        report = run_live_check(tmp_path, server.base_url, code=code, key="sk-0123456789", api_key_env="MY_KEY")
    assert report["error"]["kind"] == name
    assert advice in report["error"]["next"]
    assert "sk-0123456789" not in json.dumps(report)


def test_missing_key_and_unreachable_server_are_reported(tmp_path: Path) -> None:
    with run_chat_server() as server:
        report = run_live_check(tmp_path, server.base_url, code=4, api_key_env="MY_KEY")
        assert server.stats()["requests"] == 0
    assert "set MY_KEY to the API key" in report["error"]["next"]
    report = run_live_check(tmp_path, server.base_url, code=1)
    assert report["error"]["kind"] == "no server"
    assert "start the server, or correct models.m.base_url" in report["error"]["next"]
    assert "ssl" not in report["error"]["message"]  # the connection has no TLS
    assert report["requests"] == 0  # none was sent, since there was no connection


def test_temporary_rate_limit_is_listed_as_retried(tmp_path: Path) -> None:
    with run_chat_server(text=ANSWER, faults={"rate_limit": 1.0}, max_faults=1) as server:
        report = run_live_check(tmp_path, server.base_url)
    assert report["error"] is None
    assert "answered 429" in report["retried"][0]


def test_the_budget_limits_the_check_and_includes_what_the_run_has_spent(tmp_path: Path) -> None:
    with run_chat_server(text=ANSWER, seed=3) as server:
        spec = spec_file(tmp_path, server.base_url, models={"m": PRICE}, budget={"completions": 2})
        process = nip_run_here(spec, "dataset.limit=1", "protocol.max_message_rounds=1", cwd=tmp_path)
        played = server.stats()["requests"]
        process = nip_run_here(
            "check", spec, "--live", "dataset.limit=1", "protocol.max_message_rounds=1",
            f"budget.completions={played}", cwd=tmp_path,
        )  # fmt: skip
        assert server.stats()["requests"] == played
    assert process.returncode == 3
    assert f"{played} of {played} spent" in process.stdout


def test_anthropic_is_checked_through_its_own_api(tmp_path: Path) -> None:
    with run_messages_server(text=ANSWER, record=9) as server:
        settings: dict[str, Any] = {"provider": "anthropic", "api_key_env": "MY_KEY", "max_tokens": 50}
        report = run_live_check(tmp_path, server.base_url, key="sk-0123456789", **settings)
        (body,) = read_request_bodies(server)
    assert read_feature_support(report) == {SYSTEM: True, CONSECUTIVE: True, LOGPROBS: False, N: False, SCHEMA: True}
    assert body["output_config"]["format"]["type"] == "json_schema"
    assert body["max_tokens"] == 50


def test_offline_providers_get_no_request(tmp_path: Path) -> None:
    process = nip_run_here("check", spec_file(tmp_path), "--live", cwd=tmp_path)
    assert process.returncode == 0
    assert "no model group calls a server" in process.stdout


def test_probe_without_features_has_the_messages_of_a_game_request() -> None:
    alternating = make_probe(ModelSettings(model="a", chat_format="alternating", system_role="user"), ())
    assert [message["role"] for message in alternating.messages] == ["user"]
    with_system = make_probe(ModelSettings(model="a", chat_format="alternating"), ())
    assert [message["role"] for message in with_system.messages] == ["system", "user"]
    openai = make_probe(ModelSettings(model="a", chat_format="openai"), ())
    assert [message["role"] for message in openai.messages] == ["system", "user", "user"]


def test_an_empty_answer_below_the_token_limit_is_not_blamed_on_the_limit(tmp_path: Path) -> None:
    with run_chat_server(text="") as server:
        findings = run_live_check(tmp_path, server.base_url)["features"]
    assert {finding["reason"] for name, finding in findings.items() if name != N} == {"the answer has no text"}


def test_check_warns_if_even_the_shortest_games_cost_more_than_the_budget(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, "http://127.0.0.1:9", models={"m": PRICE})
    warning = "warning: even the shortest games cost about $"
    assert warning in nip_run_here("check", spec, "budget.usd=0.000001", cwd=tmp_path).stdout
    assert warning not in nip_run_here("check", spec, "budget.usd=9", cwd=tmp_path).stdout
