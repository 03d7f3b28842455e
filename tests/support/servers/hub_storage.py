"""Where a Hub keeps large files: another host, to which it sends those who read and write them.

It takes `PUT /{sha256}`, gives what it has, and keeps the headers of all who came (`GET /requests`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.support.servers.frame import Answer, Options, Request, Server, answered, run_server


@dataclass
class StorageOptions(Options):
    record: int = 10_000


class StorageServer(Server):
    def __init__(self, options: StorageOptions) -> None:
        super().__init__(options)
        self._held: dict[str, bytes] = {}

    def _routed(self, request: Request) -> Answer:
        name = request.path.strip("/")
        if request.method == "PUT":
            if hashlib.sha256(request.body).hexdigest() != name:
                return answered({"error": "other bytes than were announced"}, 400)
            self._held[name] = request.body
            return Answer()
        if name not in self._held:
            return answered({"error": "no such object"}, 404)
        return Answer(body=self._held[name], content_type="application/octet-stream")


if __name__ == "__main__":
    run_server(StorageServer, StorageOptions, __doc__)
