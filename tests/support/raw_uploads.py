"""Uploads by a client that does not follow the rules of nip-run's own client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Self

import httpx2

from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release
from tests.support.processes import wait_until


class RawUploadClient:
    """Sends the requests of an upload one by one, with one token."""

    def __init__(self, address: str, token: str | None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.client = httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def start_upload(self, folders: Mapping[str, Mapping[str, bytes]], **changes: Any) -> httpx2.Response:
        """Declare the files of some folders; `changes` override fields of every declaration."""
        body = [
            {"folder": folder, "files": [{**describe_file(path, data), **changes} for path, data in files.items()]}
            for folder, files in folders.items()
        ]
        return self.client.post("/uploads", json={"folders": body})

    def send_blob(self, upload: str, data: bytes, *, sha256: str | None = None, offset: int = 0) -> httpx2.Response:
        name = hashlib.sha256(data).hexdigest() if sha256 is None else sha256
        return self.client.patch(
            f"/uploads/{upload}/blobs/{name}", content=data[offset:], headers={"upload-offset": str(offset)}
        )

    def commit(self, upload: str) -> httpx2.Response:
        return self.client.post(f"/uploads/{upload}/commit")

    def state(self, upload: str) -> dict[str, Any]:
        state: dict[str, Any] = self.client.get(f"/uploads/{upload}").json()
        return state

    def wait_for_result(self, upload: str) -> dict[str, Any]:
        """Wait until the server has checked a committed upload, and return its state."""
        wait_until(lambda: self.state(upload).get("state") != "checking")
        return self.state(upload)

    def publish(self, folders: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
        """Declare, send and commit files; return the body of the last response, with its status."""
        response = self.start_upload(folders)
        if response.status_code != 200:
            return {"status": response.status_code, **response.json()}
        upload = response.json()
        by_hash = {hashlib.sha256(data).hexdigest(): data for files in folders.values() for data in files.values()}
        for missing_file in upload["missing"]:
            blob_response = self.send_blob(upload["id"], by_hash[missing_file["sha256"]])
            assert blob_response.status_code == 200, blob_response.text
        commit_response = self.commit(upload["id"])
        result = self.wait_for_result(upload["id"]) if commit_response.status_code == 202 else commit_response.json()
        return {"status": commit_response.status_code, **result}

    def list_files(self) -> list[str]:
        """Return the files of all releases that this token can see."""
        folders = [release["folder"] for release in self.client.get("/releases").json()["releases"]]
        releases = {
            folder: Release.from_bytes(self.client.get(f"/tree/{folder}/{MANIFEST}").content) for folder in folders
        }
        return [
            f"{folder}/{path}"
            for folder, release in releases.items()
            for path in (*(file.path for file in release.files), MANIFEST, CHECKSUM)
        ]


def describe_file(path: str, data: bytes) -> dict[str, Any]:
    """Return the declaration of a file in the request that starts an upload."""
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
