"""The matrix of datapoints by runs, and the names and stances of players at their messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PageOpener
from tests.support.report_pages import report
from tests.support.runs import run_spec
from tests.support.specs import debate_with_hints, spec_file

ROWS = "section.page:not([hidden]) tbody tr"


@pytest.fixture
def debates(tmp_path: Path) -> tuple[Path, list[dict[str, bool]]]:
    """The report of two debate runs, and for each run whether each datapoint was judged correctly."""
    path = debate_with_hints(tmp_path)
    verdicts = []
    for seed in (1, 2):
        rules = {"use": "debate", "min_message_rounds": 3, "max_message_rounds": 5}
        spec = json.loads(path.read_text())
        path.write_text(json.dumps({**spec, "seed": seed, "name": f"debate-{seed}", "protocol": rules}))
        run = run_spec(path, tmp_path / "results")
        rows = run.rollouts().select("datapoint_id, correct").fetchall()
        verdicts.append({datapoint: bool(correct) for datapoint, correct in rows})
    page = tmp_path / "report.html"
    page.write_bytes(report(*sorted((tmp_path / "results" / "runs").iterdir())))
    return page, verdicts


def read_matrix(page: Any) -> dict[str, list[bool]]:
    page.locator(ROWS).first.wait_for()
    cells = [row.locator("th, td").all_inner_texts() for row in page.locator(ROWS).all()]
    return {datapoint: [cell == "right" for cell in rest] for datapoint, _, *rest in cells}


def test_matrix_shows_each_verdict_and_its_filters_change_the_url(
    debates: tuple[Path, list[dict[str, bool]]], open_watched: PageOpener
) -> None:
    path, verdicts = debates
    page = open_watched(viewport={"width": 360, "height": 700}).open(path)
    page.get_by_role("link", name="Datapoints", exact=True).click()
    assert read_matrix(page) == {
        datapoint: [run_verdicts[datapoint] for run_verdicts in verdicts] for datapoint in verdicts[0]
    }
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.get_by_role("link", name="Runs differ").click()
    differing = {datapoint for datapoint in verdicts[0] if verdicts[0][datapoint] != verdicts[1][datapoint]}
    page.wait_for_function(f"document.querySelectorAll('{ROWS}').length === {len(differing)}")
    assert differing
    assert set(read_matrix(page)) == differing
    assert "only=differ" in page.url


def test_lost_game_is_marked_in_the_matrix_and_is_not_counted_as_wrong(
    tmp_path: Path, open_watched: PageOpener
) -> None:
    lost = {"rollouts": {"max_transport_failed": 1.0}, "retry": {"transient": {"attempts": 1}}, "seed": 8}
    run_spec(spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results")
    run_spec(spec_file(tmp_path, "http://127.0.0.1:9/v1", size=4, fine_tune=None, **lost), tmp_path / "results")
    path = tmp_path / "report.html"
    path.write_bytes(report(*sorted((tmp_path / "results" / "runs").iterdir())))
    page = open_watched().open(path, "matrix")
    page.locator(ROWS).first.wait_for()
    cells = [row.locator("td").all_inner_texts()[1:] for row in page.locator(ROWS).all()]
    assert [row.count("transport failed") for row in cells] == [1] * 4
    wrong = sum("not right" in row for row in cells)
    page.get_by_role("link", name="Runs differ").click()
    page.wait_for_function(f"document.querySelectorAll('{ROWS}').length === 0")
    page.get_by_role("link", name="Wrong in every run").click()
    page.wait_for_function(f"document.querySelectorAll('{ROWS}').length === {wrong}")


def test_search_finds_datapoints_beyond_the_first_500(tmp_path: Path, open_watched: PageOpener) -> None:
    size = 620
    for seed in (1, 2):
        run_spec(spec_file(tmp_path, size=size, seed=seed, name=f"seed-{seed}", fine_tune=None), tmp_path / "results")
    path = tmp_path / "report.html"
    path.write_bytes(report(*sorted((tmp_path / "results" / "runs").iterdir())))
    page = open_watched(viewport={"width": 360, "height": 700}).open(path, "matrix")
    page.locator(ROWS).first.wait_for()
    more = page.get_by_role("button", name="Show more")
    drawn = page.locator(f"{ROWS} th").all_inner_texts()
    assert len(drawn) == 500
    count = page.locator("p.count:visible")
    assert count.inner_text().startswith(f"{size} of {size} datapoints")
    assert "the first 500 are shown" in count.inner_text()
    more.click()
    assert page.locator(ROWS).count() == size
    assert more.is_hidden()
    last = page.locator(f"{ROWS} th").last.inner_text()
    assert last not in drawn
    page.reload()
    page.locator(ROWS).first.wait_for()
    page.get_by_role("searchbox").fill(last.upper())
    page.wait_for_function(f"document.querySelectorAll('{ROWS}').length < 500")
    assert last in page.locator(f"{ROWS} th").all_inner_texts()
    assert more.is_hidden()
    address = page.url
    page.get_by_role("link", name="Right in every run").click()
    page.wait_for_function("location.hash.includes('only=right')")
    assert f"q={last.upper()}" in page.url, "a filter leaves the search as it is"
    page.goto(address)
    page.reload()
    page.locator(ROWS).first.wait_for()
    assert last in page.locator(f"{ROWS} th").all_inner_texts()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_messages_show_the_players_names_and_stance(
    debates: tuple[Path, list[dict[str, bool]]], open_watched: PageOpener
) -> None:
    path, _ = debates
    page = open_watched().open(path)
    page.get_by_role("link", name="Datapoints", exact=True).click()
    page.locator(f"{ROWS} td a").first.click()
    page.locator("article.turn h5").first.wait_for()
    headings = {re.sub(r"\s+", " ", text) for text in page.locator("article.turn h5").all_inner_texts()}
    provers = sorted(heading for heading in headings if heading.startswith("prover"))
    assert provers
    assert all(re.match(r"prover\d \(Expert_\d\) ?argues for (accept|reject)", heading) for heading in provers)
    assert len({heading.split()[-1] for heading in provers}) == 2
    page.get_by_role("button", name="As prover1 saw it").click()
    page.wait_for_function("!document.querySelector('article.turn.asks .badge')")
    prover_headings = [text for text in page.locator("article.turn h5").all_inner_texts() if text.startswith("prover0")]
    assert not any("argues" in text for text in prover_headings), "an agent does not see the other's stance"
