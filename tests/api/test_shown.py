"""Results and transcripts in notebooks: HTML without scripts, style sheets or links, and figures as SVG and rows."""

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


def read_transcript(result: RunResult) -> Transcript:
    [first, *_] = result.rollouts().select("rollout_id").fetchall()
    return result.transcript(first[0])


def test_result_html_has_its_status_numbers_and_agents(result: RunResult) -> None:
    elements = Elements(result._repr_html_())
    assert result.accuracy is not None
    for text in (result.run_id, "done", f"{result.accuracy.value:.3f}", "prover", "verifier", "2 games"):
        assert text in elements.text


def test_opened_run_has_the_same_html_as_its_result(result: RunResult) -> None:
    assert open_run(result.path)._repr_html_() == result._repr_html_()


def test_transcript_html_has_all_messages(result: RunResult) -> None:
    transcript = read_transcript(result)
    elements = Elements(transcript._repr_html_())
    assert all(message.text in elements.text for message in transcript.messages)
    assert "verdict: " in elements.text


def test_hostile_text_is_escaped_in_notebook_html(result: RunResult) -> None:
    original = read_transcript(result)
    hostile = dataclasses.replace(
        original, messages=(DeliveredMessage(0, HOSTILE, HOSTILE, HOSTILE),), columns={HOSTILE: HOSTILE}, error=HOSTILE,
        datapoint_id=HOSTILE, rewards={HOSTILE: 1.0},
    )  # fmt: skip
    manifest = dataclasses.replace(result.manifest, run_id=HOSTILE, protocol=HOSTILE, why_stopped=HOSTILE)
    for html in (hostile._repr_html_(), dataclasses.replace(result, manifest=manifest)._repr_html_()):
        elements = Elements(html)
        assert elements.tags <= {
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
        assert elements.attributes <= {"style", "class", "title"}
        assert "<script>alert(1)</script>" in elements.text
        assert not re.search("[\x00\x1b\u202e]", html)
        assert all("url(" not in style and HOSTILE[:5] not in style for style in re.findall('style="([^"]*)"', html))


def test_figure_has_svg_and_rows(result: RunResult, tmp_path: Path) -> None:
    plot = result.plot("outcomes")
    assert ET.fromstring(plot._repr_svg_()).tag.endswith("svg")
    assert [row["games"] for row in plot.rows if row["outcome"] == "decided"] == [2]
    plot.save(tmp_path / "f.svg", "page")
    assert ET.parse(tmp_path / "f.svg").getroot().get("width") == "6.75in"
    with pytest.raises(UsageError, match=r"must end in [.]svg, [.]pdf or [.]png"):
        plot.save(tmp_path / "f.gif")


def test_unknown_figure_name_is_refused(result: RunResult) -> None:
    with pytest.raises(UsageError, match="did you mean 'outcomes'"):
        result.plot("outcome")
