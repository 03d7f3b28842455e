"""`nip-run report`: its inputs, the files it writes and keeps, and its errors."""

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
from tests.compatibility.old import copy_old_files
from tests.support.files import read_folder
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment, nip_run_here
from tests.support.report_pages import parse_page
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file


@pytest.fixture(scope="module")
def published_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of one run and a registry that contains it."""
    folder = tmp_path_factory.mktemp("made")
    run_spec(spec_file(folder, size=4), folder / "results")
    arguments = ("--to", "registry", "--as", "acme/tiny@1", "--licence", "MIT", "--force")
    process = nip_run_here("publish", "last", *arguments, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture
def folder(published_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder with the published run."""
    shutil.copytree(published_run, tmp_path / "made")
    return tmp_path / "made"


def run_id(folder: Path) -> str:
    return only_run(folder / "results").name


def read_routes(page: Path) -> list[str | None]:
    return [
        element.attributes["data-route"]
        for element in parse_page(page.read_bytes()).elements
        if "data-route" in element.attributes
    ]


def list_pieces(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "data").glob("*.json.gz"))


@pytest.mark.full
def test_report_of_a_run_is_one_page_and_json_lists_its_runs(folder: Path) -> None:
    process = nip_run_here("report", "last", "-o", "x.html", "--json", cwd=folder)
    assert process.returncode == 0
    report = json.loads(process.stdout)
    assert report == {"runs": [run_id(folder)], "path": "x.html", "bytes": (folder / "x.html").stat().st_size}
    assert read_routes(folder / "x.html") == [f"run/{run_id(folder)}"]


@pytest.mark.full
def test_report_of_the_leaderboard_links_to_the_run_pages(folder: Path) -> None:
    process = nip_run_here("report", "--board", "-o", "alone.html", "--json", cwd=folder)
    assert process.returncode == 0
    assert [task["rows"] for task in json.loads(process.stdout)["board"]["tasks"]] == [1]
    assert nip_run_here("report", "last", "--board", "-o", "both.html", "-q", cwd=folder).stdout == ""
    overview, task = read_routes(folder / "alone.html")
    assert (overview, read_routes(folder / "both.html")) == ("board", ["board", task, f"run/{run_id(folder)}"])
    links = [
        element.attributes.get("href")
        for element in parse_page((folder / "both.html").read_bytes()).elements
        if element.tag == "a"
    ]
    assert links.count(f"#/run/{run_id(folder)}") == 2  # in the navigation and in the row


@pytest.mark.full
def test_report_of_a_registry_leaderboard_lists_a_changed_release_as_refused(folder: Path) -> None:
    arguments = ("report", "--board", "--from", "registry", "-o", "x.html")
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    assert nip_run_here(*arguments, cwd=folder, **cache).returncode == 0
    assert "acme/tiny@1" in parse_page((folder / "x.html").read_bytes()).text
    for path in (folder / "registry").rglob("rollouts.jsonl*"):
        path.write_bytes(b"<script>")
    process = nip_run_here(*arguments, "--json", cwd=folder, XDG_CACHE_HOME=str(folder / "new cache"))
    assert process.returncode == 0
    (refused,) = json.loads(process.stdout)["board"]["left_out"]
    page = parse_page((folder / "x.html").read_bytes()).text
    assert refused["release"] in page
    assert refused["why"] in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "x.html"), "or add --board"),
        (("--from", "registry", "last", "-o", "x.html"), "add --board"),
        (("last", "-o", "x.pdf"), "must end in .html"),
        (("nothing", "-o", "x.html"), "no run 'nothing'"),
    ],
)
def test_incomplete_report_arguments_are_refused_and_nothing_is_written(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    process = nip_run_here("report", *arguments, cwd=folder)
    assert (process.returncode, process.stdout) == (2, "")
    assert message in process.stderr
    assert not list(folder.glob("x.*"))


@pytest.mark.parametrize("source", ["missing", "data.jsonl", "results"])
def test_invalid_registry_fails_with_the_same_error_as_leaderboard(folder: Path, source: str) -> None:
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    listed = nip_run_here("leaderboard", "--from", source, cwd=folder, **cache)
    process = nip_run_here("report", "--board", "--from", source, "-o", "x.html", cwd=folder, **cache)
    assert (process.returncode, process.stderr) == (listed.returncode, listed.stderr)
    assert process.returncode != 0
    assert not (folder / "x.html").exists()


def test_report_without_a_leaderboard_says_how_to_rebuild_it(folder: Path) -> None:
    (folder / "results" / "leaderboard.duckdb").unlink()
    process = nip_run_here("report", "--board", "-o", "x.html", cwd=folder)
    assert process.returncode == 0
    command = "nip-run leaderboard --rebuild --results results"
    assert command in process.stderr
    assert command in parse_page((folder / "x.html").read_bytes()).text


def test_damaged_board_fails_with_the_same_error_as_leaderboard(folder: Path) -> None:
    (folder / "results" / "leaderboard.duckdb").write_bytes(b"no board")
    listed = nip_run_here("leaderboard", cwd=folder)
    process = nip_run_here("report", "--board", "-o", "x.html", cwd=folder)
    assert (process.returncode, process.stderr) == (listed.returncode, listed.stderr)
    assert process.returncode == 1


def test_report_reads_a_leaderboard_that_another_process_has_locked(folder: Path) -> None:
    with locked(folder / "results" / ".leaderboard.lock", "the board", 1.0):
        assert nip_run_here("report", "--board", "-o", "x.html", cwd=folder).returncode == 0
    assert run_id(folder) in parse_page((folder / "x.html").read_bytes()).text


@pytest.mark.full
def test_report_shows_a_leaderboard_of_0_1_0(tmp_path: Path) -> None:
    copy_old_files(tmp_path)
    listed = json.loads(nip_run_here("leaderboard", "--json", cwd=tmp_path).stdout)
    process = nip_run_here("report", "--board", "-o", "x.html", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    page = parse_page((tmp_path / "x.html").read_bytes())
    assert page.unclosed == []
    assert all(row["run_id"] in page.text for row in listed)
    assert len(listed) > 4


@pytest.mark.full
def test_second_report_replaces_the_first_and_keeps_foreign_files(folder: Path) -> None:
    site = folder / "site"
    assert nip_run_here("report", "last", "--board", "--dir", "site", cwd=folder).returncode == 0
    before = list_pieces(site)
    (site / "data" / "mine.json.gz").write_bytes(b"mine")
    (site / "notes.txt").write_text("mine")
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    assert len(before) > 1
    assert list_pieces(site) == ["b0-rows-0.json.gz", "mine.json.gz"]
    assert (site / "data" / "mine.json.gz").read_bytes() == b"mine"
    assert (site / "notes.txt").read_text() == "mine"


def test_forged_list_of_pieces_deletes_no_foreign_file(folder: Path) -> None:
    site = folder / "site"
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    (folder / "mine.json.gz").write_bytes(b"mine")
    (site / "data" / "sub").mkdir()
    forged_pieces = ["../../mine.json.gz", str(folder / "mine.json.gz"), "sub", 3, None]
    (site / "data" / "pieces.json").write_text(json.dumps({"pieces": forged_pieces}))
    assert nip_run_here("report", "--board", "--dir", "site", cwd=folder).returncode == 0
    assert (folder / "mine.json.gz").read_bytes() == b"mine"
    assert (site / "data" / "sub").is_dir()


def test_folder_with_a_foreign_index_page_is_unchanged(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text("mine")
    process = nip_run_here("report", "--board", "--dir", "site", cwd=folder)
    assert process.returncode == 2
    assert "site/index.html was not written by nip-run report" in process.stderr
    assert [path.name for path in (folder / "site").iterdir()] == ["index.html"]


@pytest.mark.parametrize("option", ["-o", "--dir"])
def test_unwritable_report_path_is_reported(folder: Path, option: str) -> None:
    name = "data.jsonl/x.html" if option == "-o" else "data.jsonl"
    process = nip_run_here("report", "last", "--board", option, name, cwd=folder)
    assert (process.returncode, process.stdout) == (1, "")
    assert "cannot write data.jsonl" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.full
@pytest.mark.parametrize("option", ["-o", "--dir"])
def test_full_disk_keeps_the_old_page(folder: Path, option: str) -> None:
    name, path = ("x.html", folder / "x.html") if option == "-o" else ("site", folder / "site" / "index.html")
    assert nip_run_here("report", "--board", option, name, cwd=folder).returncode == 0
    before = path.read_bytes()
    script = 'ulimit -f 8; exec "$@"'  # files of 8 KiB at most
    arguments = [sys.executable, "-m", "runner", "report", "last", "--board", option, name]
    process = subprocess.run(
        ["bash", "-c", script, "bash", *arguments], cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert process.returncode == 1
    assert "cannot write" in process.stderr
    assert path.read_bytes() == before


@pytest.mark.full
@pytest.mark.parametrize("board", [pytest.param("there", marks=pytest.mark.full), "gone", "locked"])
def test_report_and_plot_only_read_the_results(tmp_path: Path, board: str) -> None:
    copy_old_files(tmp_path)
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
        plot_arguments = ["plot", "forest", *seeds, "-o", str(tmp_path / "f.csv"), "--results", str(results)]
        assert main([*plot_arguments, "-q"]) == (2 if board == "gone" else 0)
        assert read_folder(results) == before
    text = parse_page(page.read_bytes()).text
    assert ("not on the board, so their seeds cannot be pooled" in text) == (board == "gone")


KEY = "sk-proj-0123456789abcdef"


@pytest.mark.sample(1)
@pytest.mark.parametrize("arguments", [("-o", "x.html"), ("--dir", "site")])
def test_api_key_in_the_texts_of_a_run_is_removed_from_the_report(arguments: tuple[str, str], tmp_path: Path) -> None:
    """Reports are shared, and a key can get into a dataset or a name unnoticed."""
    spec = spec_file(tmp_path, size=2, benchmark=f"tiny {KEY}")
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({**row, "hint": f"use {KEY}"}) + "\n" for row in rows))
    run_spec(spec, tmp_path / "results")

    def read_report(**variables: str) -> tuple[str, str]:
        process = nip_run_here("report", "last", *arguments, cwd=tmp_path, **variables)
        assert process.returncode == 0, process.stderr
        if arguments[0] == "--dir":
            data = [path.read_bytes() for path in (tmp_path / "site" / "data").glob("*.gz")]
            page = (tmp_path / "site" / "index.html").read_text()
        else:
            page = (tmp_path / "x.html").read_text()
            data = [b64decode(encoded) for encoded in re.findall(r'id="data-[^"]*">([^<]*)<', page)]
        return page, "".join(gzip.decompress(piece).decode() for piece in data)

    assert all(KEY in text for text in read_report())
    redacted = read_report(OPENAI_API_KEY=KEY)
    assert not any(KEY in text for text in redacted)
    assert all(REMOVED in text for text in redacted)
