"""Model shutdowns by OpenAI: the table of dates, the warnings of `check`, and the models that nip-run recommends."""

from __future__ import annotations

import inspect
import json
import re
from datetime import date
from pathlib import Path

import pytest
from openai.types.shared import chat_model

from runner.models.retirements import (
    model_shutdown_facts,
    retirement_warnings,
    shutdown_notes,
    shutdown_of,
    shutdowns,
)
from runner.models.settings import ModelSettings
from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import warnings_of
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file

LAST_DAY = date(2027, 1, 14)
EXEMPT_FILES = {
    "specs/base/paper/base.yaml": "the models of the paper, whose results these specs reproduce",
    "specs/paper/sizes_nip.yaml": "the models of the paper, whose results these specs reproduce",
    "docs/reference/from-the-original.md": "says what the original project's default was",
}
"""Files that may name retired models, each with the reason."""
RECOMMENDING_FILES = sorted(
    path
    for pattern in (
        "README.md", "docs/**/*.md", "specs/**/*.yaml", "specs/**/*.json", "specs/**/*.py", "runner/starter/**/*",
        "runner/cli/*.py", "runner/spec/*.py", "runner/models/settings.py",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and "__pycache__" not in path.parts
)  # fmt: skip
MODEL_NAME = re.compile(r"\b(?:ft:)?((?:chat)?gpt-[a-z0-9.-]*[a-z0-9]|o\d(?:-[a-z0-9-]*[a-z0-9])?)\b")


def list_warnings(today: date, **settings: object) -> list[str]:
    return list(retirement_warnings({"m": ModelSettings(**settings)}, today))  # type: ignore[arg-type]


# The table


@pytest.mark.full  # a later client may announce more dates; then update the table
def test_table_contains_every_date_announced_by_the_installed_client() -> None:
    docstring = re.sub(r"\s+", " ", inspect.getsource(chat_model).partition("Deprecated values:")[2])
    announced = {
        name: date.fromisoformat(day)
        for names, day in re.findall(r'- ((?:"[^"]+",? ?)+): Announced shutdown date: (\S+)\.', docstring)
        for name in re.findall(r'"([^"]+)"', names)
    }
    assert len(announced) > 60
    assert {name: shutdowns().get(name) for name in announced} == announced


@pytest.mark.parametrize(
    ("model", "day"),
    [
        ("gpt-4o-mini", LAST_DAY),
        ("gpt-4o-mini-2024-07-18", LAST_DAY),
        ("gpt-4o-mini-2029-01-01", LAST_DAY),
        ("ft:gpt-4o-mini:acme::abc", LAST_DAY),
        ("ft:gpt-4o-mini-2024-07-18:acme:suffix:abc:ckpt-step-80", LAST_DAY),
        ("gpt-4o-2024-05-13", date(2026, 10, 23)),
        ("gpt-4-0613", date(2026, 10, 23)),
        ("gpt-4-0314", date(2026, 3, 26)),
        ("gpt-6-luna", None),
        ("gpt-4o-minimal", None),
        ("gpt-40", None),
        ("o300", None),
        ("ft:", None),
    ],
)
def test_snapshots_and_fine_tunes_use_the_date_of_their_base_model(model: str, day: date | None) -> None:
    assert shutdown_of(model) == day


# Warnings


@pytest.mark.parametrize(
    ("today", "expected_text"),
    [
        (date(2026, 11, 14), None),
        (date(2026, 11, 15), "shuts gpt-4o-mini down on 2027-01-14 (in 60 days)"),
        (date(2027, 1, 13), "shuts gpt-4o-mini down on 2027-01-14 (tomorrow)"),
        (date(2027, 1, 14), "has shut gpt-4o-mini down (on 2027-01-14, so calls to it fail)"),
        (date(2031, 1, 1), "has shut gpt-4o-mini down (on 2027-01-14, so calls to it fail)"),
    ],
)
def test_warnings_begin_60_days_before_a_shutdown_and_continue_after_it(today: date, expected_text: str | None) -> None:
    lines = list_warnings(today, model="gpt-4o-mini")
    assert [expected_text is not None and expected_text in line for line in lines] == [True] * (
        expected_text is not None
    )


@pytest.mark.parametrize(
    ("address", "is_warned"),
    [
        (None, True),
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://127.0.0.1:8000/v1", False),
        ("https://acme.openai.azure.com/openai/v1", False),
        ("https://api.openai.com.example.org/v1", False),
        (("http://gpu1:8000/v1", "http://gpu2:8000/v1"), False),
    ],
)
def test_only_models_at_openai_are_warned_about(address: str | tuple[str, ...] | None, is_warned: bool) -> None:
    settings = ModelSettings(model="gpt-4o", base_url=address)
    assert bool(list(retirement_warnings({"m": settings}, LAST_DAY))) is is_warned
    assert bool(model_shutdown_facts([settings])) is is_warned


def test_dummy_model_may_have_the_name_of_a_retired_model() -> None:
    assert list_warnings(LAST_DAY, provider="dummy", model="gpt-4o") == []


def test_release_records_shutdown_dates_independent_of_the_clock() -> None:
    facts = model_shutdown_facts([ModelSettings(model="gpt-4o"), ModelSettings(model="gpt-6-luna")])
    assert facts == {"shutdowns": {"gpt-4o": "2027-01-14"}}
    assert list(shutdown_notes(facts)) == ["OpenAI shuts gpt-4o down on 2027-01-14; after that, calls to it fail"]
    assert model_shutdown_facts([ModelSettings(model="gpt-6-luna")]) == {}


def test_check_and_run_warn_about_a_retired_model(tmp_path: Path) -> None:
    overrides = ["models.m.base_url=null", "models.m.model=ft:gpt-3.5-turbo-0613:acme::abc"]
    spec_file(tmp_path, "http://127.0.0.1:9/v1")
    done = nip_run_here("check", "spec.yaml", *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: models.m: OpenAI has shut ft:gpt-3.5-turbo-0613:acme::abc down" in " ".join(done.stderr.split())
    (report,) = json.loads(nip_run_here("check", "spec.yaml", *overrides, "--json", cwd=tmp_path).stdout)
    assert any("has shut" in line for line in report["warnings"])
    run = nip_run_here("spec.yaml", *overrides, cwd=tmp_path)  # without a key, so no request is sent
    assert "has shut" in run.stderr


# What nip-run recommends


def test_no_shipped_file_recommends_a_model_with_a_shutdown_date() -> None:
    for path in RECOMMENDING_FILES:
        if str(path.relative_to(ROOT)) in EXEMPT_FILES:
            continue
        retired_names = {name for name in MODEL_NAME.findall(path.read_text("utf-8")) if shutdown_of(name) is not None}
        assert not retired_names, f"{path}: recommend a current model, or list the file in EXEMPT_FILES with the reason"


def test_every_exempt_file_still_names_a_retired_model() -> None:
    for name in EXEMPT_FILES:
        assert any(shutdown_of(model) for model in MODEL_NAME.findall((ROOT / name).read_text("utf-8"))), name


def test_shipped_examples_use_current_models_of_the_client() -> None:
    spec = load_spec(ROOT / "specs" / "openai.yaml")
    for settings in spec.experiment.models.values():
        assert f'"{settings.model}"' in inspect.getsource(chat_model).partition("Deprecated values:")[0]
    assert warnings_of(spec, today=date(2027, 12, 31)) == []


def test_check_warns_that_the_models_of_the_paper_are_retired() -> None:
    path = next(path for path in sorted((ROOT / "specs" / "paper").glob("*.yaml")) if "nip" in path.stem)
    lines = [line for line in warnings_of(load_spec(path, ["sweep={}"]), today=LAST_DAY) if "has shut" in line]
    assert any("models.verifier" in line for line in lines)
    assert any("models.provers" in line for line in lines)
