"""Requests in each chat format; a replay uses the format of the run that it replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError, UsageError
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.runs import derived_files, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

DEBATE: dict[str, Any] = {
    "protocol": {"use": "debate", "max_message_rounds": 5},
    "prompts": "prompts/code_validation/debate",
    "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
}


def load_chat_format(folder: Path, base_url: str | None, **changes: Any) -> str | None:
    model = {"provider": "openai", "model": "tiny", "base_url": base_url, **changes}
    spec = load_spec(spec_file(folder, models={"m": model}))
    return spec.experiment.models["m"].chat_format


def test_the_default_chat_format_depends_on_the_base_url(tmp_path: Path) -> None:
    openai_urls = (None, "https://api.openai.com/v1", "https://API.openai.com/v1/", "https://eu.api.openai.com/v1")
    other_urls = (
        "http://127.0.0.1:8000/v1",
        "https://me.openai.azure.com/openai/v1",
        "https://api.openai.com.example/v1",
    )
    assert {load_chat_format(tmp_path, url) for url in openai_urls} == {"openai"}
    assert {load_chat_format(tmp_path, url) for url in other_urls} == {"alternating"}
    assert load_chat_format(tmp_path, other_urls[0], chat_format="openai") == "openai"
    assert load_chat_format(tmp_path, None, chat_format="alternating") == "alternating"
    assert load_spec(spec_file(tmp_path)).experiment.models["m"].chat_format == "openai"
    with pytest.raises(SpecError, match="chat_format"):
        load_chat_format(tmp_path, None, chat_format="gemma")


@pytest.mark.full
@pytest.mark.parametrize("role", ["user", pytest.param("system", marks=pytest.mark.full)])
def test_a_replay_uses_the_chat_format_of_its_run(tmp_path: Path, role: str) -> None:
    (tmp_path / "again").mkdir()
    with run_chat_server(record=500) as server:
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": {"system_role": role}}, **DEBATE)
        first = run_spec(path, tmp_path / "results")
        chats = [json.loads(request["body"])["messages"] for request in server.recorded_requests()]
        requests = server.requests
        # By an option, although the URL would select another format, and by the replay provider.
        replay = run_spec(path, tmp_path / "other", "models.m.base_url=null", replay=ReplayOf(first.folder.path))
        models = {"m": {"provider": "replay", "run": str(first.folder.path)}}
        provider_spec = spec_file(tmp_path / "again", size=2, models=models, **DEBATE)
        provider_replay = run_spec(provider_spec, tmp_path / "results")
        assert server.requests == requests
    assert {chat[0]["role"] for chat in chats if len(chat) > 1} <= {"system", "user"}
    assert all(message.keys() == {"role", "content"} for chat in chats for message in chat)
    assert any(chat[0]["role"] == "system" for chat in chats) == (role == "system")
    assert any("Expert_1: " in chat[-1]["content"] and "Expert_2: " in chat[-1]["content"] for chat in chats)
    assert derived_files(replay.folder.path)["messages.parquet"] == derived_files(first.folder.path)["messages.parquet"]
    assert provider_replay.manifest.rollouts == first.manifest.rollouts
    saved = (provider_replay.folder.path / "spec.yaml").read_text("utf-8")
    assert "chat_format: alternating" in saved
    assert f"system_role: {role}" in saved


@pytest.mark.full
def test_a_replay_in_another_format_is_refused_before_it_has_a_folder(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        first = run_spec(path, tmp_path / "results").folder
        openai = "models.m.chat_format=openai"
        with pytest.raises(
            UsageError, match=r"that run called verifier with models\.m\.chat_format=alternating .*system_role"
        ):
            run_spec(path, tmp_path / "results", openai, replay=ReplayOf(first.path))
        with pytest.raises(UsageError, match="that run called prover with"):
            run_spec(path, tmp_path / "results", openai, replay=ReplayOf(first.path, 2))
        assert list((tmp_path / "results" / "runs").iterdir()) == [first.path]
        assert run_spec(path, tmp_path / "results", openai).manifest.replay_of is None
        # If no answer is replayed, any format is allowed.
        assert run_spec(path, tmp_path / "other", openai, replay=ReplayOf(first.path, 0)).manifest.rollouts == 2
