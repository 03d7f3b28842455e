"""The API against its own OpenAPI document: schemathesis makes requests of it, over a server that holds real things.

    python .ci/tools/openapi.py [--python PYTHON_WITH_SCHEMATHESIS] [--examples 40]

Without a Python that has schemathesis, an environment with it is made. The server has releases of each kind, what was
yanked, hidden and private, uploads that are open, a competition with a submission, organisations and tokens; their
names stand in the document as examples, and most generated requests have them, so that what is behind a name is
reached. Asked as nobody, and with a token of each scope. Claimed: no answer is an error of the server; each has a
status, a content type and a body that the document declares; what the document forbids is refused, and what it allows
is not refused as malformed; a token that is left out or wrong is noticed; and every operation was answered with success
at least once, by the server's own counts. Exit code 1: a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
import venv
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shared import SoftAssertions, folder

from runner.documents.releases.bundle import open_content
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.server.accounts.accounts import add_account
from runner.server.service import Service
from runner.server.settings import Settings
from tests.support.processes import wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import ServerProcess, create_accounts, run_server
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

NEEDS = "schemathesis>=4.32"
ROWS = 12
WHO = (None, "alice-reads", "alice", "keeper")
"""Nobody, and a token of each scope."""
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "positive_data_acceptance", "missing_required_header",
    "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
"""All but those that want an object to be gone or there by who made it: tests/server has these, with real publishes."""
OFFSET = "upload-offset"
SOMETIMES = 0.7
"""How often a generated request has a name that is there."""
REFUSED = ["2xx", "400", "401", "403", "404", "409", "422", "429", "507"]
"""What may be said of a body that is as the document says: an upload may lack its manifest, a row its label; and 429 of
a check that tries wrong tokens, of which a server takes 60 a minute."""


@dataclass
class Things:
    """What a server holds, by the parameters that name it."""

    words: dict[str, list[Any]] = field(default_factory=dict)
    """By the name of a parameter; where that is `name`, by the beginning of a path, or by method and path."""
    bodies: dict[str, list[Any]] = field(default_factory=dict)
    """By method and path."""


def filled(folder: Path) -> tuple[dict[str, str], Things]:
    """A server's folder with releases of several kinds, before it runs; the tokens, and what there is."""
    server = Service.open(Settings(folder=folder))
    with closing(server.database):
        tokens = create_accounts(server.database)
        with server.database.writing() as connection:
            add_account(connection, "lab", 0.0, organisation=True)
        rows = folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in _rows()), "utf-8")
        choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
        run = run_bundle(folder / "run", owner="alice", seed=1)
        private = replace(run.release, name="secret", visibility="private")
        insert_releases(
            server,
            [build_component_draft(rows, Kind.DATASET, choices, None).bundle(), run, replace(run, release=private)],
        )
        insert_releases(
            server, [copy_bundle(run, name="hidden"), copy_bundle(run, owner="acme", version="2", links=(_again(run),))]
        )
    return tokens, Things({"release": [f"run/alice/{run.release.name}/1", "run/alice/hidden/1"]})


def _rows() -> list[dict[str, Any]]:
    return [{"id": f"p{n}", "label": None, "question": f"Is {n} right?", "solution": n} for n in range(ROWS)]


def _again(run: Any) -> ReleaseLink:
    return ReleaseLink(role="reproduces", release=str(run.release.reference), sha256=run.sha256)


def used(served: ServerProcess, folder: Path, things: Things) -> None:
    """Have uploads, competitions, submissions, tokens, invitations; and note the names of everything."""
    from runner.registry.bundles.runs import build_run_draft
    from runner.results.leaderboard.results_folder import Results
    from tests.support.runs import run_spec
    from tests.support.specs import spec_file

    alice, keeper = served.tokens["alice"], served.tokens["keeper"]
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    cup = {"dataset": "acme/claims@1", "name": "cup", "labels": {f"p{n}": n % 2 for n in range(ROWS)}, "closes": closes}
    to_end = [f"to-end-{number}" for number in range(4)]
    for name in ("cup", "spare", *to_end):
        _asked(served, 201, "/api/v1/competitions", "POST", {**cup, "name": name, "held_out": ["p1"]}, alice)
    spec = spec_file(folder / "mine", dataset={"path": str(folder / "rows.jsonl")}, fine_tune=None)
    result = run_spec(spec, folder / "results", run_id="mine")
    bundle = build_run_draft(
        result.folder, Results(folder / "results"), PublisherChoices(owner="mallory", licence="MIT")
    ).bundle()
    served.publish("mallory", bundle)
    mine = bundle.release
    where = f"/api/v1/competitions/acme/cup/submissions/mallory/{mine.name}/{mine.version}"
    wait_until(lambda: served.request(where).json["state"] == "scored")
    _asked(served, 204, f"/api/v1/hidden/{things.words['release'][1]}", "PUT", {"why": "a test"}, keeper)
    for who, account in (("alice", "mallory"), ("alice", "bob")):
        _asked(served, 200, f"/api/v1/organisations/acme/members/{account}", "PUT", {}, served.tokens[who])
    made = [_asked(served, 201, "/api/v1/tokens", "POST", {"label": "x"}, served.tokens[who])["id"]
            for who in ("alice", "keeper") for _ in range(20)]  # fmt: skip
    uploads, hashes, bodies = _uploads(served, bundle)
    with RawUploadClient(served.address, alice) as client:
        files = client.list_files()
    wait_until(lambda: served.request("/").status == 200 and b"/board/" in served.request("/").body)
    boards = re.findall(r'href="/board/([0-9a-f]{12})"', served.request("/").body.decode())
    things.words |= {
        "path": files, "prefix": ["run/", "dataset/acme/claims/1", ""], "after": ["", files[0]], "upload": uploads,
        "sha256": hashes, "token": made, "owner": ["acme"], "run_owner": ["mallory"], "run_name": [mine.name],
        "run_version": [mine.version], "account": ["bob", "mallory"], "page": boards, OFFSET: [0],
        "why": ["a test"], "delete /api/v1/competitions/{owner}/{name}": to_end,
        "/api/v1/organisations": ["acme", "lab"], "/api/v1/competitions": ["cup", "spare"],
    }  # fmt: skip
    things.bodies |= {
        "post /api/v1/files": [{"paths": files[:5]}, {"paths": [*files[-2:], "run/no/such/1/file"]}],
        "post /api/v1/uploads": bodies,
        "post /api/v1/competitions": [{**cup, "name": f"more-{n}", "held_share": 0.3} for n in range(3)],
        "patch /api/v1/competitions/{owner}/{name}": [{"title": "Other", "day_limit": 7}, {"day_limit": 9}],
        "put /api/v1/competitions/{owner}/{name}/labels": [{"labels": {"p2": 1}, "why": "was wrong"}],
        "put /api/v1/hidden/{release}": [{"why": "a test"}],
        "post /api/v1/tokens": [{"scope": "read", "days": 1, "label": "b"}],
        # Were another an owner, too, alice would be put out of acme before she ends its competitions.
        "put /api/v1/organisations/{name}/members/{account}": [{"is_owner": False}],
    }


def _asked(served: ServerProcess, status: int, path: str, *said: Any) -> Any:
    method, body, token = said
    answer = served.request(path, method, body, token=token)
    assert answer.status == status, (path, answer.status, answer.body)
    return answer.json if answer.body else None


def _uploads(served: ServerProcess, bundle: Any) -> tuple[list[str], list[str], list[Any]]:
    """Uploads of alice's that are open, each with a file that is not there yet; their blobs; and what declares more."""
    ids, hashes, bodies = [], [], []
    with RawUploadClient(served.address, served.tokens["alice"]) as raw:
        for number in range(24):
            other = copy_bundle(bundle, owner="alice", name=f"upload-{number}")
            contents = {}
            for path, content in other.files():
                with open_content(content) as source:
                    contents[path] = source.read()
            said = raw.start_upload({f"run/alice/upload-{number}/1": contents})
            assert said.status_code == 200, said.text
            if number >= 16:
                raw.client.delete(f"/uploads/{said.json()['id']}")
                bodies.append(json.loads(said.request.content))
                continue
            for missing in said.json()["missing"] if number < 8 else ():  # these may be committed
                data = next(data for data in contents.values() if _hash(data) == missing["sha256"])
                assert raw.send_blob(said.json()["id"], data).status_code == 200
            ids.append(said.json()["id"])
            hashes += [missing["sha256"] for missing in said.json()["missing"]]
    return ids, sorted(set(hashes)), bodies


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


# The document with names that are there


def with_examples(document: dict[str, Any], things: Things) -> dict[str, Any]:
    """The document, in which each parameter and body has examples of what the server holds."""
    for path, method, said in _operations(document):
        for parameter in said.get("parameters", ()):
            if words := _words(things, f"{method} {path}", parameter):
                parameter["examples"] = {f"e{n}": {"value": word} for n, word in enumerate(words[:8])}
        if bodies := things.bodies.get(f"{method} {path}"):
            content = said["requestBody"]["content"]["application/json"]
            content["examples"] = {f"e{n}": {"value": body} for n, body in enumerate(bodies)}
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, said in operations.items():
            yield path, method, said


def _words(things: Things, operation: str, parameter: dict[str, Any]) -> list[Any]:
    if parameter["schema"].get("type") not in ("string", None) and parameter["name"] != OFFSET:
        return []
    if parameter["name"] == "name":
        path = operation.partition(" ")[2]
        return things.words.get(operation) or next(
            (words for prefix, words in things.words.items() if path.startswith(prefix)), []
        )
    return things.words.get(parameter["name"], [])


def configuration(document: dict[str, Any], things: Things, token: str | None, examples: int) -> str:
    """What schemathesis is told: words for parameters, and which refusals are no contradiction."""
    lines = ["continue-on-failure = true", "suppress-health-check = ['all']"]
    if token is not None:
        lines += ["[auth.openapi]", f"token = {{ bearer = {json.dumps(token)} }}"]
    lines += ["[generation]", f"max-examples = {examples}", "deterministic = true", "allow-x00 = true"]
    lines += [] if token is not None else ["with-security-parameters = false"]  # who tries tokens is soon slowed down
    lines += ["[checks.positive_data_acceptance]", f"expected-statuses = {json.dumps(REFUSED)}"]
    lines += ["[checks.negative_data_rejection]", 'expected-statuses = ["4xx"]']
    dictionaries: dict[str, list[str]] = {}
    operations = []
    for path, method, said in _operations(document):
        found = {}
        for parameter in said.get("parameters", ()):
            if words := _words(things, f"{method} {path}", parameter):
                name = f"d{len(dictionaries)}"
                dictionaries[name] = words
                found[f"{parameter['in']}.{parameter['name']}"] = name
        if found:
            operations += ["[[operations]]", f"include-name = {json.dumps(f'{method.upper()} {path}')}"]
            operations += ["[operations.parameters]"]
            operations += [
                f"{json.dumps(name)} = {{ dictionary = {json.dumps(word)}, probability = {SOMETIMES} }}"
                for name, word in found.items()
            ]
    lines += [f"[dictionaries.{name}]\nvalues = {json.dumps(words)}" for name, words in dictionaries.items()]
    return "\n".join([*lines, *operations]) + "\n"


def answered(served: ServerProcess) -> Counter[tuple[str, str, int]]:
    """How often each route was answered with what, as the server itself counts."""
    lines = served.request("/metrics", token=served.tokens["keeper"]).body.decode().splitlines()
    shape = re.compile(r'nip_run_requests_total\{method="(\w+)",route="(.*)",status="(\d+)"\} (\d+)')
    counted: Counter[tuple[str, str, int]] = Counter()
    for found in filter(None, map(shape.fullmatch, lines)):
        counted[found[1], found[2].replace(":path}", "}"), int(found[3])] += int(found[4])
    return counted


def environment_with(place: Path) -> str:
    venv.create(place, with_pip=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "-q", NEEDS], check=True)
    return str(place / "bin" / "python")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", metavar="PYTHON", help="one that has schemathesis")
    parser.add_argument("--examples", type=int, default=40, help="of each operation and phase; default: 40")
    parser.add_argument("--only", metavar="WHO", help="ask as this one alone; `nobody`: without a token")
    args = parser.parse_args()
    check = SoftAssertions()
    with folder() as place:
        python = args.python or environment_with(place / "venv")
        for who in WHO:
            if args.only in (None, who or "nobody"):
                look(place / (who or "nobody"), who, python, args.examples, check)
        missed = sorted(NAMED - REACHED)
        check(not missed, f"{len(REACHED)} of {len(NAMED)} operations were answered with success; not {missed}")
    return check.exit_code()


NAMED: set[str] = set()
REACHED: set[str] = set()
"""Operations of the document, and those that anybody was answered with success."""


def look(place: Path, who: str | None, python: str, examples: int, check: SoftAssertions) -> None:
    """Ask a server of its own all that schemathesis thinks of, as one person."""
    place.mkdir()
    (place / "server").mkdir()
    tokens, things = filled(place / "server")
    with run_server(place / "server", "--rate", "0", people=False) as running:
        served = replace(running, tokens=tokens)
        used(served, place / "server", things)
        document = with_examples(served.request("/api/v1/openapi.json").json, things)
        (place / "openapi.json").write_text(json.dumps(document), "utf-8")
        told = configuration(document, things, None if who is None else tokens[who], examples)
        (place / "schemathesis.toml").write_text(told, "utf-8")
        words = ["-m", "schemathesis.cli", "run", "openapi.json", "--url", served.address, "--no-color"]
        done = subprocess.run(
            [python, *words, "--checks", ",".join(CHECKS), "--generation-database", "none"],
            cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        counted = answered(served)
        errors = {key: count for key, count in counted.items() if key[2] >= 500}
        if done.returncode:
            print("\n".join(line[:300] for line in done.stdout.splitlines()), done.stderr[-4_000:])
        name = who or "nobody"
        check(done.returncode == 0, f"as {name}: schemathesis finds nothing: {_summary(done.stdout)}")
        check(not errors, f"as {name}: no answer is the server's error: {errors or sum(counted.values())}")
        traces = [line for line in served.log.splitlines() if "Traceback" in line]
        check(not traces, f"as {name}: no fault of its own is in its log")
        if traces:
            print(traces[0].replace("\\n", "\n"))
        good = {(method, route) for method, route, status in counted if status < 300}
        named = {(method.upper(), path) for path, said in document["paths"].items() for method in said}
        NAMED.update(f"{method} {path}" for method, path in named)
        REACHED.update(f"{method} {path}" for method, path in named & good)


def _summary(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if "generated" in line or "passed" in line]
    return "; ".join(lines[-2:]) or said.strip()[-200:]


if __name__ == "__main__":
    raise SystemExit(main())
