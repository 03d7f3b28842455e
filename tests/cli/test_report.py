"""`nip-run report`: what it takes, what it writes, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from contextlib import nullcontext
from pathlib import Path

import pytest

from runner.base.redaction import REMOVED
from runner.base.storage.locks import locked
from runner.cli.main import main
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from tests.compatibility.old import opened
from tests.support.files import read_folder
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, nip_run_here
from tests.support.report_pages import parse_page
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def published_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one run, and a registry that has it."""
    folder = tmp_path_factory.mktemp("made")
    run_spec(spec_file(folder, size=4), folder / "results")
    words = ("--to", "registry", "--as", "acme/tiny@1", "--licence", "MIT", "--force")
    published = nip_run_here("publish", "last", *words, cwd=folder)
    assert published.returncode == 0, published.stderr
    return folder


@pytest.fixture
def folder(published_run: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(published_run, tmp_path / "made")
    return tmp_path / "made"


def run_id(folder: Path) -> str:
    return only_run(folder / "results").name


def routes(page: Path) -> list[str | None]:
    return [
        one.attributes["data-route"] for one in parse_page(page.read_bytes()).elements if "data-route" in one.attributes
    ]


def pieces(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "data").glob("*.json.gz"))


@pytest.mark.full
def test_a_run_is_one_page_and_what_it_was_made_of_is_told(folder: Path) -> None:
    done = nip_run_here("report", "last", "-o", "x.html", "--json", cwd=folder)
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told == {"runs": [run_id(folder)], "path": "x.html", "bytes": (folder / "x.html").stat().st_size}
    assert routes(folder / "x.html") == [f"run/{run_id(folder)}"]


@pytest.mark.full
def test_a_board_is_a_page_and_runs_beside_it_are_linked(folder: Path) -> None:
    alone = nip_run_here("report", "--board", "-o", "alone.html", "--json", cwd=folder)
    assert alone.returncode == 0
    assert [task["rows"] for task in json.loads(alone.stdout)["board"]["tasks"]] == [1]
    assert nip_run_here("report", "last", "--board", "-o", "both.html", "-q", cwd=folder).stdout == ""
    overview, task = routes(folder / "alone.html")
    assert (overview, routes(folder / "both.html")) == ("board", ["board", task, f"run/{run_id(folder)}"])
    links = [
        one.attributes.get("href") for one in parse_page((folder / "both.html").read_bytes()).elements if one.tag == "a"
    ]
    assert links.count(f"#/run/{run_id(folder)}") == 2  # the navigation's, and the row's


@pytest.mark.full
def test_a_published_board_is_a_page_and_a_release_that_was_changed_is_refused_there(folder: Path) -> None:
    words = ("report", "--board", "--from", "registry", "-o", "x.html")
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    assert nip_run_here(*words, cwd=folder, **cache).returncode == 0
    assert "acme/tiny@1" in parse_page((folder / "x.html").read_bytes()).text
    for path in (folder / "registry").rglob("rollouts.jsonl*"):
        path.write_bytes(b"<script>")
    done = nip_run_here(*words, "--json", cwd=folder, XDG_CACHE_HOME=str(folder / "new cache"))
    assert done.returncode == 0
    (refused,) = json.loads(done.stdout)["board"]["left_out"]
    page = parse_page((folder / "x.html").read_bytes()).text
    assert refused["release"] in page
    assert refused["why"] in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "x.html"), "or add --board"),
        (("--from", "registry", "last", "-o", "x.html"), "add --board"),
        (("last", "-o", "x.pdf"), "must end in .html"),
        (("nothing", "-o", "x.html"), "no run 'nothing'"),
    ],
)
def test_what_says_too_little_is_refused_and_nothing_is_written(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    done = nip_run_here("report", *words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not list(folder.glob("x.*"))


@pytest.mark.parametrize("where", ["missing", "data.jsonl", "results"])
def test_what_is_no_registry_ends_as_it_does_for_leaderboard(folder: Path, where: str) -> None:
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    listed = nip_run_here("leaderboard", "--from", where, cwd=folder, **cache)
    done = nip_run_here("report", "--board", "--from", where, "-o", "x.html", cwd=folder, **cache)
    assert (done.returncode, done.stderr) == (listed.returncode, listed.stderr)
    assert done.returncode != 0
    assert not (folder / "x.html").exists()


def test_a_board_that_is_not_there_is_a_page_that_says_how_to_make_one(folder: Path) -> None:
    (folder / "results" / "leaderboard.duckdb").unlink()
    done = nip_run_here("report", "--board", "-o", "x.html", cwd=folder)
    assert done.returncode == 0
    command = "nip-run leaderboard --rebuild --results results"
    assert command in done.stderr
    assert command in parse_page((folder / "x.html").read_bytes()).text


def test_a_board_that_is_damaged_is_an_error_as_for_leaderboard(folder: Path) -> None:
    (folder / "results" / "leaderboard.duckdb").write_bytes(b"no board")
    listed = nip_run_here("leaderboard", cwd=folder)
    done = nip_run_here("report", "--board", "-o", "x.html", cwd=folder)
    assert (done.returncode, done.stderr) == (listed.returncode, listed.stderr)
    assert done.returncode == 1


def test_a_board_that_another_process_is_adding_to_is_read_as_it_was(folder: Path) -> None:
    with locked(folder / "results" / ".leaderboard.lock", "the board", 1.0):
        assert nip_run_here("report", "--board", "-o", "x.html", cwd=folder).returncode == 0
    assert run_id(folder) in parse_page((folder / "x.html").read_bytes()).text


@pytest.mark.full
def test_a_board_of_0_1_0_is_a_page(tmp_path: Path) -> None:
    opened(tmp_path)
    listed = json.loads(nip_run_here("leaderboard", "--json", cwd=tmp_path).stdout)
    done = nip_run_here("report", "--board", "-o", "x.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = parse_page((tmp_path / "x.html").read_bytes())
    assert page.unclosed == []
    assert all(row["run_id"] in page.text for row in listed)
    assert len(listed) > 4


@pytest.mark.full
def test_a_second_report_into_a_folder_leaves_nothing_of_the_first_and_all_that_is_others(folder: Path) -> None:
    site = folder / "site"
    assert nip_run_here("report", "last", "--board", "--dir", "site", cwd=folder).returncode == 0
    before = pieces(site)
    (site / "data" / "mine.json.gz").write_bytes(b"mine")
    (site / "notes.txt").write_text("mine")
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    assert len(before) > 1
    assert pieces(site) == ["b0-rows-0.json.gz", "mine.json.gz"]
    assert (site / "data" / "mine.json.gz").read_bytes() == b"mine"
    assert (site / "notes.txt").read_text() == "mine"


def test_a_list_of_pieces_that_names_others_files_removes_none(folder: Path) -> None:
    site = folder / "site"
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    (folder / "mine.json.gz").write_bytes(b"mine")
    (site / "data" / "sub").mkdir()
    named = ["../../mine.json.gz", str(folder / "mine.json.gz"), "sub", 3, None]
    (site / "data" / "pieces.json").write_text(json.dumps({"pieces": named}))
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    assert (folder / "mine.json.gz").read_bytes() == b"mine"
    assert (site / "data" / "sub").is_dir()


def test_a_folder_with_a_page_of_somebody_elses_is_left_alone(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("mine")
    done = nip_run_here("report", "--board", "--dir", "site", cwd=folder)
    assert done.returncode == 2
    assert "site/index.html was not written by nip-run report" in done.stderr
    assert [path.name for path in (folder / "site").iterdir()] == ["index.html"]


@pytest.mark.parametrize("option", ["-o", "--dir"])
def test_where_nothing_can_be_written_is_said(folder: Path, option: str) -> None:
    name = "data.jsonl/x.html" if option == "-o" else "data.jsonl"
    done = nip_run_here("report", "last", "--board", option, name, cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot write data.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("option", ["-o", "--dir"])
def test_a_disk_that_is_full_leaves_the_old_page(folder: Path, option: str) -> None:
    name, path = ("x.html", folder / "x.html") if option == "-o" else ("site", folder / "site" / "index.html")
    assert nip_run_here("report", "--board", option, name, cwd=folder).returncode == 0
    before = path.read_bytes()
    script = 'ulimit -f 8; exec "$@"'  # files of 8 KiB at most
    words = [sys.executable, "-m", "runner", "report", "last", "--board", option, name]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.full
@pytest.mark.parametrize("board", [pytest.param("there", marks=pytest.mark.full), "gone", "locked"])
def test_a_report_and_a_figure_only_read_the_results(tmp_path: Path, board: str) -> None:
    opened(tmp_path)
    results = tmp_path / "results"
    (results / "leaderboard.duckdb").unlink()
    seeds = sorted(path.name for path in (results / "runs").glob("sweep-*"))
    assert len(seeds) == 2
    for name in seeds if board != "gone" else ():
        Results(results).board.append(RunFolder(results / "runs" / name))
    page = tmp_path / "x.html"
    with locked(results / ".leaderboard.lock", "the board", 1.0) if board == "locked" else nullcontext():
        before = read_folder(results)
        assert main(["report", *seeds, "-o", str(page), "--results", str(results), "-q"]) == 0
        plotted = ["plot", "forest", *seeds, "-o", str(tmp_path / "f.csv"), "--results", str(results)]
        assert main([*plotted, "-q"]) == (2 if board == "gone" else 0)
        assert read_folder(results) == before
    shown = parse_page(page.read_bytes()).text
    assert ("not on the board, so their seeds cannot be pooled" in shown) == (board == "gone")


KEY = "sk-proj-0123456789abcdef"


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("-o", "x.html"), ("--dir", "site")])
def test_a_key_that_stands_in_the_texts_of_a_run_is_not_reported(words: tuple[str, str], tmp_path: Path) -> None:
    """A report is mailed; who wrote a key into a dataset or a name need not have noticed."""
    spec = spec_file(tmp_path, size=2, benchmark=f"tiny {KEY}")
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({**row, "hint": f"use {KEY}"}) + "\n" for row in rows))
    run_spec(spec, tmp_path / "results")

    def told(**variables: str) -> tuple[str, str]:
        done = nip_run_here("report", "last", *words, cwd=tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        if words[0] == "--dir":
            data = [path.read_bytes() for path in (tmp_path / "site" / "data").glob("*.gz")]
            page = (tmp_path / "site" / "index.html").read_text()
        else:
            page = (tmp_path / "x.html").read_text()
            data = [b64decode(found) for found in re.findall(r'id="data-[^"]*">([^<]*)<', page)]
        return page, "".join(gzip.decompress(piece).decode() for piece in data)

    assert all(KEY in text for text in told())
    clean = told(OPENAI_API_KEY=KEY)
    assert not any(KEY in text for text in clean)
    assert all(REMOVED in text for text in clean)
