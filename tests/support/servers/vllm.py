"""A server of one base model that loads LoRA adapters at runtime, with the responses of vLLM 0.10.

It has the paths of `tests.support.servers.chat`, and:

    GET /v1/models    POST /v1/load_lora_adapter    POST /v1/unload_lora_adapter
    GET /adapters (their events, oldest first)

It behaves like vLLM with `--enable-lora`. An adapter exists if its path has an `adapter_config.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import chat
from tests.support.servers.frame import Answer, Request, json_answer, run_server


@dataclass
class Options(chat.Options):
    base: tuple[str, ...] = ("tiny",)
    """The models at the start."""
    runtime_lora: bool = True
    """Whether VLLM_ALLOW_RUNTIME_LORA_UPDATING is set."""


def _error(status: int, message: str, kind: str) -> Answer:
    return json_answer({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


class Server(chat.Server):
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.adapters: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []
        self.routes["GET /v1/models"] = self._models
        self.routes |= {"POST /v1/load_lora_adapter": self._load, "POST /v1/unload_lora_adapter": self._unload}
        self.control_routes["/adapters"] = lambda _: json_answer({"loaded": self.adapters, "events": self.events})

    async def complete(self, request: Request) -> Answer:
        model = request.json()["model"]
        if model not in self.options.base and model not in self.adapters:
            self.events.append(("missing", model))
            return _error(404, f"The model `{model}` does not exist.", "NotFoundError")
        return await super().complete(request)

    def _route(self, request: Request) -> Answer:
        if "lora_adapter" in request.path and not self.options.runtime_lora:
            return json_answer({"detail": "Not Found"}, 404)
        return super()._route(request)

    def _models(self, _: Request) -> Answer:
        cards: list[dict[str, Any]] = [
            {"id": name, "object": "model", "created": 1, "owned_by": "vllm", "root": root, "parent": parent}
            for name, root, parent in (
                *((base, base, None) for base in self.options.base),
                *((name, path, self.options.base[0]) for name, path in self.adapters.items()),
            )
        ]
        return json_answer({"object": "list", "data": cards})

    def _load(self, request: Request) -> Answer:
        body = request.json()
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            return _error(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")
        if name in self.adapters:
            return _error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
        if not (Path(path) / "adapter_config.json").is_file():
            return _error(404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError")
        self.adapters[name] = path
        self.events.append(("loaded", name))
        return Answer(body=f"Success: LoRA adapter '{name}' added successfully.".encode(), content_type="text/plain")

    def _unload(self, request: Request) -> Answer:
        name = request.json().get("lora_name")
        if name not in self.adapters:
            return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        del self.adapters[name]
        self.events.append(("unloaded", name))
        return Answer(body=f"Success: LoRA adapter '{name}' removed successfully.".encode(), content_type="text/plain")


if __name__ == "__main__":
    run_server(Server, Options, __doc__)
