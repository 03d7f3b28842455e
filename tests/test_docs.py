"""The README and the pages in docs/ cannot drift from the code: their commands, keys, files and outputs exist."""

from __future__ import annotations

import html
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from runner.cli.commands import COMMANDS
from runner.cli.main import load_command
from runner.game.prompts.templates import VARIABLES
from runner.results.leaderboard.schema import COMPARISON_COLUMNS, definitions
from runner.results.metric_table import METRICS
from runner.results.notes import NOTE_COLUMNS
from runner.results.tables import COLUMNS
from runner.spec.schemas import experiment_schema
from tests.support.documentation import SHOWN, reference, with_metric_tables
from tests.support.paths import ROOT
from tests.support.processes import python
from tests.test_structure import ORDER

README = (ROOT / "README.md").read_text("utf-8")
PAGES = {path.name: path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
TEXT = "\n".join(PAGES.values())


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("nip-run ")]
    return [list(one) for one in dict.fromkeys(map(tuple, words))]


def keys(node: object, path: tuple[str, ...] = ()) -> set[str]:
    """Every key that the schema knows, by name."""
    found: set[str] = set()
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "properties":
                found |= set(value)
            found |= keys(value, (*path, name))
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_pages_is_one(words: list[str]) -> None:
    import argparse

    name = words[1] if words[1] in COMMANDS else "run"
    parser = argparse.ArgumentParser(exit_on_error=False)
    load_command(name).add_arguments(parser)
    parser.add_argument("--results")
    # As main() parses: options may stand between words.
    parsed, unknown = parser.parse_known_intermixed_args(words[1:] if name != words[1] else words[2:])
    assert not unknown
    for word in getattr(parsed, "words", []):
        if word.endswith(".yaml") and "mine" not in word:
            assert (ROOT / word).is_file(), word


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(specs/[\w./-]+\.yaml)`", TEXT))))
def test_every_spec_of_the_pages_is_there(path: str) -> None:
    assert path == "specs/mine.yaml" or (ROOT / path).is_file()


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block[:30])
def test_every_yaml_of_the_pages_has_known_keys(block: str) -> None:
    data = yaml.safe_load(block)
    protocol = "cycle" in data or "parameters" in data
    known = keys(experiment_schema()) if not protocol else None
    for name, value in data.items():
        if known is not None:
            assert name in known | {"extends"}
            if isinstance(value, dict) and name not in ("models", "agents", "sweep"):
                assert set(value) <= known, name


def test_the_first_spec_explained_is_the_quickstart(tmp_path: Path) -> None:
    explained = next(yaml.safe_load(block) for block in blocks("yaml", README) if "name: quickstart" in block)
    from runner.rollouts.plan import Plan
    from runner.spec.loader import load_spec

    file = tmp_path / "explained.yaml"
    file.write_text(yaml.safe_dump(explained), "utf-8")
    assert Plan(load_spec(file)).identity == Plan(load_spec(ROOT / "specs" / "quickstart.yaml")).identity


def test_the_council_of_the_protocols_page_is_a_protocol(tmp_path: Path) -> None:
    from runner.game.protocols.loader import load_protocol

    text = next(block for block in blocks("yaml") if "name: council" in block)
    (tmp_path / "council.yaml").write_text(text, "utf-8")
    protocol = load_protocol("council.yaml", folder=tmp_path)
    assert "chamber" not in protocol.visible_channels("verifier")
    assert [list(protocol.can_be_active(i)) for i in range(4)] == [["verifier"], ["scout"], ["critic"], ["chair"]]


def test_the_protocols_page_names_every_variable_of_templates() -> None:
    assert all(f"`{name}`" in PAGES["protocols.md"] for name in VARIABLES)


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert len(README.splitlines()) <= 165
    linked = set(re.findall(r"\]\(([^)#:]+)\)", README))
    assert {f"docs/{name}" for name in PAGES if name != "README.md"} <= linked


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_to_a_file(name: str) -> None:
    folder = ROOT if name == "README.md" else ROOT / "docs"
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGES[name]):
        assert (folder / link).is_file(), link


def test_the_reference_is_what_the_schema_says() -> None:
    assert reference(experiment_schema()) == PAGES["spec-reference.md"], "make it again: python docs/make.py"


def test_the_tables_of_the_page_about_metrics_are_those_of_the_table_of_metrics() -> None:
    assert with_metric_tables(PAGES["metrics.md"]) == PAGES["metrics.md"], "make it again: python docs/make.py"
    named = set(re.findall(r"^\| `(\w+)`", PAGES["metrics.md"], re.MULTILINE))
    assert {metric.base_name for metric in METRICS.values()} <= named


def test_the_picture_shows_commands() -> None:
    written = html.unescape(re.sub("<[^>]+>", "", (ROOT / "docs" / "terminal.svg").read_text("utf-8")))
    shown = re.findall(r"^ *\$ (.*)$", written.replace("\xa0", " "), re.MULTILINE)
    assert tuple(shown) == SHOWN, "make it again: python docs/make.py"


HEADINGS = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
"""`Unreleased` and each release, the newest first."""
RELEASED = next(one for one in HEADINGS if one != "Unreleased")


def test_the_citation_has_the_version_the_licence_and_the_paper() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (cited["title"], cited["license"], cited["type"]) == (project["name"], project["license"], "software")
    assert cited["version"] == RELEASED
    assert cited["references"][0]["url"] in README


@pytest.mark.parametrize("sql", dict.fromkeys(re.findall(r'nip-run sql "(.*?)"', TEXT)))
def test_every_question_of_the_pages_has_an_answer(sql: str) -> None:
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(definitions())
    tables = {name: COLUMNS[name] for name in ("messages", "completions")}
    tables |= {"comparisons": COMPARISON_COLUMNS, "notes": NOTE_COLUMNS}
    for name, kinds in tables.items():
        columns = ", ".join(f"{column} {kind}" for column, kind in kinds.items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(sql)
    connection.close()


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = blocks("python", README)
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "decided" in done.stdout


@pytest.mark.parametrize(("page", "prints"), [("agent.md", 15), pytest.param("python.md", 10, marks=pytest.mark.full)])
def test_the_python_of_a_page_prints_what_is_promised(page: str, prints: int, tmp_path: Path) -> None:
    code = "\n".join(blocks("python", PAGES[page]))
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"# -> (.*)", code)
    assert len(promised) >= prints
    assert done.stdout.splitlines() == promised


def test_the_changelog_knows_the_version() -> None:
    """The newest release; what comes after it is called a development version, so that nobody takes it for that."""
    from runner.version import __version__

    assert __version__ == RELEASED if HEADINGS[0] == RELEASED else ".dev" in __version__
    assert __version__.partition(".dev")[0] not in HEADINGS[1:]


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_the_files_that_contributors_read_of_exist() -> None:
    paths = re.findall(r"`([\w.]+/[\w/.]*)`", CONTRIBUTING)
    assert len(paths) >= 40
    missing = [path for path in paths if not ((ROOT / path).exists() or (ROOT / "runner" / path).exists())]
    assert missing == []


def test_the_order_that_contributors_read_is_the_one_that_is_tested() -> None:
    quoted = " ".join(re.findall(r"^> (.*)$", CONTRIBUTING, re.MULTILINE))
    assert tuple(name.strip() for name in quoted.split("<")) == ORDER
