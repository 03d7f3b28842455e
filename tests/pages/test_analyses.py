"""Analyses on a run's page: the table of rates, and the data of answers for the script."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from runner.pages.report.run_analyses import analysis_rows
from runner.pages.report.run_site import runs_site
from runner.pages.site import as_one_file
from runner.results.folder import RunFolder
from tests.pages.test_hostile_text import find_faults
from tests.support.analyses import INSTRUMENT, write_analysis, yes
from tests.support.hostile_payloads import PAYLOADS
from tests.support.report_pages import ParsedPage, parse_page, visible_text
from tests.support.runs import run_spec
from tests.support.specs import spec_file

SPAN = {"agent": "verifier", "channel": "main", "round": 0, "start": 1, "end": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("analyses")
    return run_spec(spec_file(folder, size=4), folder / "results").folder


def load_page(run: RunFolder) -> tuple[ParsedPage, dict[str, Any]]:
    data: dict[str, bytes] = {}
    page = parse_page(b"".join(as_one_file(runs_site([run], data.__setitem__), data)))
    return page, {name: json.loads(gzip.decompress(piece)) for name, piece in data.items()}


def test_page_has_uncorrected_rates_and_unit_counts_by_status(run: RunFolder) -> None:
    units = [yes(True), yes(False), {"status": "no_answer"}, {"status": "not_applicable"}, {"status": "failed"}]
    write_analysis(run.path, lambda number, _: units)
    write_analysis(run.path, lambda number, _: [{"answer": "lie" if number else "none"}], "kind")
    kind, conformance = analysis_rows(run)
    assert (conformance.rates, conformance.validation) == ((("share of yes", "0.500"),), "not validated")
    assert dict(conformance.counts) == {"answered": 8, "no_answer": 4, "not_applicable": 4, "failed": 4}
    assert kind.rates == (("lie", "0.750"), ("none", "0.250"))
    page, data = load_page(run)
    assert "Rate, uncorrected" in page.text
    assert "not validated" in page.text
    assert INSTRUMENT in page.text
    answers = next(iter(data["r0-analyses"].values()))
    assert [answer["status"] for answer in answers[1:]] == ["answered", "answered", "no_answer", "failed"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("payload", [name for name in PAYLOADS if name != "lone surrogate"])
def test_hostile_analysis_is_shown_as_text(payload: str, run: RunFolder, tmp_path: Path) -> None:
    text = PAYLOADS[payload].replace("\x00", "")
    columns = {"answer": f"answer {text}", "reason": f"reason {text}", "model": f"model {text}", "spans": [SPAN]}
    write_analysis(run.path, lambda *_: [columns])
    page, data = load_page(run)
    assert find_faults(page) == []
    assert visible_text(f"answer {text}") in page.text
    assert visible_text(f"model {text}") in page.text
    assert all(answers[-1]["reason"] == f"reason {text}" for answers in data["r0-analyses"].values())


def test_run_without_analyses_has_no_analysis_table_or_data(tmp_path: Path) -> None:
    page, data = load_page(run_spec(spec_file(tmp_path, size=2), tmp_path / "results").folder)
    assert "Analyses" not in page.text
    assert "r0-analyses" not in data
