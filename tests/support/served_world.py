"""A server with all that a page can show, published by the command line as its users do it.

Owners and an organisation, components in two versions, runs of several tasks, a training run with its lineage, a run
that another owner plays anew, one that is yanked, one that is private, a competition that is open and one that is
closed, and names and texts that mean harm. The models are planted judges on this machine, and `dummy`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from sqlalchemy import update

from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.schema import competitions
from tests.support.browsing import Browsing
from tests.support.processes import nip_run_here
from tests.support.served import copy_of, put, run_bundle
from tests.support.servers.judges_client import judged_spec, judging
from tests.support.serving import Served, serving
from tests.support.specs import merged

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e https://evil.example/ javascript:x"
JUDGES = {"hawk-eye-70b": 5.0, "night-owl-8b": 3.0, "field-mouse-1b": 1.4, "mole-mini": 0.3}
"""d' of each planted judge."""
PRICES = {"hawk-eye-70b": 9.0, "night-owl-8b": 0.6, "field-mouse-1b": 0.1, "mole-mini": 0.02}
"""Dollars of a million tokens."""
CLAIMS = 120
EVIL, DEBATE = "/run/mallory/evil/1", "/run/acme/owl-debate/1"
ABSENT = {"absent": "/nowhere", "absent-run": "/run/acme/none/1", "absent-board": "/board/none"}
"""Where there is no page."""
PRIVATE = {"mine": "/mine", "account": "/mine/account", "mine-run": "/mine/run/bob/secret-mole/1"}
"""What bob alone is shown."""


@dataclass
class World:
    """The server, who publishes there, and where its pages are."""

    served: Served
    folder: Path
    judges: str
    """The address of the planted judges."""
    again: str
    """That of the same ones on another day: what they see is drawn anew."""
    boards: Mapping[str, str] = field(default_factory=dict)
    """The page of each benchmark's task."""

    @property
    def pages(self) -> dict[str, str]:
        """The address of a page of each kind, which anybody is shown."""
        return {
            "home": "/", "board": self.boards["claims/v1"], "board-trained": self.boards["code-validation/v1"],
            "board-unlabelled": self.boards["riddles/v1"], "run": "/run/acme/hawk-alone/1",
            "run-repeated": "/run/bob/mouse-four-times/1", "run-debate": DEBATE, "games": f"{DEBATE}/games",
            "game": f"{DEBATE}/game/1", "run-training": "/run/acme/learns/1",
            "run-part": "/run/acme/learns-t3/1", "run-yanked": "/run/bob/mole/1", "run-hostile": EVIL,
            "game-hostile": f"{EVIL}/game/1",
            "versions": "/run/acme/hawk-alone", "compare": "/compare/acme/hawk-alone/1/bob/mouse-alone/1",
            "compare-others": "/compare/acme/hawk-alone/1/bob/quick-a/1", "component": "/prompts/acme/plain-claims",
            "dataset": "/dataset/acme/claims", "model": "/model/acme/learns-verifier", "owner": "/owner/bob",
            "organisation": "/owner/acme", "owner-hostile": "/owner/mallory", "search": "/search?q=claims",
            "search-nothing": "/search?q=zebra", "competitions": "/competitions",
            "competition-open": "/competitions/acme/winter", "competition-closed": "/competitions/acme/autumn",
            "sign-in": "/login",
        }  # fmt: skip

    def signed_in(self, who: str) -> list[dict[str, str]]:
        """The cookies of a browser in which somebody is signed in, as Playwright takes them."""
        asks = Browsing(self.served)
        asks.sign_in(self.served.tokens[f"{who}-reads"])
        return [{"name": name, "value": value, "url": self.served.address} for name, value in asks.cookies.items()]

    def here(self, who: str, *words: str | Path) -> CompletedProcess[str]:
        """A command of somebody who works in a folder of their own, and has a token of the server."""
        place = self.folder / who
        place.mkdir(exist_ok=True)
        said = {"NIP_RUN_REGISTRY": self.served.address, "NIP_RUN_TOKEN": self.served.tokens[who],
                "NIP_RUN_STORE": str(place / "store"), "XDG_CACHE_HOME": str(place / "cache")}  # fmt: skip
        done = nip_run_here(*words, cwd=place, **said)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def publish(self, who: str, owner: str, *runs: str, **said: str | bool) -> None:
        """Runs of somebody's, under their ids; they are of no public commit."""
        more = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", value)]
        words = [str(word) for word in more if word is not True]
        self.here(who, "publish", *runs, "--as", owner, "--licence", "MIT", "--force", "-q", *words)


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """All of it, once every board is there."""
    with ExitStack() as stack:
        options = {name: {"sensitivity": sees, "states": True} for name, sees in JUDGES.items()}
        judges, again = (
            stack.enter_context(judging(judges=options, provers={"orator-8b": 0.8}, seed=seed, reasons=True))
            for seed in (5, 6)
        )
        served = stack.enter_context(serving(folder / "server"))
        made = World(served, folder, judges.base_url, again.base_url)
        _components(made)
        _benchmarks(made)
        _training(made)
        _competitions(made)
        _hostile(made)
        made.boards = _boards(served)
        warm = Browsing(served)
        for path in made.pages.values():  # pages of runs are made once, which takes a while
            warm.page(path)
        warm.sign_in(served.tokens["bob-reads"])
        warm.page(PRIVATE["mine-run"])
        yield made


@contextmanager
def empty(folder: Path) -> Iterator[Served]:
    """A server to which nobody has published, once it has a board."""
    with serving(folder / "empty") as served:
        Browsing(served).page("/")
        yield served


def _components(made: World) -> None:
    """Prompts in two versions, the rows of a benchmark, and a protocol."""
    place = made.folder / "alice"
    judged_spec(place, made.judges, "solo_verifier", "mole-mini", labels=[at % 2 for at in range(CLAIMS)], pairs=True)
    component = ("--licence", "CC-BY-4.0", "--force", "-q")
    for version, words in (("1.0", ""), ("1.1", "Think of how such claims fail before you answer.\n")):
        path = place / "prompts" / "verifier.jinja"
        path.write_text(words + path.read_text("utf-8"), "utf-8")
        made.here("alice", "publish", "prompts", "--kind", "prompts", "--as", f"acme/plain-claims@{version}",
                  "--description", "A claim, and a verdict on it with its confidence.", *component)  # fmt: skip
    made.here("alice", "publish", "claims.jsonl", "--kind", "dataset", "--as", "acme/claims@1",
              "--description", "120 claims of 60 topics, half of them right.", *component)  # fmt: skip
    for who in ("alice", "bob", "mallory"):
        made.here(who, "install", "dataset/acme/claims@1", "prompts/acme/plain-claims@1.0",
                  "prompts/acme/plain-claims@1.1", "-q")  # fmt: skip


def _judged(made: World, who: str, run: str, judge: str, protocol: str = "solo_verifier", **changes: Any) -> str:
    """A run of a judge on the claims, alone or with provers."""
    place = made.folder / who
    provers = ["orator-8b", "orator-8b"] if protocol == "debate" else []
    parts = {"path": "acme/claims@1", "group_by": "topic"}
    prompts = "prompts" if provers else "acme/plain-claims@1.1"
    price = {name: {"price": {"input": PRICES.get(name, 0.5), "output": 4 * PRICES.get(name, 0.5)}}
             for name in (judge, *provers)}  # fmt: skip
    base: dict[str, Any] = {
        "name": run, "benchmark": "claims/v1", "dataset": parts, "prompts": prompts, "models": price, "fine_tune": None,
        "description": f"{judge} judges 120 claims, {'two orators arguing' if provers else 'alone'}.",
    }  # fmt: skip
    labels = [at % 2 for at in range(CLAIMS)]
    judged_spec(place / f"spec-{run}", made.judges, protocol, judge, provers, labels=labels, **merged(base, changes))
    made.here(who, f"spec-{run}/spec.yaml", "--run-id", run, "-q")
    return run


def _benchmarks(made: World) -> None:
    """Runs of claims by three owners, one of them again by another owner, one yanked, one private."""
    alice = [
        _judged(made, "alice", "hawk-alone", "hawk-eye-70b"),
        _judged(made, "alice", "owl-alone", "night-owl-8b"),
        _judged(made, "alice", "owl-debate", "night-owl-8b", "debate"),
    ]
    bob = [
        _judged(made, "bob", "mouse-alone", "field-mouse-1b", prompts="acme/plain-claims@1.0"),
        _judged(made, "bob", "mouse-four-times", "field-mouse-1b", rollouts={"per_datapoint": 4}),
        _judged(made, "bob", "mole", "mole-mini", seed=3),
    ]
    secret = _judged(made, "bob", "secret-mole", "mole-mini", seed=4)
    made.publish("alice", "acme", *alice)
    made.publish("bob", "bob", *bob)
    made.publish("bob", "bob", secret, private=True)
    made.here("bob", "publish", "bob/mole@1", "--kind", "run", "--yank", "the seed was of another run")
    made.here("mallory", "get", "acme/hawk-alone@1", "hawk")
    host = made.again.removeprefix("http://").partition("/")[0]
    judge = f"models.hawk-eye-70b.base_url={made.again}"
    made.here("mallory", "reproduce", "hawk", "--fresh", "--set", judge, "--allow-host", f"http://{host}", "-q")
    made.publish("mallory", "mallory", "last")


def _training(made: World) -> None:
    """Expert iteration of two model groups, its parts and models, by the organisation; games on the same problems."""
    made.here("alice", "specs/expert_iteration.yaml", "--run-id", "learns", "-q")
    made.publish("alice", "acme", "learns")
    for run, seed in (("quick-a", 1), ("quick-b", 2)):
        made.here("bob", "specs/quickstart.yaml", "--run-id", run, f"seed={seed}", "-q")
    made.publish("bob", "bob", "quick-a", "quick-b")


def _competitions(made: World) -> None:
    """One that is open and one that has closed, with a part of the rows held out; two owners submit to both."""
    labels = {f"q{at}": int(at % 3 == 0) for at in range(60)}
    rows = [{"id": name, "label": None, "claim": at, "topic": at // 2, "there": ("wrong", "right")[labels[name]]}
            for at, name in enumerate(labels)]  # fmt: skip
    path = made.folder / "alice" / "riddles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    made.here("alice", "publish", "riddles.jsonl", "--kind", "dataset", "--as", "acme/riddles@1", "--licence", "MIT",
              "--description", "Sixty claims whose labels acme keeps.", "--force", "-q")  # fmt: skip
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30 * 24 * 3600))
    for name, title in (("winter", "Riddles, winter"), ("autumn", "Riddles, autumn")):
        body = {"dataset": "acme/riddles@1", "name": name, "title": title, "labels": labels, "closes": closes,
                "day_limit": 5, "held_share": 0.4, "group_by": "topic"}  # fmt: skip
        answer = made.served.ask("/api/v1/competitions", "POST", body, token=made.served.tokens["alice"])
        assert answer.status == 201, answer.body
    entered: dict[str, Any] = {"dataset": {"path": "acme/riddles@1", "group_by": None}, "benchmark": "riddles/v1"}
    for who, judge in (("bob", "night-owl-8b"), ("mallory", "field-mouse-1b")):
        made.here(who, "install", "dataset/acme/riddles@1", "-q")
        made.publish(who, who, _judged(made, who, f"riddles-{judge.partition('-')[0]}", judge, **entered))
    asks = Browsing(made.served)
    for name in ("winter", "autumn"):
        asks.once(f"/competitions/acme/{name}", lambda answer: answer.body.count(b"riddles-") >= 2)
    with (records := made.served.records()).writing() as connection:
        connection.execute(update(competitions).where(competitions.c.name == "autumn").values(closes=time.time() - 5))
    records.close()


def _hostile(made: World) -> None:
    """What our own client would not write: put past it, as another client could send it."""
    bundle = run_bundle(made.folder / "hostile", seed=2, question=HOSTILE, models={"m": {"model": HOSTILE}},
                        benchmark=HOSTILE)  # fmt: skip
    server = Service.open(Settings(folder=made.folder / "server"))
    try:
        put(server, [copy_of(bundle, owner="mallory", name="evil", description=HOSTILE),
                     copy_of(bundle, owner="mallory", name="evil-" + 90 * "x", description=200 * "long ")])  # fmt: skip
    finally:
        server.database.close()


def _boards(served: Served) -> dict[str, str]:
    asks = Browsing(served)
    home = asks.once("/", lambda answer: b"mallory/evil" in answer.body).body.decode()
    found: dict[str, str] = {}
    for part in home.split('<a href="/board/')[1:]:
        page, _, rest = part.partition('">')
        found.setdefault(rest.partition("<")[0], f"/board/{page}")  # of two of a name, that with more rows
    return found
