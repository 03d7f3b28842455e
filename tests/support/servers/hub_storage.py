"""The storage of a Hub's large files, on its own host.

It accepts `PUT /{sha256}`, returns stored files, and records the headers of all requests (`GET /requests`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.support.servers.frame import Answer, Options, Request, Server, json_answer, run_server


@dataclass
class StorageOptions(Options):
    record: int = 10_000


class StorageServer(Server):
    def __init__(self, options: StorageOptions) -> None:
        super().__init__(options)
        self._objects: dict[str, bytes] = {}

    def _route(self, request: Request) -> Answer:
        name = request.path.strip("/")
        if request.method == "PUT":
            if hashlib.sha256(request.body).hexdigest() != name:
                return json_answer({"error": "other bytes than were announced"}, 400)
            self._objects[name] = request.body
            return Answer()
        if name not in self._objects:
            return json_answer({"error": "no such object"}, 404)
        return Answer(body=self._objects[name], content_type="application/octet-stream")


if __name__ == "__main__":
    run_server(StorageServer, StorageOptions, __doc__)
