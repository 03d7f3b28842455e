"""Check the API against its OpenAPI document with requests that schemathesis generates, on a server with real contents.

    python .ci/tools/openapi.py [--python PYTHON_WITH_SCHEMATHESIS] [--examples 40]

If no Python with schemathesis is given, the script creates an environment with it. The server has releases of each kind
(some of them hidden or private), open uploads, a competition with a submission, organisations and tokens. The document
gets their names as examples, and most generated requests use them, so that the requests reach real objects. The
requests are sent without a token, and with a token of each scope. The script checks:

- no answer is a server error, and each has a status, content type and body that the document declares
- the server refuses what the document forbids, and does not refuse as malformed what it allows
- the server notices a missing or wrong token
- every operation succeeds at least once, by the server's own counts

The exit code is 1 if a check fails.
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

from shared import SoftAssertions, temporary_folder

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

REQUIREMENT = "schemathesis>=4.32"
ROWS = 12
ACCOUNTS = (None, "alice-reads", "alice", "keeper")
"""Accounts with a token of each scope; None sends requests without a token."""
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "positive_data_acceptance", "missing_required_header",
    "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
"""The checks of schemathesis, without the checks of an object's creation and deletion, which tests/server covers."""
OFFSET = "upload-offset"
KNOWN_NAME_PROBABILITY = 0.7
"""The share of generated requests with the name of an existing object."""
EXPECTED_STATUSES = ["2xx", "400", "401", "403", "404", "409", "422", "429", "507"]
"""Statuses that a valid body may get: an upload may lack its manifest, or a row its label. 429 is the answer to a check
that tries more than 60 wrong tokens per minute."""


@dataclass
class ServerContents:
    """The names of a server's objects, by the parameters that take them."""

    values: dict[str, list[Any]] = field(default_factory=dict)
    """Values by the name of a parameter. For `name`: by the beginning of a path, or by method and path."""
    bodies: dict[str, list[Any]] = field(default_factory=dict)
    """Request bodies by method and path."""


def fill_server_folder(server_folder: Path) -> tuple[dict[str, str], ServerContents]:
    """Fill a server's folder with releases before it starts. Return the tokens and the contents."""
    server = Service.open(Settings(folder=server_folder))
    with closing(server.database):
        tokens = create_accounts(server.database)
        with server.database.writing() as connection:
            add_account(connection, "lab", 0.0, is_organization=True)
        rows = server_folder / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in _make_rows()), "utf-8")
        choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
        run = run_bundle(server_folder / "run", owner="alice", seed=1)
        private = replace(run.release, name="secret", visibility="private")
        insert_releases(
            server,
            [build_component_draft(rows, Kind.DATASET, choices, None).bundle(), run, replace(run, release=private)],
        )
        insert_releases(
            server,
            [
                copy_bundle(run, name="hidden"),
                copy_bundle(run, owner="acme", version="2", links=(_reproduction_link(run),)),
            ],
        )
    return tokens, ServerContents({"release": [f"run/alice/{run.release.name}/1", "run/alice/hidden/1"]})


def _make_rows() -> list[dict[str, Any]]:
    return [{"id": f"p{n}", "label": None, "question": f"Is {n} right?", "solution": n} for n in range(ROWS)]


def _reproduction_link(run: Any) -> ReleaseLink:
    return ReleaseLink(role="reproduces", release=str(run.release.reference), sha256=run.sha256)


def create_objects(server: ServerProcess, server_folder: Path, things: ServerContents) -> None:
    """Create uploads, competitions, submissions, tokens and invitations, and add their names to the contents."""
    from runner.registry.bundles.runs import build_run_draft
    from runner.results.leaderboard.results_folder import Results
    from tests.support.runs import run_spec
    from tests.support.specs import spec_file

    alice, keeper = server.tokens["alice"], server.tokens["keeper"]
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    competition = {
        "dataset": "acme/claims@1",
        "name": "cup",
        "labels": {f"p{n}": n % 2 for n in range(ROWS)},
        "closes": closes,
    }
    deletable_names = [f"to-end-{number}" for number in range(4)]
    for name in ("cup", "spare", *deletable_names):
        _request(server, 201, "/api/v1/competitions", "POST", {**competition, "name": name, "held_out": ["p1"]}, alice)
    spec = spec_file(server_folder / "mine", dataset={"path": str(server_folder / "rows.jsonl")}, fine_tune=None)
    result = run_spec(spec, server_folder / "results", run_id="mine")
    bundle = build_run_draft(
        result.folder, Results(server_folder / "results"), PublisherChoices(owner="mallory", licence="MIT")
    ).bundle()
    server.publish("mallory", bundle)
    release = bundle.release
    submission_path = f"/api/v1/competitions/acme/cup/submissions/mallory/{release.name}/{release.version}"
    wait_until(lambda: server.request(submission_path).json["state"] == "scored")
    _request(server, 204, f"/api/v1/hidden/{things.values['release'][1]}", "PUT", {"why": "a test"}, keeper)
    for sender, account in (("alice", "mallory"), ("alice", "bob")):
        _request(server, 200, f"/api/v1/organisations/acme/members/{account}", "PUT", {}, server.tokens[sender])
    token_ids = [_request(server, 201, "/api/v1/tokens", "POST", {"label": "x"}, server.tokens[sender])["id"]
            for sender in ("alice", "keeper") for _ in range(20)]  # fmt: skip
    uploads, hashes, bodies = _start_uploads(server, bundle)
    with RawUploadClient(server.address, alice) as client:
        files = client.list_files()
    wait_until(lambda: server.request("/").status == 200 and b"/board/" in server.request("/").body)
    boards = re.findall(r'href="/board/([0-9a-f]{12})"', server.request("/").body.decode())
    things.values |= {
        "path": files, "prefix": ["run/", "dataset/acme/claims/1", ""], "after": ["", files[0]], "upload": uploads,
        "sha256": hashes, "token": token_ids, "owner": ["acme"], "run_owner": ["mallory"], "run_name": [release.name],
        "run_version": [release.version], "account": ["bob", "mallory"], "page": boards, OFFSET: [0],
        "why": ["a test"], "delete /api/v1/competitions/{owner}/{name}": deletable_names,
        "/api/v1/organisations": ["acme", "lab"], "/api/v1/competitions": ["cup", "spare"],
    }  # fmt: skip
    things.bodies |= {
        "post /api/v1/files": [{"paths": files[:5]}, {"paths": [*files[-2:], "run/no/such/1/file"]}],
        "post /api/v1/uploads": bodies,
        "post /api/v1/competitions": [{**competition, "name": f"more-{n}", "held_share": 0.3} for n in range(3)],
        "patch /api/v1/competitions/{owner}/{name}": [{"title": "Other", "day_limit": 7}, {"day_limit": 9}],
        "put /api/v1/competitions/{owner}/{name}/labels": [{"labels": {"p2": 1}, "why": "was wrong"}],
        "put /api/v1/hidden/{release}": [{"why": "a test"}],
        "post /api/v1/tokens": [{"scope": "read", "days": 1, "label": "b"}],
        # With a second owner, a request could remove alice from acme before she ends its competitions.
        "put /api/v1/organisations/{name}/members/{account}": [{"is_owner": False}],
    }


def _request(server: ServerProcess, status: int, path: str, *details: Any) -> Any:
    method, body, token = details
    response = server.request(path, method, body, token=token)
    assert response.status == status, (path, response.status, response.body)
    return response.json if response.body else None


def _start_uploads(server: ServerProcess, bundle: Any) -> tuple[list[str], list[str], list[Any]]:
    """Start uploads as alice, each with a missing file. Return their ids, the hashes, and bodies that start more."""
    ids, hashes, bodies = [], [], []
    with RawUploadClient(server.address, server.tokens["alice"]) as client:
        for number in range(24):
            upload_bundle = copy_bundle(bundle, owner="alice", name=f"upload-{number}")
            contents = {}
            for path, content in upload_bundle.files():
                with open_content(content) as source:
                    contents[path] = source.read()
            response = client.start_upload({f"run/alice/upload-{number}/1": contents})
            assert response.status_code == 200, response.text
            if number >= 16:
                client.client.delete(f"/uploads/{response.json()['id']}")
                bodies.append(json.loads(response.request.content))
                continue
            for missing_file in response.json()["missing"] if number < 8 else ():  # these may be committed
                data = next(data for data in contents.values() if _hash(data) == missing_file["sha256"])
                assert client.send_blob(response.json()["id"], data).status_code == 200
            ids.append(response.json()["id"])
            hashes += [missing_file["sha256"] for missing_file in response.json()["missing"]]
    return ids, sorted(set(hashes)), bodies


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


# The document with the names of existing objects


def add_examples(document: dict[str, Any], things: ServerContents) -> dict[str, Any]:
    """Add the server's objects as examples to each parameter and body of the document."""
    for path, method, operation in _iterate_operations(document):
        for parameter in operation.get("parameters", ()):
            if known_values := _known_values(things, f"{method} {path}", parameter):
                parameter["examples"] = {f"e{n}": {"value": value} for n, value in enumerate(known_values[:8])}
        if bodies := things.bodies.get(f"{method} {path}"):
            content = operation["requestBody"]["content"]["application/json"]
            content["examples"] = {f"e{n}": {"value": body} for n, body in enumerate(bodies)}
    return document


def _iterate_operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def _known_values(things: ServerContents, operation: str, parameter: dict[str, Any]) -> list[Any]:
    if parameter["schema"].get("type") not in ("string", None) and parameter["name"] != OFFSET:
        return []
    if parameter["name"] == "name":
        path = operation.partition(" ")[2]
        return things.values.get(operation) or next(
            (prefix_values for prefix, prefix_values in things.values.items() if path.startswith(prefix)), []
        )
    return things.values.get(parameter["name"], [])


def build_configuration(document: dict[str, Any], things: ServerContents, token: str | None, examples: int) -> str:
    """Build the configuration of schemathesis: values of parameters, and statuses that are allowed."""
    lines = ["continue-on-failure = true", "suppress-health-check = ['all']"]
    if token is not None:
        lines += ["[auth.openapi]", f"token = {{ bearer = {json.dumps(token)} }}"]
    lines += ["[generation]", f"max-examples = {examples}", "deterministic = true", "allow-x00 = true"]
    lines += (
        [] if token is not None else ["with-security-parameters = false"]
    )  # the server limits attempts with wrong tokens
    lines += ["[checks.positive_data_acceptance]", f"expected-statuses = {json.dumps(EXPECTED_STATUSES)}"]
    lines += ["[checks.negative_data_rejection]", 'expected-statuses = ["4xx"]']
    dictionaries: dict[str, list[str]] = {}
    operations = []
    for path, method, operation in _iterate_operations(document):
        dictionary_names = {}
        for parameter in operation.get("parameters", ()):
            if known_values := _known_values(things, f"{method} {path}", parameter):
                name = f"d{len(dictionaries)}"
                dictionaries[name] = known_values
                dictionary_names[f"{parameter['in']}.{parameter['name']}"] = name
        if dictionary_names:
            operations += ["[[operations]]", f"include-name = {json.dumps(f'{method.upper()} {path}')}"]
            operations += ["[operations.parameters]"]
            operations += [
                f"{json.dumps(name)} = "
                f"{{ dictionary = {json.dumps(dictionary)}, probability = {KNOWN_NAME_PROBABILITY} }}"
                for name, dictionary in dictionary_names.items()
            ]
    lines += [
        f"[dictionaries.{name}]\nvalues = {json.dumps(known_values)}" for name, known_values in dictionaries.items()
    ]
    return "\n".join([*lines, *operations]) + "\n"


def count_answers(server: ServerProcess) -> Counter[tuple[str, str, int]]:
    """Read the server's own counts of requests by method, route and status."""
    lines = server.request("/metrics", token=server.tokens["keeper"]).body.decode().splitlines()
    line_pattern = re.compile(r'nip_run_requests_total\{method="(\w+)",route="(.*)",status="(\d+)"\} (\d+)')
    counts: Counter[tuple[str, str, int]] = Counter()
    for match in filter(None, map(line_pattern.fullmatch, lines)):
        counts[match[1], match[2].replace(":path}", "}"), int(match[3])] += int(match[4])
    return counts


def create_environment(environment: Path) -> str:
    venv.create(environment, with_pip=True)
    subprocess.run([str(environment / "bin" / "pip"), "install", "-q", REQUIREMENT], check=True)
    return str(environment / "bin" / "python")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", metavar="PYTHON", help="one that has schemathesis")
    parser.add_argument("--examples", type=int, default=40, help="of each operation and phase; default: 40")
    parser.add_argument("--only", metavar="WHO", help="ask as this one alone; `nobody`: without a token")
    args = parser.parse_args()
    check = SoftAssertions()
    with temporary_folder() as work:
        python = args.python or create_environment(work / "venv")
        for account in ACCOUNTS:
            if args.only in (None, account or "nobody"):
                check_account(work / (account or "nobody"), account, python, args.examples, check)
        missed = sorted(DOCUMENTED - SUCCESSFUL)
        check(not missed, f"{len(SUCCESSFUL)} of {len(DOCUMENTED)} operations were answered with success; not {missed}")
    return check.exit_code()


DOCUMENTED: set[str] = set()
SUCCESSFUL: set[str] = set()
"""The operations of the document, and the operations that succeeded for any account."""


def check_account(work: Path, account: str | None, python: str, examples: int, check: SoftAssertions) -> None:
    """Start a server, and run schemathesis on it with the token of one account."""
    work.mkdir()
    (work / "server").mkdir()
    tokens, things = fill_server_folder(work / "server")
    with run_server(work / "server", "--rate", "0", people=False) as running:
        server = replace(running, tokens=tokens)
        create_objects(server, work / "server", things)
        document = add_examples(server.request("/api/v1/openapi.json").json, things)
        (work / "openapi.json").write_text(json.dumps(document), "utf-8")
        configuration_text = build_configuration(
            document, things, None if account is None else tokens[account], examples
        )
        (work / "schemathesis.toml").write_text(configuration_text, "utf-8")
        arguments = ["-m", "schemathesis.cli", "run", "openapi.json", "--url", server.address, "--no-color"]
        process = subprocess.run(
            [python, *arguments, "--checks", ",".join(CHECKS), "--generation-database", "none"],
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        counts = count_answers(server)
        errors = {key: count for key, count in counts.items() if key[2] >= 500}
        if process.returncode:
            print("\n".join(line[:300] for line in process.stdout.splitlines()), process.stderr[-4_000:])
        name = account or "nobody"
        check(process.returncode == 0, f"as {name}: schemathesis finds nothing: {_summary(process.stdout)}")
        check(not errors, f"as {name}: no answer is the server's error: {errors or sum(counts.values())}")
        traces = [line for line in server.log.splitlines() if "Traceback" in line]
        check(not traces, f"as {name}: no fault of its own is in its log")
        if traces:
            print(traces[0].replace("\\n", "\n"))
        successful = {(method, route) for method, route, status in counts if status < 300}
        documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        DOCUMENTED.update(f"{method} {path}" for method, path in documented)
        SUCCESSFUL.update(f"{method} {path}" for method, path in documented & successful)


def _summary(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "generated" in line or "passed" in line]
    return "; ".join(lines[-2:]) or output.strip()[-200:]


if __name__ == "__main__":
    raise SystemExit(main())
