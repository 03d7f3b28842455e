"""Uploads as somebody sends them who does not use our client, and keeps to none of its rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Self

import httpx2

from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release
from tests.support.processes import until


class Raw:
    """Requests of one token to one server, each as it is said."""

    def __init__(self, address: str, token: str | None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.client = httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def begin(self, folders: Mapping[str, Mapping[str, bytes]], **changes: Any) -> httpx2.Response:
        """Declare files of folders by their bytes; with `changes` of every file."""
        said = [
            {"folder": folder, "files": [{**declared(path, data), **changes} for path, data in files.items()]}
            for folder, files in folders.items()
        ]
        return self.client.post("/uploads", json={"folders": said})

    def send(self, upload: str, data: bytes, *, sha256: str | None = None, offset: int = 0) -> httpx2.Response:
        name = hashlib.sha256(data).hexdigest() if sha256 is None else sha256
        return self.client.patch(
            f"/uploads/{upload}/blobs/{name}", content=data[offset:], headers={"upload-offset": str(offset)}
        )

    def commit(self, upload: str) -> httpx2.Response:
        return self.client.post(f"/uploads/{upload}/commit")

    def state(self, upload: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/uploads/{upload}").json()
        return found

    def ended(self, upload: str) -> dict[str, Any]:
        """What became of an upload that was committed."""
        until(lambda: self.state(upload).get("state") != "checking")
        return self.state(upload)

    def published(self, folders: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
        """What becomes of files that are declared, sent and committed: the last answer, with its status."""
        begun = self.begin(folders)
        if begun.status_code != 200:
            return {"status": begun.status_code, **begun.json()}
        upload = begun.json()
        by_hash = {hashlib.sha256(data).hexdigest(): data for files in folders.values() for data in files.values()}
        for missing in upload["missing"]:
            sent = self.send(upload["id"], by_hash[missing["sha256"]])
            assert sent.status_code == 200, sent.text
        done = self.commit(upload["id"])
        return {
            "status": done.status_code,
            **(self.ended(upload["id"]) if done.status_code == 202 else done.json()),
        }

    def files(self) -> list[str]:
        """The files of all releases that this token sees."""
        folders = [one["folder"] for one in self.client.get("/releases").json()["releases"]]
        releases = {
            folder: Release.from_bytes(self.client.get(f"/tree/{folder}/{MANIFEST}").content) for folder in folders
        }
        return [
            f"{folder}/{path}"
            for folder, release in releases.items()
            for path in (*(file.path for file in release.files), MANIFEST, CHECKSUM)
        ]


def declared(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
