"""A server with everything that its pages can show, published with the command line.

It has components in two versions, runs of several tasks, a training run with its lineage, and an open and a closed
competition. One run is yanked, one is private, and one was reproduced by another owner. Some names and texts are
hostile. The models are planted judges on this machine, and `dummy`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from sqlalchemy import update

from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.schema import competitions
from tests.support.cookie_client import CookieClient
from tests.support.processes import nip_run_here
from tests.support.server_process import ServerProcess, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle
from tests.support.servers.judges_client import judged_spec, run_judge_server
from tests.support.specs import merge_changes

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e https://evil.example/ javascript:x"
JUDGES = {"hawk-eye-70b": 5.0, "night-owl-8b": 3.0, "field-mouse-1b": 1.4, "mole-mini": 0.3}
"""d' of each planted judge."""
PRICES = {"hawk-eye-70b": 9.0, "night-owl-8b": 0.6, "field-mouse-1b": 0.1, "mole-mini": 0.02}
"""Price in USD per million input tokens."""
CLAIMS = 120
HOSTILE_RUN, DEBATE_RUN = "/run/mallory/evil/1", "/run/acme/owl-debate/1"
ABSENT_PAGES = {"absent": "/nowhere", "absent-run": "/run/acme/none/1", "absent-board": "/board/none"}
"""Paths without a page."""
PRIVATE_PAGES = {"mine": "/mine", "account": "/mine/account", "mine-run": "/mine/run/bob/secret-mole/1"}
"""Paths that only `bob` can see."""


@dataclass
class DemoServer:
    """The server, the accounts that publish to it, and the addresses of its pages."""

    served: ServerProcess
    folder: Path
    judges: str
    """The address of the planted judges."""
    redrawn_judges: str
    """The address of the same judges with another random seed."""
    boards: Mapping[str, str] = field(default_factory=dict)
    """The path of the board of each benchmark."""

    @property
    def pages(self) -> dict[str, str]:
        """The path of a public page of each kind."""
        return {
            "home": "/", "board": self.boards["claims/v1"], "board-trained": self.boards["code-validation/v1"],
            "board-unlabelled": self.boards["riddles/v1"], "run": "/run/acme/hawk-alone/1",
            "run-repeated": "/run/bob/mouse-four-times/1", "run-debate": DEBATE_RUN, "games": f"{DEBATE_RUN}/games",
            "game": f"{DEBATE_RUN}/game/1", "run-training": "/run/acme/learns/1",
            "run-part": "/run/acme/learns-t3/1", "run-yanked": "/run/bob/mole/1", "run-hostile": HOSTILE_RUN,
            "game-hostile": f"{HOSTILE_RUN}/game/1",
            "versions": "/run/acme/hawk-alone", "compare": "/compare/acme/hawk-alone/1/bob/mouse-alone/1",
            "compare-others": "/compare/acme/hawk-alone/1/bob/quick-a/1", "component": "/prompts/acme/plain-claims",
            "dataset": "/dataset/acme/claims", "model": "/model/acme/learns-verifier", "owner": "/owner/bob",
            "organisation": "/owner/acme", "owner-hostile": "/owner/mallory", "search": "/search?q=claims",
            "search-nothing": "/search?q=zebra", "competitions": "/competitions",
            "competition-open": "/competitions/acme/winter", "competition-closed": "/competitions/acme/autumn",
            "sign-in": "/login",
        }  # fmt: skip

    def sign_in_cookies(self, account: str) -> list[dict[str, str]]:
        """Sign in and return the cookies in the format of Playwright."""
        client = CookieClient(self.served)
        client.sign_in(self.served.tokens[f"{account}-reads"])
        return [{"name": name, "value": value, "url": self.served.address} for name, value in client.cookies.items()]

    def nip_run(self, account: str, *arguments: str | Path) -> CompletedProcess[str]:
        """Run a command in the folder of an account, with its token."""
        home = self.folder / account
        home.mkdir(exist_ok=True)
        variables = {"NIP_RUN_REGISTRY": self.served.address, "NIP_RUN_TOKEN": self.served.tokens[account],
                     "NIP_RUN_STORE": str(home / "store"), "XDG_CACHE_HOME": str(home / "cache")}  # fmt: skip
        process = nip_run_here(*arguments, cwd=home, **variables)
        assert process.returncode == 0, (arguments, process.stdout, process.stderr)
        return process

    def publish(self, account: str, owner: str, *runs: str, **options: str | bool) -> None:
        """Publish runs under their ids. `--force` allows files that are in no public commit."""
        option_parts = [
            argument for name, value in options.items() for argument in (f"--{name.replace('_', '-')}", value)
        ]
        arguments = [str(argument) for argument in option_parts if argument is not True]
        self.nip_run(account, "publish", *runs, "--as", owner, "--licence", "MIT", "--force", "-q", *arguments)


@contextmanager
def run_demo_server(folder: Path) -> Iterator[DemoServer]:
    """Run the server, publish everything and wait until every page exists."""
    with ExitStack() as stack:
        options = {name: {"sensitivity": sensitivity, "states": True} for name, sensitivity in JUDGES.items()}
        judges, redrawn_judges = (
            stack.enter_context(run_judge_server(judges=options, provers={"orator-8b": 0.8}, seed=seed, reasons=True))
            for seed in (5, 6)
        )
        served = stack.enter_context(run_server(folder / "server"))
        demo = DemoServer(served, folder, judges.base_url, redrawn_judges.base_url)
        _publish_components(demo)
        _publish_benchmarks(demo)
        _publish_training(demo)
        _hold_competitions(demo)
        _insert_hostile_runs(demo)
        demo.boards = _find_boards(served)
        client = CookieClient(served)
        for path in demo.pages.values():  # the server builds the page of a run on the first request
            client.load_page(path)
        client.sign_in(served.tokens["bob-reads"])
        client.load_page(PRIVATE_PAGES["mine-run"])
        yield demo


@contextmanager
def run_empty_server(folder: Path) -> Iterator[ServerProcess]:
    """Run a server without releases, and wait until it has a board."""
    with run_server(folder / "empty") as served:
        CookieClient(served).load_page("/")
        yield served


def _publish_components(demo: DemoServer) -> None:
    """Publish prompts in two versions and the dataset of a benchmark, and install them for all accounts."""
    home = demo.folder / "alice"
    judged_spec(
        home, demo.judges, "solo_verifier", "mole-mini", labels=[number % 2 for number in range(CLAIMS)], pairs=True
    )
    component = ("--licence", "CC-BY-4.0", "--force", "-q")
    for version, hint in (("1.0", ""), ("1.1", "Think of how such claims fail before you answer.\n")):
        path = home / "prompts" / "verifier.jinja"
        path.write_text(hint + path.read_text("utf-8"), "utf-8")
        demo.nip_run("alice", "publish", "prompts", "--kind", "prompts", "--as", f"acme/plain-claims@{version}",
                  "--description", "A claim, and a verdict on it with its confidence.", *component)  # fmt: skip
    demo.nip_run("alice", "publish", "claims.jsonl", "--kind", "dataset", "--as", "acme/claims@1",
              "--description", "120 claims of 60 topics, half of them right.", *component)  # fmt: skip
    for account in ("alice", "bob", "mallory"):
        demo.nip_run(account, "install", "dataset/acme/claims@1", "prompts/acme/plain-claims@1.0",
                  "prompts/acme/plain-claims@1.1", "-q")  # fmt: skip


def _run_judge(
    demo: DemoServer, account: str, run: str, judge: str, protocol: str = "solo_verifier", **changes: Any
) -> str:
    """Run a judge on the claims, alone or with provers; return the id of the run."""
    home = demo.folder / account
    provers = ["orator-8b", "orator-8b"] if protocol == "debate" else []
    dataset = {"path": "acme/claims@1", "group_by": "topic"}
    prompts = "prompts" if provers else "acme/plain-claims@1.1"
    models = {name: {"price": {"input": PRICES.get(name, 0.5), "output": 4 * PRICES.get(name, 0.5)}}
             for name in (judge, *provers)}  # fmt: skip
    base: dict[str, Any] = {
        "name": run, "benchmark": "claims/v1", "dataset": dataset, "prompts": prompts, "models": models,
        "fine_tune": None,
        "description": f"{judge} judges 120 claims, {'two orators arguing' if provers else 'alone'}.",
    }  # fmt: skip
    labels = [number % 2 for number in range(CLAIMS)]
    judged_spec(
        home / f"spec-{run}", demo.judges, protocol, judge, provers, labels=labels, **merge_changes(base, changes)
    )
    demo.nip_run(account, f"spec-{run}/spec.yaml", "--run-id", run, "-q")
    return run


def _publish_benchmarks(demo: DemoServer) -> None:
    """Publish runs of three owners on the claims: one reproduced by another owner, one yanked, one private."""
    alice = [
        _run_judge(demo, "alice", "hawk-alone", "hawk-eye-70b"),
        _run_judge(demo, "alice", "owl-alone", "night-owl-8b"),
        _run_judge(demo, "alice", "owl-debate", "night-owl-8b", "debate"),
    ]
    bob = [
        _run_judge(demo, "bob", "mouse-alone", "field-mouse-1b", prompts="acme/plain-claims@1.0"),
        _run_judge(demo, "bob", "mouse-four-times", "field-mouse-1b", rollouts={"per_datapoint": 4}),
        _run_judge(demo, "bob", "mole", "mole-mini", seed=3),
    ]
    secret = _run_judge(demo, "bob", "secret-mole", "mole-mini", seed=4)
    demo.publish("alice", "acme", *alice)
    demo.publish("bob", "bob", *bob)
    demo.publish("bob", "bob", secret, private=True)
    demo.nip_run("bob", "publish", "bob/mole@1", "--kind", "run", "--yank", "the seed was of another run")
    demo.nip_run("mallory", "get", "acme/hawk-alone@1", "hawk")
    host = demo.redrawn_judges.removeprefix("http://").partition("/")[0]
    judge = f"models.hawk-eye-70b.base_url={demo.redrawn_judges}"
    demo.nip_run("mallory", "reproduce", "hawk", "--fresh", "--set", judge, "--allow-host", f"http://{host}", "-q")
    demo.publish("mallory", "mallory", "last")


def _publish_training(demo: DemoServer) -> None:
    """Publish expert iteration of two model groups with its parts and models, and games on the same problems."""
    demo.nip_run("alice", "specs/expert_iteration.yaml", "--run-id", "learns", "-q")
    demo.publish("alice", "acme", "learns")
    for run, seed in (("quick-a", 1), ("quick-b", 2)):
        demo.nip_run("bob", "specs/quickstart.yaml", "--run-id", run, f"seed={seed}", "-q")
    demo.publish("bob", "bob", "quick-a", "quick-b")


def _hold_competitions(demo: DemoServer) -> None:
    """Hold an open and a closed competition with held-out rows; two owners submit to both."""
    labels = {f"q{number}": int(number % 3 == 0) for number in range(60)}
    rows = [{"id": name, "label": None, "claim": number, "topic": number // 2,
             "there": ("wrong", "right")[labels[name]]} for number, name in enumerate(labels)]  # fmt: skip
    path = demo.folder / "alice" / "riddles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    demo.nip_run("alice", "publish", "riddles.jsonl", "--kind", "dataset", "--as", "acme/riddles@1", "--licence", "MIT",
              "--description", "Sixty claims whose labels acme keeps.", "--force", "-q")  # fmt: skip
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30 * 24 * 3600))
    for name, title in (("winter", "Riddles, winter"), ("autumn", "Riddles, autumn")):
        body = {"dataset": "acme/riddles@1", "name": name, "title": title, "labels": labels, "closes": closes,
                "day_limit": 5, "held_share": 0.4, "group_by": "topic"}  # fmt: skip
        created = demo.served.request("/api/v1/competitions", "POST", body, token=demo.served.tokens["alice"])
        assert created.status == 201, created.body
    changes: dict[str, Any] = {"dataset": {"path": "acme/riddles@1", "group_by": None}, "benchmark": "riddles/v1"}
    for account, judge in (("bob", "night-owl-8b"), ("mallory", "field-mouse-1b")):
        demo.nip_run(account, "install", "dataset/acme/riddles@1", "-q")
        demo.publish(
            account, account, _run_judge(demo, account, f"riddles-{judge.partition('-')[0]}", judge, **changes)
        )
    client = CookieClient(demo.served)
    for name in ("winter", "autumn"):
        client.wait_for_response(f"/competitions/acme/{name}", lambda response: response.body.count(b"riddles-") >= 2)
    with closing(demo.served.open_database()) as database, database.writing() as connection:
        connection.execute(update(competitions).where(competitions.c.name == "autumn").values(closes=time.time() - 5))


def _insert_hostile_runs(demo: DemoServer) -> None:
    """Insert releases with hostile texts, which our client would refuse to publish but another client could send."""
    bundle = run_bundle(demo.folder / "hostile", seed=2, question=HOSTILE, models={"m": {"model": HOSTILE}},
                        benchmark=HOSTILE)  # fmt: skip
    server = Service.open(Settings(folder=demo.folder / "server"))
    try:
        long_texts = {"name": "evil-" + 90 * "x", "description": 200 * "long "}
        insert_releases(
            server,
            [
                copy_bundle(bundle, owner="mallory", name="evil", description=HOSTILE),
                copy_bundle(bundle, owner="mallory", **long_texts),
            ],
        )
    finally:
        server.database.close()


def _find_boards(served: ServerProcess) -> dict[str, str]:
    """Wait for the last release on the home page; return the path of the board of each benchmark."""
    client = CookieClient(served)
    home = client.wait_for_response("/", lambda response: b"mallory/evil" in response.body).body.decode()
    boards: dict[str, str] = {}
    for part in home.split('<a href="/board/')[1:]:
        page, _, rest = part.partition('">')
        boards.setdefault(rest.partition("<")[0], f"/board/{page}")  # the first of two with one name has more rows
    return boards
