"""The transport for registries at `https://HOST`: servers that run `nip-run serve`.

`runner.registry.transports.locations` creates this transport. The transport fetches files one by one or many in one
request, and continues an upload after a broken connection.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest
from typing import IO, Any

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError, os_errors_as
from runner.documents.releases.bundle import Content, open_content
from runner.registry.transports.http.api import (
    CHECKING,
    NAME_TAKEN,
    OPEN,
    PUBLISHED,
    ApiResponse,
    RegistryApi,
    UploadStatus,
    parse_release,
    read_list,
)
from runner.registry.transports.http.prefetch import FilePrefetch
from runner.registry.transports.http.tokens import normalize_address
from runner.registry.transports.interface import AddResult, IndexedRelease
from runner.registry.transports.timeouts import BUSY_CODES, Timeouts

MAX_RELEASES = 1_000_000
"""Maximum number of entries in a listing."""
REQUEST_BYTES = 8 << 20
"""Maximum number of bytes of a file to send in one request."""
SMALL_PAGE = 100
"""A page of a listing with fewer entries than this is small. nip-run's own server sends up to 1,000 per page."""
EXTRA_PAGES = 20
"""A listing may have one page for each `SMALL_PAGE` entries, and this many more. Without this limit, a hostile server
could send small pages without end."""
_PROGRESS_BYTES = 64 << 10
"""An upload counts as making progress if the server receives this many bytes, or the rest of the file."""


class HttpTransport:
    """A `BulkTransport`: it lists releases, and can fetch many files in one request.

    Other users see a published release after the server has received and checked all of its files.
    """

    def __init__(self, address: str, *, timeouts: Timeouts | None = None) -> None:
        """Raises: UsageError: `address` is not the address of a server."""
        self._base = normalize_address(address)
        self._api = RegistryApi(self._base, timeouts or Timeouts())
        self._prefetch = FilePrefetch(self._api)

    @property
    def address(self) -> str:
        return self._base

    # Read

    def list_releases(self, prefix: str = "") -> Iterator[IndexedRelease]:
        folders: set[str] = set()
        for item in self._list_entries(prefix):
            release = parse_release(item, self.address)
            if release.folder in folders or not f"{release.folder}/".startswith(prefix):
                raise ReleaseError(
                    f"{self.address} lists the release {release.folder[:200]!r} twice, or not below {prefix!r}; tell "
                    "its operator"
                )
            folders.add(release.folder)
            yield release

    def _list_entries(self, prefix: str) -> Iterator[Any]:
        """Yield the entries of the listing from all of its pages."""
        parameters: dict[str, Any] = {"prefix": prefix}
        count = pages = 0
        while True:
            pages += 1
            try:
                body = self._api.get_json("/releases", params=parameters)
            except NotFoundError as error:
                raise ReleaseError(
                    f"no nip-run registry answers at {self.address}. Check the address: https://HOST without a path."
                ) from error
            page = read_list(body, "releases", self.address)
            yield from page
            count += len(page)
            next_page = body.get("next")
            if next_page is None:
                return
            is_too_long = count > MAX_RELEASES or pages > EXTRA_PAGES + count // SMALL_PAGE
            if not page or is_too_long or not isinstance(next_page, str | int):
                raise ReleaseError(f"{self.address} sends a list of releases that does not end; tell its operator")
            parameters["after"] = next_page

    def plan_prefetch(self, paths: Sequence[str]) -> None:
        self._prefetch.plan_prefetch(paths)

    def open(self, path: str) -> IO[bytes]:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise NotFoundError(f"{self.address} has no file {path}")
        if (prefetched := self._prefetch.pop_file(path)) is not None:
            return io.BytesIO(prefetched)
        return self._api.open_file(path)

    # Publish

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:  # noqa: ARG002
        contents: dict[str, Content] = {}
        declared_folders: list[dict[str, Any]] = [
            {"folder": folder, "files": [_declare_file(*file, contents) for file in files]}
            for folder, files in folders.items()
        ]
        sizes = {file["sha256"]: file["size"] for entry in declared_folders for file in entry["files"]}
        upload = self._send_request(sizes, "POST", "/uploads", json={"folders": declared_folders})
        if upload.state == OPEN:
            for sha256, offset in upload.resume_offsets.items():
                self._send_file(sizes, upload.id, sha256, contents[sha256], offset)
            upload = self._send_request(sizes, "POST", f"/uploads/{upload.id}/commit")
        upload = self._wait_for_check(sizes, upload)
        if upload.state == PUBLISHED:
            return AddResult(note="; ".join(upload.notes) or None)
        if upload.state == NAME_TAKEN:
            raise TakenError(
                f"{self.address} already has a release with one of these names; publish under a new version"
            )
        reason = (
            "did not start to check the upload; run the same command again"
            if upload.state == OPEN
            else "refuses the upload; correct the release and publish again"
        )
        raise ReleaseError(f"{self.address} {reason}").with_notes(upload.problems)

    def _wait_for_check(self, sizes: Mapping[str, int], upload: UploadStatus) -> UploadStatus:
        """Wait until the server has checked an upload, and return the upload's status."""
        timeouts, deadline = self._api.timeouts, time.monotonic() + self._api.timeouts.check_seconds
        wait = timeouts.first_check_wait
        while upload.state == CHECKING:
            if time.monotonic() > deadline:
                raise ReleaseError(
                    f"{self.address} received all files, but is still checking them. Run the same command again later "
                    "for the result."
                )
            time.sleep(wait)
            wait = min(wait * 1.5, 20 * timeouts.first_check_wait)
            upload = self._send_request(sizes, "GET", f"/uploads/{upload.id}")
        return upload

    def _send_file(self, sizes: Mapping[str, int], upload_id: str, sha256: str, content: Content, offset: int) -> None:
        """Send a file to the server, which has the first `offset` bytes. Continue after a broken connection."""
        size = sizes[sha256]
        timer = _UploadTimer(self._api.timeouts, size, offset)
        with open_content(content) as source:
            while True:
                source.seek(offset)
                data = source.read(REQUEST_BYTES)
                response = self._api.send_piece(f"/uploads/{upload_id}/blobs/{sha256}", data, offset)
                is_accepted = response is not None and response.status == 200
                if response is not None and is_accepted:
                    received = response.body.get("have")
                    if type(received) is not int or received < 0:
                        raise ReleaseError(
                            f"{self.address}: unexpected answer to the upload of a file; check that the address is "
                            "that of a nip-run registry, or tell its operator"
                        )
                    if len(data) < REQUEST_BYTES and received == offset + len(data):
                        return
                else:
                    self._raise_if_refused(response)
                    received = self._send_request(sizes, "GET", f"/uploads/{upload_id}").resume_offsets.get(sha256)
                    if received is None:
                        return  # the server has the complete file
                if received > size or not timer.record_received(received):
                    raise ReleaseError(
                        f"{self.address} does not accept the rest of the file sha256:{sha256}; run the same command "
                        "again"
                    )
                if not is_accepted:
                    # The server may not have noticed the broken connection, or another client sends the same file.
                    timer.pause(0.0 if response is None else response.wait)
                offset = received

    def _raise_if_refused(self, response: ApiResponse | None) -> None:
        """Raise an error if the server refused a piece of a file, and would refuse it again."""
        if response is not None and response.status == 422:
            message = f"{self.address}: {response.message}; a file changed during the upload, publish again"
            raise ReleaseError(message).with_notes(response.problems)
        if response is not None and response.status not in (404, 409, *BUSY_CODES):
            self._check_status(response)

    def _send_request(self, sizes: Mapping[str, int], method: str, path: str, **options: Any) -> UploadStatus:
        """Send a request about an upload, and return the upload's status."""
        response = self._api.request(method, path, **options)
        self._check_status(response)
        return UploadStatus.from_response(response, sizes, self.address)

    def _check_status(self, response: ApiResponse) -> None:
        """Raise TakenError, UsageError or ReleaseError if the server refused a request."""
        if response.status in (200, 201, 202):
            return
        if response.status == 409:
            raise TakenError(f"{self.address}: {response.message}")
        if response.status in (401, 403):
            raise UsageError(f"{self.address}: {response.message}{self._api.token_hint}")
        raise ReleaseError(f"{self.address}: {response.message}").with_notes(response.problems)

    def close(self) -> None:
        self._api.close()


class _UploadTimer:
    """The time limits for the upload of a file: the time without progress, and the time for the whole file."""

    def __init__(self, timeouts: Timeouts, size: int, received: int) -> None:
        self._timeouts, self._size, self._received = timeouts, size, received
        self._wait = timeouts.wait
        self._deadline = time.monotonic() + timeouts.seconds_for(size)
        self._stall_deadline = time.monotonic() + timeouts.stall

    def record_received(self, received: int) -> bool:
        """Record that the server has this many bytes, and return whether there is time left to send more."""
        now = time.monotonic()
        if received >= min(self._received + _PROGRESS_BYTES, self._size) > self._received:
            self._received, self._wait, self._stall_deadline = received, self._timeouts.wait, now + self._timeouts.stall
        return now <= min(self._stall_deadline, self._deadline)

    def pause(self, min_seconds: float) -> None:
        """Wait before the next attempt: at least `min_seconds`, and longer with each attempt without progress."""
        time.sleep(max(self._wait, min_seconds))
        self._wait = min(self._wait * 2, self._timeouts.longest_wait)


def _declare_file(path: str, content: Content, contents: dict[str, Content]) -> dict[str, object]:
    """Return the entry for a file in the request for an upload, and add the file to `contents` by its hash."""
    with os_errors_as(ReleaseError, f"cannot read {content!s}"), open_content(content) as source:
        sha256 = file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
        size = source.seek(0, io.SEEK_END)
    contents[sha256] = content
    return {"path": path, "sha256": sha256, "size": size}
