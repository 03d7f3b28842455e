"""The README and the pages in docs/ cannot drift from the code: commands, keys, files, outputs and links are checked.

Every code block runs, or is marked with what it needs: see `tests/support/documentation.py`.
"""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from runner.analysis.analyzer import analyzer_schema
from runner.base.exit_codes import ExitCode
from runner.cli.command_line import load_command
from runner.cli.commands import COMMANDS
from runner.curation.generation.recipe import recipe_schema
from runner.game.prompts.templates import VARIABLES
from runner.results.leaderboard.schema import ANALYZED_ROLLOUTS, COMPARISON_COLUMNS, definitions_sql
from runner.results.metric_definitions import METRICS
from runner.results.table_columns import ANALYSIS_COLUMNS, COLUMNS, NOTE_COLUMNS
from runner.spec.schemas import experiment_schema
from tests.support.documentation import (
    DOCUMENTED_COMMANDS,
    GENERATED,
    MARKS,
    anchors,
    blocks,
    build_script,
    executed_notebook,
    generated_pages,
    matches_output,
    pages,
    pair_outputs,
    prose_words,
    with_metric_tables,
)
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import environment, python
from tests.test_structure import ORDER

PAGES = pages()
README = PAGES["README.md"]
INDEX = PAGES["docs/index.md"]
TEXT = "\n".join(PAGES.values())
HANDWRITTEN_PAGES = {name: page for name, page in PAGES.items() if name not in GENERATED}

MAX_PAGE_WORDS = 1500
"""Maximum number of words of a page that is not generated."""
MAX_TOTAL_WORDS = 44_000
"""Maximum number of words of all pages that are not generated."""
LANGUAGES = {"sh", "python", "yaml", "toml", "json", "jinja", "text", "nginx"}


def list_blocks(language: str) -> list[str]:
    return [block.text for page in PAGES.values() for block in blocks(page, language)]


def list_commands() -> list[list[str]]:
    """Return the arguments of every nip-run command in the docs, up to the first shell operator."""
    found_commands = []
    for line in "".join(list_blocks("sh")).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        tokens = list(lexer) if line.startswith("nip-run ") else []
        end = next((index for index, token in enumerate(tokens) if set(token) <= set("<>|&;()")), len(tokens))
        found_commands += [tokens[:end]] if tokens else []
    return [list(tokens) for tokens in dict.fromkeys(map(tuple, found_commands))]


def list_schema_keys(node: object) -> set[str]:
    """Return the names of all keys in a schema."""
    names: set[str] = set()
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "properties":
                names |= set(value)
            names |= list_schema_keys(value)
    return names


def test_every_command_in_the_docs_is_valid() -> None:
    import argparse

    for arguments in list_commands():
        name = arguments[1] if arguments[1] in COMMANDS else "run"
        parser = argparse.ArgumentParser(exit_on_error=False)
        load_command(name).add_arguments(parser)
        parser.add_argument("--results")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("-v", "--verbose", action="count")
        # Parse like main(): options may be between positional arguments.
        options, unknown = parser.parse_known_intermixed_args(arguments[1:] if name != arguments[1] else arguments[2:])
        assert not unknown, arguments
        for argument in getattr(options, "words", []):
            if (
                argument.startswith("specs/")
                and argument.endswith(".yaml")
                and "mine" not in argument
                and "*" not in argument
            ):
                assert (ROOT / argument).is_file(), arguments


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(specs/[\w./-]+\.\w+)`", TEXT))))
def test_every_spec_named_in_the_docs_exists(path: str) -> None:
    assert path == "specs/mine.yaml" or (ROOT / path).is_file()


KEYS_OF_OTHER_TOOLS = ("runs-on:", "repos:")
"""Keys of YAML for GitHub and pre-commit."""


@pytest.mark.parametrize(
    "block",
    [block for block in list_blocks("yaml") if not any(key in block for key in KEYS_OF_OTHER_TOOLS)],
    ids=lambda block: block[:30],
)
def test_every_yaml_block_in_the_docs_has_known_keys(block: str) -> None:
    data = yaml.safe_load(block)
    if "question" in data or "tests" in data:
        assert set(data) <= list_schema_keys(analyzer_schema() if "question" in data else recipe_schema())
        return
    protocol = "cycle" in data or "parameters" in data
    schema_keys = list_schema_keys(experiment_schema()) if not protocol else None
    for name, value in data.items():
        if schema_keys is not None:
            assert name in schema_keys | {"extends"}
            if isinstance(value, dict) and name not in ("models", "agents", "sweep"):
                assert set(value) <= schema_keys, name


def test_spec_in_the_readme_equals_the_quickstart(tmp_path: Path) -> None:
    spec = next(yaml.safe_load(block.text) for block in blocks(README, "yaml") if "name: quickstart" in block.text)
    from runner.rollouts.plan import Plan
    from runner.spec.loader import load_spec

    file = tmp_path / "explained.yaml"
    file.write_text(yaml.safe_dump(spec), "utf-8")
    assert Plan(load_spec(file)).identity == Plan(load_spec(ROOT / "specs" / "quickstart.yaml")).identity


def test_protocol_in_the_docs_can_be_loaded(tmp_path: Path) -> None:
    from runner.game.protocols.loader import load_protocol

    text = next(block for block in list_blocks("yaml") if "name: council" in block)
    (tmp_path / "council.yaml").write_text(text, "utf-8")
    protocol = load_protocol("council.yaml", folder=tmp_path)
    assert "chamber" not in protocol.visible_channels("verifier")
    assert [list(protocol.can_be_active(i)) for i in range(4)] == [["verifier"], ["scout"], ["critic"], ["chair"]]


def test_prompts_page_lists_every_template_variable() -> None:
    assert all(f"`{name}`" in PAGES["docs/how-to/write-prompts.md"] for name in VARIABLES)


@pytest.mark.gate
def test_environment_variables_page_is_complete() -> None:
    variables = {name for text in list_string_constants() for name in re.findall(r"NIP_RUN_[A-Z]+", text)}
    assert len(variables) >= 5
    assert all(f"`{name}`" in PAGES["docs/reference/environment-variables.md"] for name in variables)


def test_failures_page_lists_every_exit_code() -> None:
    assert all(f"\n| {code.value} |" in PAGES["docs/reference/failures.md"] for code in ExitCode)


def list_string_constants() -> list[str]:
    """Return the strings in the source of the runner."""
    trees = (ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "runner").rglob("*.py")))
    return [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.full
def test_every_message_on_the_troubleshooting_page_is_in_the_source() -> None:
    messages = re.findall(r"^\| `(.+?)` \|", PAGES["docs/reference/troubleshooting.md"], re.MULTILINE)
    source = "\n".join(list_string_constants())
    assert len(messages) >= 25
    assert [message for message in messages if message not in source] == []


# Layout and links


def test_readme_is_short_and_links_to_the_docs() -> None:
    assert len(README.splitlines()) <= 120
    assert "(docs/index.md)" in README


def iterate_navigation() -> Iterator[str]:
    """Yield the pages of the site in the order of its menu."""
    pending = [yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]]
    while pending:
        item = pending.pop(0)
        if isinstance(item, str):
            yield f"docs/{item}"
        else:
            pending[:0] = item if isinstance(item, list) else item.values()


def test_menu_and_index_link_to_every_page() -> None:
    all_pages = set(PAGES) - {"README.md"}
    assert set(iterate_navigation()) == all_pages
    linked = {f"docs/{link}" for link in re.findall(r"\]\(([\w/.-]+\.md)\)", INDEX)}
    assert linked == all_pages - {"docs/index.md"}


def list_links() -> list[tuple[str, str]]:
    texts = HANDWRITTEN_PAGES | {"CONTRIBUTING.md": CONTRIBUTING}
    texts |= {name: (ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "SECURITY.md")}
    return [
        (name, link)
        for name, page in texts.items()
        for link in dict.fromkeys(re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", page, flags=re.DOTALL)))
        if "://" not in link
    ]


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_every_link_has_an_existing_file_and_heading() -> None:
    broken = []
    for name, link in list_links():
        path, _, anchor = link.partition("#")
        target = ROOT / name if not path else (ROOT / name).parent / path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(f"{name}: {link}")
        elif name.startswith("docs/") and not target.resolve().is_relative_to(ROOT / "docs"):
            broken.append(f"{name}: {link} is not part of the site")
    assert broken == []


def test_every_docs_page_named_in_the_code_exists() -> None:
    paths = [*(ROOT / "runner").rglob("*.py"), *(ROOT / "specs").rglob("*.yaml"), *(ROOT / "benchmarks").rglob("*")]
    texts = [path.read_text("utf-8") for path in paths if path.is_file() and path.suffix in (".py", ".yaml", ".md")]
    pages = {name for text in texts for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert len(pages) >= 5
    assert [name for name in sorted(pages) if not (ROOT / name).is_file()] == []


def test_every_page_is_short() -> None:
    assert [name for name, text in HANDWRITTEN_PAGES.items() if prose_words(text) > MAX_PAGE_WORDS] == []


def test_total_length_of_the_docs_is_limited() -> None:
    assert sum(map(prose_words, HANDWRITTEN_PAGES.values())) <= MAX_TOTAL_WORDS


# Generated parts


@pytest.mark.parametrize("name", GENERATED)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert generated_pages()[name.removeprefix("docs/")] == PAGES[name], "generate it again: python docs/make.py"


def test_tables_of_the_metrics_page_are_up_to_date() -> None:
    page = PAGES["docs/reference/metrics.md"]
    assert with_metric_tables(page) == page, "generate them again: python docs/make.py"
    metrics = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert {metric.base_name for metric in METRICS.values()} <= metrics


def test_terminal_picture_shows_the_current_commands() -> None:
    text = html.unescape(re.sub("<[^>]+>", "", (ROOT / "docs" / "terminal.svg").read_text("utf-8")))
    commands_shown = re.findall(r"^ *\$ (.*)$", text.replace("\xa0", " "), re.MULTILINE)
    assert tuple(commands_shown) == DOCUMENTED_COMMANDS, "make it again: python docs/make.py"


# Code blocks


def test_every_code_block_has_a_language_and_a_valid_mark() -> None:
    for name, page in PAGES.items():
        for block in blocks(page):
            assert block.language in LANGUAGES, (name, block.text)
            assert not block.mark or block.mark in MARKS, (name, block.mark)
            assert block.value or block.mark in ("", "output"), (name, block.text)
            if block.language == "json":
                assert json.loads(block.text), name
        marked = len(re.findall(r"^ *<!-- (?:needs|file|output|ends with)\b", page, re.MULTILINE))
        assert marked == sum(bool(block.mark) for block in blocks(page)), f"{name}: a mark is not above a block"


FAST_PAGE = "docs/tutorials/first-experiment.md"
"""The page whose commands the gate runs."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gate if name == FAST_PAGE else pytest.mark.full)
        for name, page in HANDWRITTEN_PAGES.items()
        if name != "README.md" and any(block.mark != "needs" for block in blocks(page, "sh"))
    ],
)
def test_commands_of_a_page_run_and_print_the_shown_output(name: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    search_path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-c", build_script(PAGES[name])], cwd=tmp_path / "work", capture_output=True, text=True, check=False,
        env=environment(PATH=search_path, HOME=str(tmp_path / "home"), COLUMNS="120"), timeout=3 * HANG_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for expected, printed in pair_outputs(PAGES[name], done.stdout):
        assert matches_output(printed, expected), printed


@pytest.mark.parametrize("sql", dict.fromkeys(re.findall(r'nip-run sql "(.*?)"', TEXT)))
def test_every_sql_query_in_the_docs_runs(sql: str) -> None:
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(definitions_sql())
    tables = {name: COLUMNS[name] for name in ("messages", "completions")}
    tables |= {"comparisons": COMPARISON_COLUMNS, "notes": NOTE_COLUMNS, "analyses": ANALYSIS_COLUMNS}
    for name, kinds in tables.items():
        columns = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
    connection.execute(ANALYZED_ROLLOUTS)
    connection.execute(sql)
    connection.close()


@pytest.mark.gate
def test_python_code_of_the_readme_runs(tmp_path: Path) -> None:
    (block,) = blocks(README, "python")
    done = python(block.text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "decided" in done.stdout


@pytest.mark.gate
@pytest.mark.parametrize(
    ("page", "minimum"),
    [
        ("reference/agent.md", 15),
        pytest.param("reference/python.md", 10, marks=pytest.mark.full),
        pytest.param("how-to/draw-figures.md", 1, marks=pytest.mark.full),
    ],
)
def test_python_code_of_a_page_prints_the_shown_output(page: str, minimum: int, tmp_path: Path) -> None:
    code = "\n".join(block.text for block in blocks(PAGES[f"docs/{page}"], "python"))
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"# -> (.*)", code)
    assert len(expected) >= minimum
    assert done.stdout.splitlines() == expected


@pytest.mark.full
def test_notebook_cells_print_the_saved_output() -> None:
    text = (ROOT / "docs" / "tutorials" / "first_experiment.ipynb").read_text("utf-8")
    assert sum(bool(cell.get("outputs")) for cell in json.loads(text)["cells"]) >= 5
    assert executed_notebook(text) == text, "run it again: python docs/make.py"


def test_every_python_block_is_tested_or_marked() -> None:
    tested_pages = {"README.md", "docs/reference/agent.md", "docs/reference/python.md", "docs/how-to/draw-figures.md"}
    for name, page in PAGES.items():
        assert name in tested_pages or all(block.mark in ("file", "needs") for block in blocks(page, "python")), name


@pytest.mark.full  # needs the extra `docs`
def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")], cwd=ROOT,
        capture_output=True, text=True, check=False, env=environment(NO_MKDOCS_2_WARNING="1"), timeout=HANG_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "tutorials" / "first-experiment" / "index.html").is_file()
    assert "fonts.googleapis.com" not in (tmp_path / "site" / "index.html").read_text("utf-8")


# Changelog, citation, CONTRIBUTING

HEADINGS = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
"""`Unreleased` and each release, the newest first."""
RELEASED = next(heading for heading in HEADINGS if heading != "Unreleased")


def test_citation_has_the_version_license_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (citation["title"], citation["license"], citation["type"]) == (
        project["name"],
        project["license"],
        "software",
    )
    assert citation["version"] == RELEASED
    assert citation["references"][0]["url"] in README


def test_changelog_has_the_version() -> None:
    """The newest release; a later version must be a development version."""
    from runner.version import __version__

    assert __version__ == RELEASED if HEADINGS[0] == RELEASED else ".dev" in __version__
    assert __version__.partition(".dev")[0] not in HEADINGS[1:]


def test_files_named_in_contributing_exist() -> None:
    paths = re.findall(r"`([\w.]+/[\w/.]*)`", CONTRIBUTING)
    assert len(paths) >= 40
    missing = [path for path in paths if not ((ROOT / path).exists() or (ROOT / "runner" / path).exists())]
    assert missing == []


def test_package_order_in_contributing_equals_the_tested_one() -> None:
    quoted = " ".join(re.findall(r"^> (.*)$", CONTRIBUTING, re.MULTILINE))
    assert tuple(name.strip() for name in quoted.split("<")) == ORDER
