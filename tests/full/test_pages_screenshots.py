"""A picture of every page at three widths, light and dark, and its print: none scrolls sideways, none has an error.

The runs are played first, by the dummy provider and servers on this machine. Pictures are
`pictures/PAGE-WIDTH-SCHEME.png` and `pictures/PAGE.pdf` in the folder of the test.
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

from tests.browser.every_page import WAITING
from tests.support.browser import Watched, chromium
from tests.support.claims import Claims
from tests.support.processes import nip_run, started_silent, until
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file
from tests.support.training import malt, training_spec
from tests.support.viewing import viewing

WIDTHS = (360, 800, 1280)
SCHEMES = ("light", "dark")
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TROUBLE = {"bad_decision": 0.15, "server_error": 0.1, "rate_limit": 0.1, "length": 0.05}
PATIENCE = 60_000
"""Milliseconds that a picture may take: one of a long game does, on a busy machine."""
LONG = 60_000
"""Characters of a long answer."""


@dataclass(frozen=True)
class Look:
    """A page: its name, the file or address that has it, the route in that, and what is done before it is looked at."""

    name: str
    address: str | Path
    route: str = ""
    does: Callable[[Any], None] | None = None


@pytest.mark.parametrize("state", ["games", "troubles", "long_answers", "training", "several", "states"])
def test_no_page_scrolls_sideways_or_has_an_error(tmp_path: Path, claims: Claims, state: str) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    pages = {
        "games": _of_games, "troubles": _of_troubles, "long_answers": _of_long_answers, "training": _of_training,
        "several": _of_several, "states": _of_states,
    }  # fmt: skip
    with chromium() as browser:
        for look in pages[state](tmp_path):
            _looked_at(claims, browser, look, pictures)


def _looked_at(claims: Claims, browser: Any, look: Look, into: Path) -> None:
    for scheme in SCHEMES:
        wide: dict[int, float] = {}
        problems: list[str] = []
        for width in WIDTHS:
            with _opened(
                browser, look, problems, color_scheme=scheme, viewport={"width": width, "height": 900}
            ) as page:
                wide[width] = page.evaluate(SIDEWAYS)
                page.screenshot(path=into / f"{look.name}-{width}-{scheme}.png", full_page=True, timeout=PATIENCE)
        claims(not any(wide.values()), f"{look.name}, {scheme}: pixels beyond the sides, by width: {wide}")
        claims(not problems, f"{look.name}, {scheme}: errors: {problems}")
    problems = []
    with _opened(browser, look, problems, viewport={"width": 1280, "height": 900}) as page:
        page.pdf(path=into / f"{look.name}.pdf", format="A4", prefer_css_page_size=True)
    claims(not problems, f"{look.name}, printed: errors: {problems}")


@contextmanager
def _opened(browser: Any, look: Look, problems: list[str], **options: Any) -> Iterator[Any]:
    watched = Watched(browser, **options)
    page = watched.open(look.address, look.route)
    page.wait_for_function(WAITING)
    page.wait_for_timeout(250)
    if look.does is not None:
        look.does(page)
    yield page
    problems += watched.close()


def _play(here: Path, *words: str | Path, code: int = 0) -> None:
    done = nip_run(*words, "-q", cwd=here, timeout=300, XDG_CACHE_HOME=str(here / "cache"))
    assert done.returncode == code, f"{words}: {done.returncode} {done.stderr}"


def _report(here: Path, name: str, *words: str | Path) -> Path:
    _play(here, "report", *words, "-o", f"{name}.html")
    return here / f"{name}.html"


def _first_game(page: Any) -> None:
    """From a list to its first game."""
    page.locator("table.games tbody a").first.click()
    page.locator("header.game h2").wait_for()
    page.wait_for_timeout(150)


def _unfolded(page: Any) -> None:
    _first_game(page)
    for _ in range(3):
        page.evaluate("for (const one of document.querySelectorAll('.turn details:not([open])')) one.open = true")
        page.wait_for_timeout(60)


def _tree(page: Any) -> None:
    page.locator("table tbody a:visible").first.click()
    page.locator(".tree").wait_for()
    page.wait_for_timeout(150)


def _open_tree(page: Any) -> None:
    _tree(page)
    page.keyboard.press("e")
    page.wait_for_timeout(150)


def _pair(page: Any) -> None:
    page.locator("table.pairs tbody a").first.click()
    page.locator(".halves").wait_for()
    page.wait_for_timeout(150)


def _of_games(here: Path) -> Iterator[Look]:
    """Runs offline: two agents; many channels, private ones; an argument of two sides."""
    _play(here, "specs/quickstart.yaml", "--run-id", "quickstart", "dataset.limit=60")
    _play(here, "specs/mnip.yaml", "--run-id", "mnip", "dataset.limit=12")
    _play(here, "specs/debate.yaml", "--run-id", "debate", "dataset.limit=12")
    nip, mnip, debate = (_report(here, name, name) for name in ("quickstart", "mnip", "debate"))
    yield from [
        Look("run", nip),
        Look("list", nip, "run/quickstart/games"),
        Look("list-nothing-found", nip, "run/quickstart/games?q=nowhere"),
        Look("game", nip, "run/quickstart/games", _first_game),
        Look("game-as-verifier", nip, "run/quickstart/games", _as_verifier),
        Look("run-mnip", mnip),
        Look("game-mnip", mnip, "run/mnip/games", _first_game),
        Look("run-debate", debate),
        Look("game-debate", debate, "run/debate/games", _first_game),
        Look("game-debate-as-verifier", debate, "run/debate/games", _as_verifier),
        Look("nowhere", nip, "nowhere"),
    ]


def _as_verifier(page: Any) -> None:
    _first_game(page)
    page.get_by_role("button", name="As verifier saw it").click()
    page.wait_for_timeout(150)


def _served(here: Path, name: str, faults: Mapping[str, float], prose: int, **changes: Any) -> Path:
    """The report of a run that a server here answered."""
    with serving(faults=faults, logprobs=True, prose=prose) as server:
        spec_file(here, server.base_url, **changes)
        _play(here, "spec.yaml", "--run-id", name)
    return _report(here, name, name)


def _of_troubles(here: Path) -> Iterator[Look]:
    """A server that fails at times, answers what cannot be used, and tells log-probabilities."""
    told = {"logprobs": True, "top_logprobs": 3}
    page = _served(here, "troubled", TROUBLE, 400, size=40, verdict={"confidence": "logprob"}, models={"m": told})
    yield Look("run-troubled", page)
    yield Look("list-retried", page, "run/troubled/games?only=retried&sort=-tokens")
    yield Look("game-retried", page, "run/troubled/games?only=retried&sort=-retries", _unfolded)


def _of_long_answers(here: Path) -> Iterator[Look]:
    page = _served(here, "long", {}, LONG, size=1)
    yield Look("run-of-one-game", page)
    yield Look("list-of-one-game", page, "run/long/games")
    yield Look("game-long", page, "run/long/games", _first_game)


def _of_training(here: Path) -> Iterator[Look]:
    """A training run with its parts, and trees with their pairs."""
    training_spec(here)
    _play(here, "spec.yaml", "--run-id", "learn")
    learnt = _report(here, "learn", "learn")
    training_spec(here, **malt(name="malt"))
    _play(here, "spec.yaml", "--run-id", "malt")
    parts = _report(here, "malt", "malt", "malt-i0")
    yield from [
        Look("training", learnt),
        Look("training-malt", parts, "run/malt"),
        Look("run-of-trees", parts, "run/malt-i0"),
        Look("trees", parts, "run/malt-i0/trees"),
        Look("tree", parts, "run/malt-i0/trees", _tree),
        Look("tree-open", parts, "run/malt-i0/trees", _open_tree),
    ]


def _of_several(here: Path) -> Iterator[Look]:
    """Two judges of the same data, a sweep of two axes with seeds, and the boards of all that, local and published."""
    _play(here, "specs/quickstart.yaml", "--run-id", "nip", "dataset.limit=40")
    _play(here, "specs/solo_verifier.yaml", "--run-id", "alone", "dataset.limit=40")
    both = _report(here, "both", "nip", "alone")
    yield Look("overview", both)
    yield Look("compare", both, "compare/nip/alone")
    yield Look("pairs", both, "compare/nip/alone/games")
    yield Look("pair", both, "compare/nip/alone/games", _pair)
    sweep = {"seed": [0, 1], "protocol.max_message_rounds": [3, 5, 7], "agents.verifier.max_response_words": [50, 100]}
    spec_file(here, size=24, name="swept", sweep=sweep)
    _play(here, "spec.yaml")
    swept = sorted(path.name for path in (here / "results" / "runs").iterdir() if path.name.startswith("swept"))
    yield Look("overview-of-a-sweep", _report(here, "swept", *swept))
    board = _report(here, "board", "--board")
    yield Look("board", board)
    yield from (Look(f"board-task-{at}", board, does=partial(_task, at)) for at in range(2))
    for run in ("nip", "alone"):
        _play(here, "publish", run, "--to", "registry", "--as", "acme", "--licence", "MIT", "--force")
    published = _report(here, "published", "--board", "--from", "registry")
    yield Look("board-published", published)
    yield Look("board-published-task", published, does=partial(_task, 0))


def _task(at: int, page: Any) -> None:
    routes = page.evaluate("[...document.querySelectorAll('section a[href^=\"#/board/\"]')].map((one) => one.hash)")
    page.evaluate("to => { location.hash = to; }", list(dict.fromkeys(routes))[at])
    page.wait_for_timeout(300)


def _of_states(here: Path) -> Iterator[Look]:
    """Runs that have not ended: one that plays, seen live too, one that was killed, one without a game."""
    with serving(latency=0.3, faults=TROUBLE) as server:
        spec_file(here, server.base_url, size=600, rollouts={"concurrency": 4})
        _killed(_begun(here, "none"))
        plays = _begun(here, "plays")
        try:
            with viewing("plays", cwd=here) as view:
                view.until("plays", lambda state: bool(state["games"]["count"] >= 5))
                yield Look("live", view.address)
                yield Look("live-list", view.address, "run/plays/games")
                yield Look("run-that-plays", _report(here, "plays", "plays"))
        finally:
            _killed(plays)
        yield Look("run-killed", _report(here, "killed", "plays"))
        yield Look("run-without-a-game", _report(here, "none", "none"))
        yield Look("list-without-a-game", here / "none.html", "run/none/games")


def _begun(here: Path, name: str) -> Any:
    """A run that has a folder, and plays."""
    process = started_silent("spec.yaml", "--run-id", name, cwd=here)
    until((here / "results" / "runs" / name / "journal.jsonl").is_file)
    return process


def _killed(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
