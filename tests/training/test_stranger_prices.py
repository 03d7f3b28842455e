"""Prices in fetched specs: they do not weaken the user's budget until the user confirms them."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from runner.base.errors import BudgetExhausted, UsageError
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.models import prices
from runner.spec.loader import load_spec
from runner.training.plan import plan_of
from runner.training.trust import check_trust, unconfirmed_prices
from tests.support.openai_calls import serve_openai_at
from tests.support.processes import nip_run_here
from tests.support.runs import run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.specs import spec_file

ZERO = {"price": {"input": 0.0, "output": 0.0}, "max_completion_tokens": 60}


@pytest.fixture
def fetched_folder(tmp_path: Path) -> Path:
    """A folder written by `get`."""
    folder = tmp_path / "got"
    folder.mkdir()
    (folder / MARKER).write_bytes(marker_bytes("run/acme/x@1", "0" * 64, "file:/r"))
    return folder


def write_openai_spec(folder: Path, **changes: Any) -> Path:
    models = {"m": {"model": "gpt-4o-mini", "base_url": None, **ZERO}}
    return spec_file(folder, "http://127.0.0.1:9/v1", size=40, models=models, fine_tune=None, **changes)


def price_lines(path: Path, *overrides: str) -> list[str]:
    return [line for _, line in unconfirmed_prices(plan_of(load_spec(path, overrides)))]


def test_price_of_a_fetched_spec_is_shown_next_to_the_known_one(fetched_folder: Path) -> None:
    (line,) = price_lines(write_openai_spec(fetched_folder))
    assert line.startswith("models.m.price: the spec says $0 in, $0 cached, $0 cache writes, $0 out for a million ")
    assert "; known price: $0.15 in, $0.075 cached, $0.15 cache writes, $0.6 out (genai-prices " in line
    assert "confirm it: 'models.m.price={input: 0, output: 0}'" in line


def test_all_token_classes_and_the_service_tier_of_both_prices_are_shown(fetched_folder: Path) -> None:
    price = {"input": 4.0, "output": 20.0, "reasoning": 90.0}
    model = {"model": "gpt-5.6-sol", "base_url": None, "price": price, "extra_body": {"service_tier": "priority"}}
    (line,) = price_lines(spec_file(fetched_folder, "http://127.0.0.1:9/v1", models={"m": model}, fine_tune=None))
    assert "says $4 in, $4 cached, $5 cache writes, $20 out, $90 reasoning for a million tokens of gpt-5.6-sol" in line
    assert "gpt-5.6-sol at service tier 'priority'; known price: $" in line
    assert "known price: $8 in, $0.8 cached, $10 cache writes, $40 out, $40 reasoning (genai" in line


def test_budget_uses_the_higher_price_until_the_user_confirms_the_fetched_one(
    fetched_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-of-prices")
    monkeypatch.setattr(prices, "today", lambda: date(2026, 11, 1))
    path = write_openai_spec(fetched_folder)
    with run_batch_provider() as provider:
        serve_openai_at(monkeypatch, provider.base_url)
        allowed = f"OPENAI_API_KEY={urlsplit(provider.base_url).netloc}"
        with pytest.raises(BudgetExhausted):
            run_spec(path, fetched_folder.parent / "results", "budget.usd=0.002", allow_keys=allowed)
        assert 0 < provider.billed_usd(0.15, 0.60) <= 0.002
        before = provider.stats()["billed"]["answers"]
        confirmed = ("budget.usd=0.002", "models.m.price={input: 0, output: 0}")
        result = run_spec(path, fetched_folder.parent / "confirmed", *confirmed, allow_keys=allowed)
        assert result.manifest.cost_usd == 0
        assert provider.stats()["billed"]["answers"] > 2 * before


def test_price_set_by_the_user_needs_no_confirmation(fetched_folder: Path, tmp_path: Path) -> None:
    path = write_openai_spec(fetched_folder)
    assert price_lines(path, "models.m.price={input: 1, output: 2}") == []
    assert len(price_lines(path, "models.m.price.output=2")) == 1, "the other price is still unconfirmed"
    assert price_lines(write_openai_spec(tmp_path)) == []


def test_sweep_of_a_fetched_spec_does_not_confirm_prices(fetched_folder: Path) -> None:
    path = write_openai_spec(fetched_folder, sweep={"models.m.price": [{"input": 0.0, "output": 0.0}]})
    assert len(price_lines(path)) == 1


def test_dollar_budget_is_rejected_if_only_the_fetched_spec_knows_the_price(fetched_folder: Path) -> None:
    models = {"m": {"model": "own", **ZERO}}
    path = spec_file(fetched_folder, "http://127.0.0.1:9/v1", size=2, models=models, fine_tune=None)
    host = ("--allow-host", "127.0.0.1:9")
    result = nip_run_here(path, "budget.usd=1", *host, cwd=fetched_folder.parent)
    assert result.returncode == 2
    assert "by a price that you have not confirmed; nothing was sent" in result.stderr
    assert "of own; no known price. A budget" in result.stderr
    assert not (fetched_folder.parent / "results").exists()
    confirmed = load_spec(path, ["budget.usd=1", "models.m.base_url=http://127.0.0.1:9/v1",
                                 "models.m.price={input: 0, output: 0}"])  # fmt: skip
    check_trust(plan_of(confirmed), None, [])
    with_completions_budget = load_spec(path, ["budget.completions=9", "models.m.base_url=http://127.0.0.1:9/v1"])
    check_trust(plan_of(with_completions_budget), None, [])


def test_saved_run_of_a_fetched_spec_keeps_its_price_unconfirmed(fetched_folder: Path) -> None:
    models = {"m": {"model": "own", **ZERO}}
    with run_batch_provider() as provider:
        path = spec_file(fetched_folder, provider.base_url, size=2, models=models, fine_tune=None)
        host = [f"127.0.0.1:{provider.port}"]
        run = run_spec(path, fetched_folder.parent / "results", allow_hosts=host).folder.path
    moved = fetched_folder.parent / "moved"
    shutil.copytree(run, moved)
    with pytest.raises(UsageError, match="a price that you have not confirmed"):
        check_trust(plan_of(load_spec(run, ["budget.usd=1", "models.m.base_url=http://127.0.0.1:9/v1"])), None, [])
