"""Every template renders with the views that the pages give it."""

from __future__ import annotations

import shutil
from pathlib import Path

import jinja2
import pytest

import runner.pages
from runner.pages.boards.lists import local_board
from runner.pages.boards.page import board_site
from runner.pages.html import _environment
from runner.pages.report.notebook import run_html, transcript_html
from runner.pages.report.run_site import runs_site
from runner.pages.site import as_index
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from tests.support.analyses import write_analysis, yes
from tests.support.paths import ROOT
from tests.support.runs import run_spec

OLD_RESULTS = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
TEMPLATES = Path(runner.pages.__file__).parent / "templates"


@pytest.mark.full
def test_every_report_template_renders_without_undefined_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Path(shutil.copytree(OLD_RESULTS, tmp_path / "results"))
    quickstart = ROOT / "specs" / "quickstart.yaml"
    finished = run_spec(quickstart, results, "dataset.limit=6", "verdict.confidence=stated")
    write_analysis(finished.path, lambda number, _: [yes(number < 2)])
    data: dict[str, bytes] = {}
    rendered: set[str] = set()
    get_source = jinja2.FileSystemLoader.get_source

    def record(loader: jinja2.FileSystemLoader, environment: jinja2.Environment, template: str) -> object:
        rendered.add(template)
        return get_source(loader, environment, template)

    monkeypatch.setattr(jinja2.FileSystemLoader, "get_source", record)
    _environment.cache_clear()
    runs = [RunFolder(path) for path in sorted((results / "runs").iterdir()) if (path / "manifest.json").is_file()]
    as_index(runs_site(runs, data.__setitem__))
    as_index(board_site(local_board(Results(results)), data.__setitem__))
    run_html(RunFolder(finished.path).manifest(), RunFolder(finished.path).read_metrics())
    ((rollout,), *_) = finished.rollouts().project("rollout_id").fetchall()
    transcript_html(finished.transcript(rollout))
    all_templates = {path.relative_to(TEMPLATES).as_posix() for path in TEMPLATES.rglob("*.html")}
    unrendered = {name for name in all_templates if name.startswith("served/")}
    assert all_templates - rendered == {
        *unrendered,
        "audit.html",
        "tournament.html",
        "questions.html",
    }  # rendered in their own tests
