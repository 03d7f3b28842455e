"""A server of the Hub's API of dataset repositories for the unmodified `huggingface_hub`, with faults on request.

`POST /api/repos/create` creates a repository; the options can also contain some. Each commit has its own tree, and a
branch is a name of a commit. Files of at least `large` bytes are stored with LFS on the server `storage`. `MODES` lists
the faults.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.request
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.support.servers.frame import DROPPED, Answer, Options, Request, Server, json_answer, run_server

MODES = (
    "other_bytes", "endless", "longer", "shorter", "elsewhere", "packed",  # faults in files
    "dotdot", "endless_pages", "pages_elsewhere", "endless_answer", "not_json", "deep_json", "other_shape", "no_files",
    "no_commit",  # faults in lists
    "hang", "drop", "cut", "echo", "ignore", "refuse_upload", "lost_answer",  # faults in all responses, and in commits
)  # fmt: skip
PAGE = 50


@dataclass
class HubOptions(Options):
    storage: str = ""
    large: int = 10_000
    """Minimum size of files that are stored with LFS."""
    tokens: dict[str, str] = field(default_factory=dict)
    """Permission of each token: `read` or `write`."""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Repositories at the start, with the fields `private` and `gated`."""
    mode: str = ""
    only: str = ""
    """Suffix of the paths of the files that the fault affects."""
    elsewhere: str = ""
    status: int = 0
    """Status of every response."""
    retry_after: str = ""
    busy: int = 0
    """Number of requests that first get the status 503."""
    conflicts: int = 0
    """Number of commits that conflict with another commit."""
    hang: float = 5.0
    slow_commit: float = 0.0
    """Delay of the response to a commit, which has already taken effect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode and self.mode not in MODES:
            raise ValueError(f"no such mode: {self.mode}")

    def kinds(self) -> Collection[str]:
        return MODES


@dataclass(frozen=True)
class Blob:
    size: int
    oid: str
    data: bytes | None
    """The content; None if the file is in the storage, by its SHA-256."""

    @classmethod
    def of(cls, data: bytes) -> Blob:
        return cls(len(data), hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), data)


@dataclass
class Repository:
    private: bool = False
    gated: bool = False
    trees: dict[str, dict[str, Blob]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit("main", {".gitattributes": Blob.of(b"*.bin filter=lfs diff=lfs merge=lfs -text\n")})

    def commit(self, ref: str, tree: dict[str, Blob]) -> str:
        listed = "".join(f"{path} {blob.oid}\n" for path, blob in sorted(tree.items()))
        oid = hashlib.sha1(f"{self.refs.get(ref)} {len(self.trees)} {listed}".encode()).hexdigest()
        self.trees[oid] = tree
        self.refs[ref] = oid
        return oid

    def at(self, revision: str) -> str | None:
        return self.refs.get(revision) or (revision if revision in self.trees else None)


def problem(status: int, code: str, message: str) -> Answer:
    return Answer(status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})


ROUTES = tuple(
    (method, re.compile(pattern), name)
    for method, pattern, name in (
        ("POST", r"/api/repos/create", "_create"),
        ("GET", r"/api/datasets/([^/]+/[^/]+)(?:/revision/([^/]+))?", "_info"),
        ("GET", r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", "_tree"),
        ("POST", r"/api/datasets/([^/]+/[^/]+)/preupload/([^/]+)", "_preupload"),
        ("POST", r"/api/datasets/([^/]+/[^/]+)/commit/([^/]+)", "_commit"),
        ("GET", r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "_resolve"),
        ("HEAD", r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "_resolve"),
        ("POST", r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "_batch"),
    )
)


class HubServer(Server):
    options: HubOptions

    def __init__(self, options: HubOptions) -> None:
        super().__init__(options)
        self._repositories = {name: Repository(**fields) for name, fields in options.repositories.items()}
        self._pull_requests = 0
        self.control_routes["/pull_requests"] = lambda request: json_answer(
            {name: sorted(repository.refs) for name, repository in self._repositories.items()}
        )

    def _route(self, request: Request) -> Answer:
        options = self.options
        if options.busy:
            options.busy -= 1
            return Answer(503, headers={"Retry-After": options.retry_after} if options.retry_after else {})
        if options.status:
            return Answer(
                options.status, json.dumps({"error": "as was asked for"}).encode(),
                {"Retry-After": options.retry_after} if options.retry_after else {},
            )  # fmt: skip
        if options.mode == "hang":
            return Answer(wait=options.hang)
        if options.mode == "drop":
            return DROPPED
        if options.mode == "echo":
            return problem(403, "", f"not with {request.headers.get(b'authorization', b'').decode()}\x1b[31m")
        for method, pattern, name in ROUTES:
            match = pattern.fullmatch(request.path)
            if match is not None and method == request.method:
                answer: Answer = getattr(self, name)(request, *(unquote(part or "") for part in match.groups()))
                return answer
        return problem(404, "", f"no such path {request.path}")

    # Permissions

    def _permission(self, request: Request) -> str:
        token = request.headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        return self.options.tokens.get(token, "refused" if token else "")

    def _find_readable(self, request: Request, name: str) -> Repository | Answer:
        """Return the repository, or an error if the token of the request may not see it."""
        permission, repository = self._permission(request), self._repositories.get(name)
        if permission == "refused":
            return problem(401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.private and not permission):
            return problem(404 if permission else 401, "RepoNotFound", "Repository not found")
        if repository.gated and not permission:
            return problem(401, "GatedRepo", "Access to this dataset is restricted")
        return repository

    # Requests

    def _create(self, request: Request) -> Answer:
        if self._permission(request) != "write":
            return problem(403, "", "You don't have the rights to create a dataset here")
        body = request.json()
        name = f"{body['organization']}/{body['name']}"
        if name in self._repositories:
            return Answer(409, json.dumps({"error": "exists", "url": f"/datasets/{name}"}).encode())
        self._repositories[name] = Repository(private=body.get("visibility") == "private" or bool(body.get("private")))
        return json_answer({"url": f"http://127.0.0.1/datasets/{name}"})

    def _info(self, request: Request, name: str, revision: str) -> Answer:
        repository = self._find_readable(request, name)
        if isinstance(repository, Answer):
            return repository
        commit = repository.at(revision or "main")
        if commit is None:
            return problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if self.options.mode == "endless_answer":
            return Answer(body=b" " * 65536, endless=True, length=1 << 50)
        if self.options.mode == "not_json":
            return Answer(body=b"<html>")
        if self.options.mode == "deep_json":
            return Answer(body=b"[" * 200_000)
        sha = "main" if self.options.mode == "no_commit" else commit
        return json_answer(
            {"id": name, "sha": sha, "private": repository.private, "gated": False, "disabled": False, "tags": []}
        )

    def _tree(self, request: Request, name: str, revision: str, folder: str) -> Answer:
        repository = self._find_readable(request, name)
        if isinstance(repository, Answer):
            return repository
        commit = repository.at(revision)
        if commit is None:
            return problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        tree = {
            path: blob for path, blob in repository.trees[commit].items() if not folder or path.startswith(f"{folder}/")
        }
        if folder and not tree:
            return problem(404, "EntryNotFound", f'"{folder}" does not exist on "{revision}"')
        files = [
            {"type": "file", "path": path, "size": blob.size, "oid": blob.oid}
            | ({} if blob.data is not None else {"lfs": {"oid": blob.oid, "size": blob.size, "pointerSize": 130}})
            for path, blob in sorted(tree.items())
        ]
        folders = {path[:position] for path in tree for position, character in enumerate(path) if character == "/"}
        listed = [
            *({"type": "directory", "path": entry, "oid": "0" * 40, "size": 0} for entry in sorted(folders)),
            *files,
        ]
        start, mode = int(request.query_value("cursor", "0")), self.options.mode
        if mode == "other_shape":
            return json_answer([{"type": "file", "path": 7}])
        if mode == "no_files":
            return json_answer({"error": None})
        if mode == "dotdot":
            listed.append({"type": "file", "path": "run/../../evil", "size": 3, "oid": "0" * 40})
        if mode == "endless_pages":
            listed = [{"type": "file", "path": f"x/{start + n}", "size": 1, "oid": "0" * 40} for n in range(2 * PAGE)]
            start, next_start = 0, start + PAGE
        else:
            next_start = start + PAGE
        headers = {}
        if len(listed) > start + PAGE or mode == "pages_elsewhere":
            root = (
                self.options.elsewhere if mode == "pages_elsewhere" else f"http://{request.headers[b'host'].decode()}"
            )
            headers = {"Link": f'<{root}{request.path}?recursive=True&cursor={next_start}>; rel="next"'}
        return Answer(body=json.dumps(listed[start : start + PAGE]).encode(), headers=headers)

    def _resolve(self, request: Request, name: str, revision: str, path: str) -> Answer:
        repository = self._find_readable(request, name)
        if isinstance(repository, Answer):
            return repository
        commit = repository.at(revision)
        blob = repository.trees[commit].get(path) if commit else None
        if commit is None or blob is None:
            return problem(404, "EntryNotFound" if commit else "RevisionNotFound", "Entry not found")
        headers = {"ETag": f'"{blob.oid}"', "X-Repo-Commit": commit}
        mode = self.options.mode if path.endswith(self.options.only) else ""
        if mode == "elsewhere" or blob.data is None:
            location = (
                f"{self.options.elsewhere}/{path}" if mode == "elsewhere" else f"{self.options.storage}/{blob.oid}"
            )
            return Answer(302, headers={**headers, "X-Linked-Size": str(blob.size), "Location": location})
        data = blob.data
        if request.method == "HEAD":
            return Answer(headers=headers, length=len(data))
        if mode == "packed":
            return Answer(body=zlib.compress(bytes(1 << 20)), headers={**headers, "Content-Encoding": "deflate"})
        if mode == "endless":
            return Answer(body=data.ljust(65536), headers=headers, endless=True, length=1 << 50)
        if mode == "cut":
            return Answer(body=data, headers=headers, cut=len(data) // 2)
        faulty_data = {
            "other_bytes": bytes([data[0] ^ 1]) + data[1:] if data else b"",
            "longer": data + b"x",
            "shorter": data[:-1],
        }
        return Answer(body=faulty_data.get(mode, data), headers=headers, content_type="application/octet-stream")

    def _find_writable(self, request: Request, name: str) -> Repository | Answer:
        repository = self._find_readable(request, name)
        if (
            isinstance(repository, Repository)
            and self._permission(request) != "write"
            and "create_pr=1" not in request.query
        ):
            return problem(403, "", f"you have no write access to {name}")
        return repository

    def _preupload(self, request: Request, name: str, revision: str) -> Answer:
        repository = self._find_writable(request, name)
        if isinstance(repository, Answer):
            return repository
        body, tree = request.json(), repository.trees[repository.refs[revision]]
        ignored = self.options.mode == "ignore" and body.get("gitIgnore") != ""
        return json_answer({"files": [
            {
                "path": entry["path"],
                "uploadMode": "lfs" if entry["size"] >= self.options.large else "regular",
                "shouldIgnore": ignored,
                **({"oid": tree[entry["path"]].oid} if entry["path"] in tree else {}),
            }
            for entry in body["files"]
        ]})  # fmt: skip

    def _batch(self, request: Request, name: str) -> Answer:
        # A pull request names no branch, and needs no permission to write.
        repository = (
            self._find_writable(request, name) if "ref" in request.json() else self._find_readable(request, name)
        )
        if isinstance(repository, Answer):
            return repository
        if self.options.mode == "refuse_upload":
            refusal = {"error": {"code": 422, "message": "no room"}}
            return json_answer({"objects": [{**entry, **refusal} for entry in request.json()["objects"]]})
        stored = {blob.oid for tree in repository.trees.values() for blob in tree.values()}
        objects = [
            entry if entry["oid"] in stored else
            {**entry, "actions": {"upload": {"href": f"{self.options.storage}/{entry['oid']}"}}}
            for entry in request.json()["objects"]
        ]  # fmt: skip
        return json_answer({"transfer": "basic", "objects": objects})

    def _commit(self, request: Request, name: str, revision: str) -> Answer:
        repository = self._find_writable(request, name)
        if isinstance(repository, Answer):
            return repository
        header, *lines = (json.loads(line) for line in request.body.splitlines())
        if self.options.conflicts:
            self.options.conflicts -= 1
            conflicting = {f"other/{len(repository.trees)}": Blob.of(b"x")}
            repository.commit(revision, {**repository.trees[repository.refs[revision]], **conflicting})
        if header["value"].get("parentCommit", repository.refs[revision]) != repository.refs[revision]:
            return problem(412, "", "A commit has happened since. Please refresh and try again.")
        tree = dict(repository.trees[repository.refs[revision]])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = Blob.of(base64.b64decode(value["content"]))
            elif self._is_stored(value["oid"]):
                tree[value["path"]] = Blob(value["size"], value["oid"], None)
            else:
                return problem(400, "", f"LFS object {value['oid']} is not there")
        ref = revision
        if request.query_value("create_pr") == "1":
            self._pull_requests += 1
            ref = f"refs/pr/{self._pull_requests}"
        commit = repository.commit(ref, tree)
        if self.options.mode == "lost_answer":
            return DROPPED
        page = f"http://{request.headers[b'host'].decode()}/datasets/{name}"
        answer = {"commitOid": commit, "commitUrl": f"{page}/commit/{commit}", "success": True}
        if ref != revision:
            answer["pullRequestUrl"] = f"{page}/discussions/{self._pull_requests}"
        return json_answer(answer)._replace(wait=self.options.slow_commit)

    def _is_stored(self, oid: str) -> bool:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"{self.options.storage}/{oid}"
        ) as response:
            return bool(response.status == 200)


if __name__ == "__main__":
    run_server(HubServer, HubOptions, __doc__)
