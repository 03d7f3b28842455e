"""Results and transcripts in a notebook: HTML without a script, a style sheet or a link; figures as SVG and rows."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from runner import RunResult, Transcript, UsageError, load_spec, open_run, run
from runner.rollouts.transcript import DeliveredMessage
from tests.support.paths import ROOT

HOSTILE = (
    "</div></style><script>alert(1)</script><img src=x onerror=alert(1)> javascript:x \x00\x1b[31m\u202e \" onload='1'"
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    spec = load_spec(ROOT / "specs" / "quickstart.yaml", {"dataset.limit": 2})
    return run(spec, tmp_path_factory.mktemp("shown") / "results")


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def game(result: RunResult) -> Transcript:
    [first, *_] = result.rollouts().select("rollout_id").fetchall()
    return result.transcript(first[0])


def test_a_result_shows_its_status_its_numbers_and_its_agents(result: RunResult) -> None:
    seen = Elements(result._repr_html_())
    assert result.accuracy is not None
    for words in (result.run_id, "done", f"{result.accuracy.value:.3f}", "prover", "verifier", "2 games"):
        assert words in seen.text


def test_an_opened_run_shows_itself_as_well(result: RunResult) -> None:
    assert open_run(result.path)._repr_html_() == result._repr_html_()


def test_a_transcript_is_shown_whole(result: RunResult) -> None:
    shown = game(result)
    seen = Elements(shown._repr_html_())
    assert all(message.text in seen.text for message in shown.messages)
    assert "verdict: " in seen.text


def test_what_a_stranger_wrote_is_inert_in_a_notebook(result: RunResult) -> None:
    true = game(result)
    hostile = dataclasses.replace(
        true, messages=(DeliveredMessage(0, HOSTILE, HOSTILE, HOSTILE),), columns={HOSTILE: HOSTILE}, error=HOSTILE,
        datapoint_id=HOSTILE, rewards={HOSTILE: 1.0},
    )  # fmt: skip
    manifest = dataclasses.replace(result.manifest, run_id=HOSTILE, protocol=HOSTILE, why_stopped=HOSTILE)
    for html in (hostile._repr_html_(), dataclasses.replace(result, manifest=manifest)._repr_html_()):
        seen = Elements(html)
        assert seen.tags <= {
            "div",
            "p",
            "strong",
            "span",
            "details",
            "summary",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
        assert seen.attributes <= {"style", "class", "title"}
        assert "<script>alert(1)</script>" in seen.text
        assert not re.search("[\x00\x1b\u202e]", html)
        assert all("url(" not in style and HOSTILE[:5] not in style for style in re.findall('style="([^"]*)"', html))


def test_a_figure_is_shown_as_svg_and_has_its_rows(result: RunResult, tmp_path: Path) -> None:
    plot = result.plot("outcomes")
    assert ET.fromstring(plot._repr_svg_()).tag.endswith("svg")
    assert [row["games"] for row in plot.rows if row["outcome"] == "decided"] == [2]
    plot.save(tmp_path / "f.svg", "page")
    assert ET.parse(tmp_path / "f.svg").getroot().get("width") == "6.75in"
    with pytest.raises(UsageError, match=r"must end in [.]svg, [.]pdf or [.]png"):
        plot.save(tmp_path / "f.gif")


def test_there_is_no_figure_of_another_name(result: RunResult) -> None:
    with pytest.raises(UsageError, match="did you mean 'outcomes'"):
        result.plot("outcome")
