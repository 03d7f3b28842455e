"""Speaks the Hub's API of dataset repositories, as the unmodified `huggingface_hub` asks it; and misbehaves as told.

A repository is made by `POST /api/repos/create`, or stands in the options. Each commit is a tree of its own; a branch
is the name of one. Files of `large` bytes and more go through LFS to the server named `storage`. See `MODES` for what
it can do wrong.
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

from tests.support.servers.frame import DROPPED, Answer, Options, Request, Server, answered, run_server

MODES = (
    "other_bytes", "endless", "longer", "shorter", "elsewhere", "packed",  # of files
    "dotdot", "endless_pages", "pages_elsewhere", "endless_answer", "not_json", "deep_json", "other_shape", "no_files",
    "no_commit",  # of what it lists
    "hang", "drop", "cut", "echo", "ignore", "refuse_upload", "lost_answer",  # of everything, and of commits
)  # fmt: skip
PAGE = 50


@dataclass
class HubOptions(Options):
    storage: str = ""
    large: int = 10_000
    """From this size on, a file goes through LFS."""
    tokens: dict[str, str] = field(default_factory=dict)
    """What each token may do: `read` or `write`."""
    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is there at the beginning: `{}`, or with `private`, `gated`."""
    mode: str = ""
    only: str = ""
    """How the paths end of the files that it gives wrongly; the others are as they should be."""
    elsewhere: str = ""
    status: int = 0
    """Everything is answered so."""
    retry_after: str = ""
    busy: int = 0
    """So many requests are answered with 503 first."""
    conflicts: int = 0
    """Before so many commits, another one comes first."""
    hang: float = 5.0
    slow_commit: float = 0.0
    """Before a commit is answered; by then it is made."""

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
    """None: it is in the storage, by its SHA-256."""

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
        self._repositories = {name: Repository(**made) for name, made in options.repositories.items()}
        self._pull_requests = 0
        self.asides["/pull_requests"] = lambda request: answered(
            {name: sorted(one.refs) for name, one in self._repositories.items()}
        )

    def _routed(self, request: Request) -> Answer:
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
            found = pattern.fullmatch(request.path)
            if found is not None and method == request.method:
                answer: Answer = getattr(self, name)(request, *(unquote(part or "") for part in found.groups()))
                return answer
        return problem(404, "", f"no such path {request.path}")

    # Who may

    def _may(self, request: Request) -> str:
        token = request.headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        return self.options.tokens.get(token, "refused" if token else "")

    def _seen(self, request: Request, name: str) -> Repository | Answer:
        """The repository, as who asks may see it."""
        may, found = self._may(request), self._repositories.get(name)
        if may == "refused":
            return problem(401, "", "Invalid credentials in Authorization header")
        if found is None or (found.private and not may):
            return problem(404 if may else 401, "RepoNotFound", "Repository not found")
        if found.gated and not may:
            return problem(401, "GatedRepo", "Access to this dataset is restricted")
        return found

    # What is asked

    def _create(self, request: Request) -> Answer:
        if self._may(request) != "write":
            return problem(403, "", "You don't have the rights to create a dataset here")
        asked = request.json()
        name = f"{asked['organization']}/{asked['name']}"
        if name in self._repositories:
            return Answer(409, json.dumps({"error": "exists", "url": f"/datasets/{name}"}).encode())
        self._repositories[name] = Repository(
            private=asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        return answered({"url": f"http://127.0.0.1/datasets/{name}"})

    def _info(self, request: Request, name: str, revision: str) -> Answer:
        seen = self._seen(request, name)
        if isinstance(seen, Answer):
            return seen
        commit = seen.at(revision or "main")
        if commit is None:
            return problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if self.options.mode == "endless_answer":
            return Answer(body=b" " * 65536, endless=True, length=1 << 50)
        if self.options.mode == "not_json":
            return Answer(body=b"<html>")
        if self.options.mode == "deep_json":
            return Answer(body=b"[" * 200_000)
        sha = "main" if self.options.mode == "no_commit" else commit
        return answered(
            {"id": name, "sha": sha, "private": seen.private, "gated": False, "disabled": False, "tags": []}
        )

    def _tree(self, request: Request, name: str, revision: str, folder: str) -> Answer:
        seen = self._seen(request, name)
        if isinstance(seen, Answer):
            return seen
        commit = seen.at(revision)
        if commit is None:
            return problem(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        tree = {path: blob for path, blob in seen.trees[commit].items() if not folder or path.startswith(f"{folder}/")}
        if folder and not tree:
            return problem(404, "EntryNotFound", f'"{folder}" does not exist on "{revision}"')
        files = [
            {"type": "file", "path": path, "size": blob.size, "oid": blob.oid}
            | ({} if blob.data is not None else {"lfs": {"oid": blob.oid, "size": blob.size, "pointerSize": 130}})
            for path, blob in sorted(tree.items())
        ]
        folders = {path[:at] for path in tree for at, sign in enumerate(path) if sign == "/"}
        listed = [*({"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders)), *files]
        start, mode = int(request.asked("cursor", "0")), self.options.mode
        if mode == "other_shape":
            return answered([{"type": "file", "path": 7}])
        if mode == "no_files":
            return answered({"error": None})
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
        seen = self._seen(request, name)
        if isinstance(seen, Answer):
            return seen
        commit = seen.at(revision)
        blob = seen.trees[commit].get(path) if commit else None
        if commit is None or blob is None:
            return problem(404, "EntryNotFound" if commit else "RevisionNotFound", "Entry not found")
        headers = {"ETag": f'"{blob.oid}"', "X-Repo-Commit": commit}
        mode = self.options.mode if path.endswith(self.options.only) else ""
        if mode == "elsewhere" or blob.data is None:
            place = f"{self.options.elsewhere}/{path}" if mode == "elsewhere" else f"{self.options.storage}/{blob.oid}"
            return Answer(302, headers={**headers, "X-Linked-Size": str(blob.size), "Location": place})
        data = blob.data
        if request.method == "HEAD":
            return Answer(headers=headers, length=len(data))
        if mode == "packed":
            return Answer(body=zlib.compress(bytes(1 << 20)), headers={**headers, "Content-Encoding": "deflate"})
        if mode == "endless":
            return Answer(body=data.ljust(65536), headers=headers, endless=True, length=1 << 50)
        if mode == "cut":
            return Answer(body=data, headers=headers, cut=len(data) // 2)
        changed = {
            "other_bytes": bytes([data[0] ^ 1]) + data[1:] if data else b"",
            "longer": data + b"x",
            "shorter": data[:-1],
        }
        return Answer(body=changed.get(mode, data), headers=headers, content_type="application/octet-stream")

    def _writes(self, request: Request, name: str) -> Repository | Answer:
        seen = self._seen(request, name)
        if isinstance(seen, Repository) and self._may(request) != "write" and "create_pr=1" not in request.query:
            return problem(403, "", f"you have no write access to {name}")
        return seen

    def _preupload(self, request: Request, name: str, revision: str) -> Answer:
        seen = self._writes(request, name)
        if isinstance(seen, Answer):
            return seen
        asked, tree = request.json(), seen.trees[seen.refs[revision]]
        ignored = self.options.mode == "ignore" and asked.get("gitIgnore") != ""
        return answered({"files": [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] >= self.options.large else "regular",
                "shouldIgnore": ignored,
                **({"oid": tree[one["path"]].oid} if one["path"] in tree else {}),
            }
            for one in asked["files"]
        ]})  # fmt: skip

    def _batch(self, request: Request, name: str) -> Answer:
        # Whoever proposes a change names no branch, and needs no right to write to one.
        seen = self._writes(request, name) if "ref" in request.json() else self._seen(request, name)
        if isinstance(seen, Answer):
            return seen
        if self.options.mode == "refuse_upload":
            refused = {"error": {"code": 422, "message": "no room"}}
            return answered({"objects": [{**one, **refused} for one in request.json()["objects"]]})
        held = {blob.oid for tree in seen.trees.values() for blob in tree.values()}
        objects = [
            one if one["oid"] in held else
            {**one, "actions": {"upload": {"href": f"{self.options.storage}/{one['oid']}"}}}
            for one in request.json()["objects"]
        ]  # fmt: skip
        return answered({"transfer": "basic", "objects": objects})

    def _commit(self, request: Request, name: str, revision: str) -> Answer:
        seen = self._writes(request, name)
        if isinstance(seen, Answer):
            return seen
        header, *lines = (json.loads(line) for line in request.body.splitlines())
        if self.options.conflicts:
            self.options.conflicts -= 1
            other = {f"other/{len(seen.trees)}": Blob.of(b"x")}
            seen.commit(revision, {**seen.trees[seen.refs[revision]], **other})
        if header["value"].get("parentCommit", seen.refs[revision]) != seen.refs[revision]:
            return problem(412, "", "A commit has happened since. Please refresh and try again.")
        tree = dict(seen.trees[seen.refs[revision]])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = Blob.of(base64.b64decode(value["content"]))
            elif self._stored(value["oid"]):
                tree[value["path"]] = Blob(value["size"], value["oid"], None)
            else:
                return problem(400, "", f"LFS object {value['oid']} is not there")
        ref = revision
        if request.asked("create_pr") == "1":
            self._pull_requests += 1
            ref = f"refs/pr/{self._pull_requests}"
        commit = seen.commit(ref, tree)
        if self.options.mode == "lost_answer":
            return DROPPED
        page = f"http://{request.headers[b'host'].decode()}/datasets/{name}"
        answer = {"commitOid": commit, "commitUrl": f"{page}/commit/{commit}", "success": True}
        if ref != revision:
            answer["pullRequestUrl"] = f"{page}/discussions/{self._pull_requests}"
        return answered(answer)._replace(wait=self.options.slow_commit)

    def _stored(self, oid: str) -> bool:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.options.storage}/{oid}") as held:
            return bool(held.status == 200)


if __name__ == "__main__":
    run_server(HubServer, HubOptions, __doc__)
