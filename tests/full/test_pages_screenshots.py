"""Screenshots of every page at three widths, light and dark, and in print: no page overflows or has an error.

The runs use the dummy provider and loopback servers. The test writes `pictures/PAGE-WIDTH-SCHEME.png` and
`pictures/PAGE.pdf`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browser.every_page import PAGE_HAS_TEXT
from tests.support.browser import WatchedPage, chromium
from tests.support.processes import nip_run, start_nip_run_silently, wait_until
from tests.support.servers.chat_client import run_chat_server
from tests.support.soft_assertions import SoftAssertions
from tests.support.specs import spec_file
from tests.support.training import malt_changes, training_spec
from tests.support.view_process import run_view

WIDTHS = (360, 800, 1280)
SCHEMES = ("light", "dark")
HORIZONTAL_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FAULTS = {"bad_decision": 0.15, "server_error": 0.1, "rate_limit": 0.1, "length": 0.05}
SCREENSHOT_MILLISECONDS = 60_000
"""Time limit of a screenshot, which takes long for a long game on a busy machine."""
LONG_ANSWER = 60_000
"""Number of characters of a long answer."""


@dataclass(frozen=True)
class PageToShow:
    """A page: its name, its file or address, the route, and an action before the screenshot."""

    name: str
    address: str | Path
    route: str = ""
    action: Callable[[Any], None] | None = None


@pytest.mark.parametrize("group", ["games", "faults", "long_answers", "training", "several", "unfinished"])
def test_no_page_overflows_or_has_an_error(tmp_path: Path, check: SoftAssertions, group: str) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    pages = {
        "games": _pages_of_games, "faults": _pages_of_faulty_calls, "long_answers": _pages_of_long_answers,
        "training": _pages_of_training, "several": _pages_of_several_runs, "unfinished": _pages_of_unfinished_runs,
    }  # fmt: skip
    with chromium() as browser:
        for page_to_show in pages[group](tmp_path):
            _check_page(check, browser, page_to_show, pictures)


def _check_page(check: SoftAssertions, browser: Any, page_to_show: PageToShow, folder: Path) -> None:
    for scheme in SCHEMES:
        overflow: dict[int, float] = {}
        problems: list[str] = []
        for width in WIDTHS:
            with _open_page(
                browser, page_to_show, problems, color_scheme=scheme, viewport={"width": width, "height": 900}
            ) as page:
                overflow[width] = page.evaluate(HORIZONTAL_OVERFLOW)
                page.screenshot(
                    path=folder / f"{page_to_show.name}-{width}-{scheme}.png",
                    full_page=True,
                    timeout=SCREENSHOT_MILLISECONDS,
                )
        check(
            not any(overflow.values()),
            f"{page_to_show.name}, {scheme}: no horizontal overflow, in pixels by width: {overflow}",
        )
        check(not problems, f"{page_to_show.name}, {scheme}: no errors: {problems}")
    problems = []
    with _open_page(browser, page_to_show, problems, viewport={"width": 1280, "height": 900}) as page:
        page.pdf(path=folder / f"{page_to_show.name}.pdf", format="A4", prefer_css_page_size=True)
    check(not problems, f"{page_to_show.name}, printed: no errors: {problems}")


@contextmanager
def _open_page(browser: Any, page_to_show: PageToShow, problems: list[str], **options: Any) -> Iterator[Any]:
    watched_page = WatchedPage(browser, **options)
    page = watched_page.open(page_to_show.address, page_to_show.route)
    page.wait_for_function(PAGE_HAS_TEXT)
    page.wait_for_timeout(250)
    if page_to_show.action is not None:
        page_to_show.action(page)
    yield page
    problems += watched_page.close()


def _run(folder: Path, *arguments: str | Path, code: int = 0) -> None:
    done = nip_run(*arguments, "-q", cwd=folder, timeout=300, XDG_CACHE_HOME=str(folder / "cache"))
    assert done.returncode == code, f"{arguments}: {done.returncode} {done.stderr}"


def _report(folder: Path, name: str, *arguments: str | Path) -> Path:
    _run(folder, "report", *arguments, "-o", f"{name}.html")
    return folder / f"{name}.html"


def _open_first_game(page: Any) -> None:
    """Open the first game of a list."""
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    page.wait_for_timeout(150)


def _unfold_turns(page: Any) -> None:
    _open_first_game(page)
    for _ in range(3):
        page.evaluate("for (const one of document.querySelectorAll('.turn details:not([open])')) one.open = true")
        page.wait_for_timeout(60)


def _open_first_tree(page: Any) -> None:
    page.locator("table tbody a:visible").first.click()
    page.locator(".tree").wait_for()
    page.wait_for_timeout(150)


def _expand_tree(page: Any) -> None:
    _open_first_tree(page)
    page.keyboard.press("e")
    page.wait_for_timeout(150)


def _open_first_pair(page: Any) -> None:
    page.locator("table.pairs tbody a").first.click()
    page.locator(".halves").wait_for()
    page.wait_for_timeout(150)


def _pages_of_games(folder: Path) -> Iterator[PageToShow]:
    """Pages of offline runs with two agents, with many and private channels, and with a debate."""
    _run(folder, "specs/quickstart.yaml", "--run-id", "quickstart", "dataset.limit=60")
    _run(folder, "specs/mnip.yaml", "--run-id", "mnip", "dataset.limit=12")
    _run(folder, "specs/debate.yaml", "--run-id", "debate", "dataset.limit=12")
    nip, mnip, debate = (_report(folder, name, name) for name in ("quickstart", "mnip", "debate"))
    yield from [
        PageToShow("run", nip),
        PageToShow("list", nip, "run/quickstart/games"),
        PageToShow("list-nothing-found", nip, "run/quickstart/games?q=nowhere"),
        PageToShow("game", nip, "run/quickstart/games", _open_first_game),
        PageToShow("game-as-verifier", nip, "run/quickstart/games", _show_as_verifier),
        PageToShow("run-mnip", mnip),
        PageToShow("game-mnip", mnip, "run/mnip/games", _open_first_game),
        PageToShow("run-debate", debate),
        PageToShow("game-debate", debate, "run/debate/games", _open_first_game),
        PageToShow("game-debate-as-verifier", debate, "run/debate/games", _show_as_verifier),
        PageToShow("nowhere", nip, "nowhere"),
    ]


def _show_as_verifier(page: Any) -> None:
    _open_first_game(page)
    page.get_by_role("button", name="As verifier saw it").click()
    page.wait_for_timeout(150)


def _report_of_server(folder: Path, name: str, faults: Mapping[str, float], prose: int, **changes: Any) -> Path:
    """Run a spec with a loopback server; return the report."""
    with run_chat_server(faults=faults, logprobs=True, prose=prose) as server:
        spec_file(folder, server.base_url, **changes)
        _run(folder, "spec.yaml", "--run-id", name)
    return _report(folder, name, name)


def _pages_of_faulty_calls(folder: Path) -> Iterator[PageToShow]:
    """Pages of a run with failed calls, unusable answers and log-probabilities."""
    settings = {"logprobs": True, "top_logprobs": 3}
    page = _report_of_server(
        folder, "troubled", FAULTS, 400, size=40, verdict={"confidence": "logprob"}, models={"m": settings}
    )
    yield PageToShow("run-troubled", page)
    yield PageToShow("list-retried", page, "run/troubled/games?only=retried&sort=-tokens")
    yield PageToShow("game-retried", page, "run/troubled/games?only=retried&sort=-retries", _unfold_turns)


def _pages_of_long_answers(folder: Path) -> Iterator[PageToShow]:
    page = _report_of_server(folder, "long", {}, LONG_ANSWER, size=1)
    yield PageToShow("run-of-one-game", page)
    yield PageToShow("list-of-one-game", page, "run/long/games")
    yield PageToShow("game-long", page, "run/long/games", _open_first_game)


def _pages_of_training(folder: Path) -> Iterator[PageToShow]:
    """Pages of a training run with its parts, and of trees with their pairs."""
    training_spec(folder)
    _run(folder, "spec.yaml", "--run-id", "learn")
    expert_iteration = _report(folder, "learn", "learn")
    training_spec(folder, **malt_changes(name="malt"))
    _run(folder, "spec.yaml", "--run-id", "malt")
    parts = _report(folder, "malt", "malt", "malt-i0")
    yield from [
        PageToShow("training", expert_iteration),
        PageToShow("training-malt", parts, "run/malt"),
        PageToShow("run-of-trees", parts, "run/malt-i0"),
        PageToShow("trees", parts, "run/malt-i0/trees"),
        PageToShow("tree", parts, "run/malt-i0/trees", _open_first_tree),
        PageToShow("tree-open", parts, "run/malt-i0/trees", _expand_tree),
    ]


def _pages_of_several_runs(folder: Path) -> Iterator[PageToShow]:
    """Pages of two judges of the same data, a sweep of two axes with seeds, and local and published boards."""
    _run(folder, "specs/quickstart.yaml", "--run-id", "nip", "dataset.limit=40")
    _run(folder, "specs/solo_verifier.yaml", "--run-id", "alone", "dataset.limit=40")
    report = _report(folder, "both", "nip", "alone")
    yield PageToShow("overview", report)
    yield PageToShow("compare", report, "compare/nip/alone")
    yield PageToShow("pairs", report, "compare/nip/alone/games")
    yield PageToShow("pair", report, "compare/nip/alone/games", _open_first_pair)
    sweep = {"seed": [0, 1], "protocol.max_message_rounds": [3, 5, 7], "agents.verifier.max_response_words": [50, 100]}
    spec_file(folder, size=24, name="swept", sweep=sweep)
    _run(folder, "spec.yaml")
    run_names = sorted(path.name for path in (folder / "results" / "runs").iterdir() if path.name.startswith("swept"))
    yield PageToShow("overview-of-a-sweep", _report(folder, "swept", *run_names))
    board = _report(folder, "board", "--board")
    yield PageToShow("board", board)
    yield from (PageToShow(f"board-task-{index}", board, action=partial(_open_task, index)) for index in range(2))
    for run in ("nip", "alone"):
        _run(folder, "publish", run, "--to", "registry", "--as", "acme", "--licence", "MIT", "--force")
    published = _report(folder, "published", "--board", "--from", "registry")
    yield PageToShow("board-published", published)
    yield PageToShow("board-published-task", published, action=partial(_open_task, 0))


def _open_task(index: int, page: Any) -> None:
    routes = page.evaluate("[...document.querySelectorAll('section a[href^=\"#/board/\"]')].map((one) => one.hash)")
    page.evaluate("to => { location.hash = to; }", list(dict.fromkeys(routes))[index])
    page.wait_for_timeout(300)


def _pages_of_unfinished_runs(folder: Path) -> Iterator[PageToShow]:
    """Pages of runs that are in progress, also in `nip-run view`, killed, and without a game."""
    with run_chat_server(latency=0.3, faults=FAULTS) as server:
        spec_file(folder, server.base_url, size=600, rollouts={"concurrency": 4})
        _kill(_start_run(folder, "none"))
        process = _start_run(folder, "plays")
        try:
            with run_view("plays", cwd=folder) as view:
                view.wait_for_state("plays", lambda state: bool(state["games"]["count"] >= 5))
                yield PageToShow("live", view.address)
                yield PageToShow("live-list", view.address, "run/plays/games")
                yield PageToShow("run-that-plays", _report(folder, "plays", "plays"))
        finally:
            _kill(process)
        yield PageToShow("run-killed", _report(folder, "killed", "plays"))
        yield PageToShow("run-without-a-game", _report(folder, "none", "none"))
        yield PageToShow("list-without-a-game", folder / "none.html", "run/none/games")


def _start_run(folder: Path, name: str) -> Any:
    """Start a run and wait until it has a journal."""
    process = start_nip_run_silently("spec.yaml", "--run-id", name, cwd=folder)
    wait_until((folder / "results" / "runs" / name / "journal.jsonl").is_file)
    return process


def _kill(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
