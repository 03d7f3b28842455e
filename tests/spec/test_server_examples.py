"""The entries for servers in `docs/how-to/connect-a-model.md` are valid in a spec."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.spec.loader import load_spec
from tests.support.documentation import blocks, pages
from tests.support.specs import spec_file

PAGE = pages()["docs/how-to/connect-a-model.md"]
(SERVERS,) = (
    yaml.safe_load(block.text)["models"]
    for block in blocks(PAGE, "yaml")
    if (block.mark, block.value) == ("file", "servers.yaml")
)


@pytest.mark.parametrize("name", SERVERS)
def test_the_entry_for_a_server_is_valid(tmp_path: Path, name: str) -> None:
    agents = {"prover": {"model": name}, "verifier": {"model": name}}
    path = spec_file(tmp_path, models={"m": None, name: {"provider": "openai", **SERVERS[name]}}, agents=agents)
    settings = load_spec(path).experiment.models[name]
    assert settings.resolved_chat_format == "alternating"
    assert settings.key_variable == SERVERS[name].get("api_key_env"), "OpenAI's key goes to no other server"


def test_table_lists_every_server() -> None:
    rows = PAGE.splitlines()
    names = {
        "vllm": "vLLM",
        "sglang": "SGLang",
        "llama_cpp": "llama.cpp",
        "transformers": "`transformers serve`",
        "ollama": "Ollama",
        "litellm": "LiteLLM",
        "azure": "Azure",
        "openrouter": "OpenRouter",
    }
    assert set(names) == set(SERVERS)
    assert all(any(row.startswith(f"| {name} |") for row in rows) for name in names.values())
