"""The transport for registries at `hf:OWNER/NAME`: dataset repositories of the Hugging Face Hub.

`runner.registry.transports.locations` creates this transport, which uses the library `huggingface_hub` and reads all
files at one commit. Fetched files are not cached on disk, so a reader never gets an old version. Nothing in a
repository is executed or unpickled: its files are read as bytes.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx2

from runner.base.errors import NipRunError, NotFoundError, ReleaseError, TakenError, UsageError, os_errors_as
from runner.base.redaction import current_redactor, remember_secret
from runner.documents.releases.bundle import Content, open_content
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.registry.transports.http_client import HttpClient, TransferError
from runner.registry.transports.interface import AddResult, StoredFile
from runner.registry.transports.timeouts import BUSY_CODES, HUB_TIMEOUTS, Timeouts, requested_wait
from runner.version import __version__

DEFAULT_BRANCH = "main"
MAX_FILES = 1_000_000
ATTEMPTS = 20
"""Maximum number of attempts to publish if other publishers change the repository at the same time."""
IN_MEMORY_BYTES = 1 << 20
"""Files up to this size are read into memory to send them. Larger files are sent from disk."""

_REPOSITORY_TYPE = "dataset"
_CONFLICT_STATUSES = (409, 412)
_LOOPBACK = re.compile(r"http://(127(\.[0-9]+){3}|localhost|\[::1\])(:[0-9]+)?")
_ADDRESS = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class RepositoryNotFound(ReleaseError):
    """There is no such repository, or the user has no access to it."""


class HubClient(HttpClient):
    """The HTTP client that `huggingface_hub` uses for all of its requests."""

    def __init__(self, endpoint: str, timeouts: Timeouts) -> None:
        super().__init__(endpoint, timeouts, follow_redirects=True)
        self.action_requests = _ActionRequests()

    def request(self, method: str, url: Any, *, data: Any = None, **options: Any) -> httpx2.Response:
        """Send a request. `huggingface_hub` passes an open file as `data`, but httpx2 expects it as `content`."""
        if hasattr(data, "read"):
            return super().request(method, url, content=data, **options)
        return super().request(method, url, data=data, **options)

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "PUT":  # a file: `huggingface_hub` itself rewinds the file and repeats the request
            response = httpx2.Client.send(self, request, **options)
            if response.status_code in BUSY_CODES:
                for name in ("retry-after", "ratelimit"):  # `huggingface_hub` would wait as long as the server asks
                    response.headers.pop(name, None)
            return response
        response = super().send(request, **options)
        if response.status_code in BUSY_CODES:  # raise an error, as `huggingface_hub` would repeat the request again
            response.close()
            seconds = requested_wait(response.headers)
            when = f"in {seconds:,.0f} s" if seconds else "later"
            reason = "received too many requests" if response.status_code == 429 else "cannot answer now"
            raise TransferError(
                f"{request.url.host} {reason} (HTTP {response.status_code}); run the same command again {when}"
            )
        return response

    def _is_repeatable(self, request: httpx2.Request) -> bool:
        path = request.url.path
        return request.method in ("GET", "HEAD") or "/preupload/" in path or path.endswith("/info/lfs/objects/batch")

    def _check_request(self, request: httpx2.Request) -> None:
        self.action_requests.count += request.method in ("GET", "HEAD")
        if self.action_requests.count > self.timeouts.requests:
            raise TransferError(
                f"more than {self.timeouts.requests:,} requests are needed, because the repository has too many files "
                "for a registry. Ask its owner to split it."
            )
        super()._check_request(request)


class _ActionRequests(threading.local):
    """The number of GET and HEAD requests in a thread since the start of its last `HubSession.map_errors` block."""

    count = 0


class HubSession:
    """Requests about one repository, to the endpoint in `HF_ENDPOINT`, with the token in `HF_TOKEN` or of the `hf` CLI.

    `huggingface_hub` has one HTTP client per process, so all sessions share it, and the last one closes it.
    """

    _client_settings: tuple[str, Timeouts] | None = None
    """The endpoint and limits of the shared HTTP client."""
    _open_sessions = 0
    _lock = threading.Lock()

    def __init__(self, address: str, repository: str, timeouts: Timeouts) -> None:
        self._address, self._repository, self._timeouts = address, repository, timeouts
        self._hub = _import_library()
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or self._hub.constants.ENDPOINT
        if not (self._endpoint.startswith("https://") or _LOOPBACK.fullmatch(self._endpoint)):
            raise UsageError(f"HF_ENDPOINT is {self._endpoint!r}. Set it to an address that begins with https://")
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise ReleaseError(f"{address} cannot be reached because HF_HUB_OFFLINE is set. Unset it.")
        token = self._hub.get_token()
        self.has_token = token is not None
        if token is not None:
            remember_secret(token)  # a server could repeat it in an error message
        self.api = self._hub.HfApi(
            endpoint=self._endpoint, token=token or False, library_name="nip-run", library_version=__version__
        )
        self._is_closed = False
        with HubSession._lock:
            HubSession._open_sessions += 1

    def newest_commit(self, revision: str) -> tuple[str, bool]:
        """Return the current commit of a revision, and whether the repository is private.

        Raises:
            RepositoryNotFound, ReleaseError: see `map_errors`.
        """
        with self.map_errors("look up the newest commit"):
            info = self.api.dataset_info(self._repository, revision=revision)
            if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
                raise ValueError(f"{str(info.sha)[:60]!r} is not a commit")
            return info.sha, bool(info.private)

    def open_file(self, path: str, commit: str) -> IO[bytes]:
        """Open a file at a commit to read. Raises: NotFoundError, ReleaseError: see `map_errors`."""
        with self.map_errors(f"read {path}"):
            url = self._hub.hf_hub_url(
                self._repository, path, repo_type=_REPOSITORY_TYPE, revision=commit, endpoint=self._endpoint
            )
            headers = self._hub.utils.build_hf_headers(
                token=self.api.token, library_name="nip-run", library_version=__version__
            )
            check = self._hub.utils.hf_raise_for_status
            return self._client.open_file(url, f"{self._address}: {path}", check, headers)

    def commit(
        self, files: Sequence[tuple[str, io.BufferedIOBase]], message: str, parent: str, **options: Any
    ) -> Any | None:
        """Commit files on top of `parent`. Return the commit, or None if `parent` is no longer the newest commit."""
        # Pass open files. If it got paths, the library could send the files without `HubClient` and its limits.
        additions = [self._hub.CommitOperationAdd(path_in_repo=path, path_or_fileobj=file) for path, file in files]
        # Use one thread. If two files have the same content, several threads would read from one open file.
        options |= {"repo_type": _REPOSITORY_TYPE, "num_threads": 1}
        # If the repository has a .gitignore, the Hub would omit the files that it matches, without an error.
        self.api.preupload_lfs_files(self._repository, additions, gitignore_content="", free_memory=False, **options)
        try:
            return self.api.create_commit(
                self._repository, additions, commit_message=message, parent_commit=parent, **options
            )
        except self._hub.errors.HfHubHTTPError as error:
            if error.response.status_code in _CONFLICT_STATUSES:
                return None
            raise

    @property
    def _client(self) -> HubClient:
        client = self._hub.get_session()
        assert isinstance(client, HubClient)
        return client

    @contextmanager
    def map_errors(self, action: str) -> Iterator[None]:
        """Convert exceptions in a `with` block to errors for users: "cannot {action}: {reason}".

        Raises:
            NotFoundError: there is no such file.
            RepositoryNotFound: there is no such repository, or the user has no access to it.
            ReleaseError: all other errors.
        """
        with HubSession._lock:
            if HubSession._client_settings != (self._endpoint, self._timeouts):
                self._hub.set_client_factory(lambda: HubClient(self._endpoint, self._timeouts))
                HubSession._client_settings = (self._endpoint, self._timeouts)
        self._client.action_requests.count = 0
        try:
            yield
        except (NipRunError, GeneratorExit):
            raise
        except Exception as error:  # the library raises exceptions of any class if it cannot parse an answer
            for cause in (error, error.__cause__):  # the reason why an upload failed is in `__cause__`
                if isinstance(cause, self._hub.errors.HfHubHTTPError):
                    raise self._explain_status(action, cause) from error
                if isinstance(cause, TransferError | OSError | httpx2.TransportError):
                    raise ReleaseError(self._message(action, str(cause))) from error
            reason = (
                f"the server does not answer as the Hub does ({type(error).__name__}: {str(error)[:300]}). Check "
                "HF_ENDPOINT, or try again later."
            )
            raise ReleaseError(self._message(action, reason)) from error

    def _message(self, action: str, reason: str) -> str:
        return f"{self._address}: cannot {action}: {current_redactor().redact_text(' '.join(reason.split()))}"

    def _explain_status(self, action: str, error: Any) -> ReleaseError:
        """Return an error for users, with the meaning of the HTTP status in `error` and what to do."""
        errors, status = self._hub.errors, error.response.status_code
        page = f"{self._endpoint}/datasets/{self._repository}"
        detail = f" ({error.server_message[:300]})" if error.server_message else ""
        token = "that the token has access" if self.has_token else "that HF_TOKEN is set, or run `hf auth login`"
        kind: type[ReleaseError] = ReleaseError
        if isinstance(error, errors.GatedRepoError):
            reason = f"the repository is gated{detail}. Ask for access at {page}, and check {token}."
        elif isinstance(error, errors.RevisionNotFoundError):
            reason = "the repository has no such branch, tag or commit. Correct the part after @."
        elif isinstance(error, errors.EntryNotFoundError):
            kind, reason = NotFoundError, "there is no such file"
        elif isinstance(error, errors.RepositoryNotFoundError) or (status in (401, 404) and not self.has_token):
            kind = RepositoryNotFound
            reason = f"there is no dataset repository {page}, or it is private. Check its name, and {token}."
        elif status == 401:
            reason = f"the token is refused (HTTP 401){detail}. Set another one in HF_TOKEN, or run `hf auth login`."
        elif status == 403:
            reason = f"the Hub does not allow this (HTTP 403){detail}. Check {token}."
        else:
            reason = f"HTTP {status}{detail}. Try again later."
        return kind(self._message(action, reason))

    def close(self) -> None:
        """Close the connections, unless another session in this process uses them."""
        with HubSession._lock:
            HubSession._open_sessions -= not self._is_closed
            self._is_closed = True
            if HubSession._open_sessions == 0 and HubSession._client_settings is not None:
                # Other libraries of this process get the client of `huggingface_hub`, which obeys HF_HUB_OFFLINE.
                self._hub.set_client_factory(self._hub.utils._http.default_client_factory)  # noqa: SLF001 - no public name
                HubSession._client_settings = None


def _import_library() -> Any:
    """Import `huggingface_hub` without telemetry, logs and progress bars. Raises: UsageError: it is not installed."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # must be set before the import
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise UsageError(f"hf: needs the package huggingface_hub ({error}); pip install 'nip-run[hf]'") from error
    library: Any = huggingface_hub
    library.utils.logging.set_verbosity(logging.CRITICAL)
    library.utils.disable_progress_bars()
    return library


class HubTransport:
    """A `Transport` for a repository of the Hub. A publish is one commit, on its branch or in a pull request."""

    def __init__(
        self, address: str, *, pull_request: bool = False, timeouts: Timeouts | None = None, max_files: int = MAX_FILES
    ) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or ".." in address:
            raise UsageError(
                f"{address!r} is not a repository of the Hub. Write hf:OWNER/NAME or hf:OWNER/NAME@REVISION."
            )
        self._repository, self._revision = match["repository"], match["revision"] or DEFAULT_BRANCH
        self._is_commit = _COMMIT.fullmatch(self._revision) is not None
        self._pull_request, self._max_files = pull_request, max_files
        self._hub = HubSession(self.address, self._repository, timeouts or HUB_TIMEOUTS)
        self._commit: str | None = None
        self._checksums: dict[str, bytes] = {}
        """The contents of checksum files, by path."""

    @property
    def address(self) -> str:
        is_other_branch = self._revision != DEFAULT_BRANCH and not self._is_commit
        return f"hf:{self._repository}" + (f"@{self._revision}" if is_other_branch else "")

    # Read

    def list_files(self, prefix: str = "") -> Iterator[StoredFile]:
        folder = prefix.rpartition("/")[0]
        files = []
        for file in self._list(folder):
            files.append(file)
            if len(files) > self._max_files:
                raise ReleaseError(
                    f"{self.address} has more than {self._max_files:,} files, too many for a registry. Ask its owner "
                    "to split it."
                )
        if not folder:
            self._read_checksums(files)
        yield from (file for file in files if file.path.startswith(prefix))

    def _list(self, folder: str) -> Iterator[StoredFile]:
        """Yield the files in a folder at the current commit."""
        commit = self._current_commit()
        if commit is None:
            return
        with suppress(NotFoundError), self._hub.map_errors("list the files"):
            tree = self._hub.api.list_repo_tree(
                self._repository, folder or None, recursive=True, revision=commit, repo_type=_REPOSITORY_TYPE
            )
            for entry in tree:
                if not hasattr(entry, "size"):
                    continue  # a folder
                path, size = entry.path, entry.size
                if not isinstance(path, str) or not isinstance(size, int) or size < 0 or not _is_inside(path):
                    raise ValueError(f"{str(path)[:100]!r} of {str(size)[:30]} bytes is not a valid file")
                yield StoredFile(path, size)

    def _read_checksums(self, files: Sequence[StoredFile]) -> None:
        """Read the checksum files of all releases in parallel, because `Listing` opens them one after the other."""
        paths = [file.path for file in files if file.path.endswith(f"/{CHECKSUM}") and (file.size or 0) <= 1_000]
        if len(paths) < 3:  # too few to be worth the threads
            return

        def read(path: str) -> None:
            # Errors are ignored here: `Listing` opens the file again and then raises the error.
            with suppress(ReleaseError), self.open(path) as file:
                # `Listing` accepts 1,000 bytes. With one byte more, it notices that a file is too large.
                self._checksums[path] = file.read(1_001)

        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(read, paths))

    def open(self, path: str) -> IO[bytes]:
        if path in self._checksums:
            return io.BytesIO(self._checksums[path])
        commit = self._current_commit()
        if commit is None or not _is_inside(path):
            raise NotFoundError(f"{self.address} has no file {path}")
        return self._hub.open_file(path, commit)

    def _current_commit(self) -> str | None:
        """Return the commit to read, which does not change afterwards; None if the repository does not exist yet."""
        if self._commit is None:
            try:
                self._commit, _ = self._hub.newest_commit(self._revision)
            except RepositoryNotFound:
                if not self._hub.has_token:
                    raise
                return None  # the first publish creates the repository
        return self._commit

    # Publish

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        if self._is_commit:
            raise UsageError(
                f"hf:{self._repository}@{self._revision} is a commit, which never changes. Publish to {self.address}."
            )
        private = any(_is_private(content) for files in folders.values() for path, content in files if path == MANIFEST)
        summary = message.splitlines()[0][:200] if message.strip() else "Publish"
        for attempt in range(ATTEMPTS):
            head = self._prepare_for_publishing(private=private)
            for folder in folders:
                if any(True for _ in self._list(folder)):
                    raise TakenError(f"{self.address} has {folder} already")
            with self._hub.map_errors("publish"), ExitStack() as stack:
                contents = [
                    (f"{folder}/{path}", _open(content, stack))
                    for folder, files in folders.items()
                    for path, content in files
                ]
                info = self._hub.commit(contents, summary, head, revision=self._revision, create_pr=self._pull_request)
                if info is not None:
                    return self._check_added(info, [path for path, _ in contents])
            time.sleep(random.uniform(0.05, 0.2) * min(attempt + 1, 10))
        raise ReleaseError(
            f"cannot publish to {self.address}: other publishers changed the repository during each of {ATTEMPTS} "
            "attempts; run the same command again later"
        )

    def _prepare_for_publishing(self, *, private: bool) -> str:
        """Return the newest commit, and read from this commit from now on; create the repository if necessary."""
        try:
            newest_commit, is_private = self._hub.newest_commit(self._revision)
        except RepositoryNotFound:
            if not self._hub.has_token:
                raise
            with self._hub.map_errors("create the repository"):
                self._hub.api.create_repo(self._repository, repo_type=_REPOSITORY_TYPE, private=private, exist_ok=True)
            newest_commit, is_private = self._hub.newest_commit(self._revision)
        if private and not is_private:
            raise ReleaseError(
                f"{self.address} is public, and this release is private. Publish the release to a private repository, "
                "or without --private."
            )
        self._set_commit(newest_commit)
        return newest_commit

    def _set_commit(self, commit: str) -> None:
        if commit != self._commit:
            self._commit = commit
            self._checksums.clear()

    def _check_added(self, info: Any, paths: Sequence[str]) -> AddResult:
        """Check that a new commit has all published files, and return the result of the publish."""
        commit = str(info.oid)
        if not _COMMIT.fullmatch(commit):
            raise ReleaseError(
                f"{self.address}: the Hub returned {commit[:60]!r} instead of a commit. If the repository's page does "
                "not show the release, run the same command again."
            )
        if self._pull_request:
            note = f"others see the release once pull request {info.pr_url} is merged"
            return AddResult(commit, note, f"hf:{self._repository}@{commit}")
        self._set_commit(commit)
        folders = {path.rpartition("/")[0] for path in paths}
        stored = {file.path for folder in folders for file in self._list(folder)}
        if missing := [path for path in paths if path not in stored]:
            raise ReleaseError(
                f"{self.address}: the new commit {commit[:12]} lacks {len(missing)} files, such as {missing[0]}. "
                "Remove the release's folder from the repository, then run the same command again."
            )
        return AddResult(commit)

    def close(self) -> None:
        self._hub.close()


def _is_inside(path: str) -> bool:
    """Return whether a path stays inside the repository."""
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _is_private(manifest: Content) -> bool:
    with open_content(manifest) as file:
        return bool(json.load(file)["visibility"] == "private")


def _open(content: Content, stack: ExitStack) -> io.BufferedIOBase:
    """Open a file to send. `stack` closes it later."""
    with os_errors_as(ReleaseError, f"cannot read {content!s}"):
        if isinstance(content, Path) and content.stat().st_size > IN_MEMORY_BYTES:
            file = stack.enter_context(open_content(content))
            assert isinstance(file, io.BufferedIOBase)
            return file
        with open_content(content) as small_file:
            return io.BytesIO(small_file.read())
