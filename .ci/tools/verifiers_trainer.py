"""Check five training steps of TRL on a game that verifiers 0.4 plays.

    python .ci/tools/verifiers_trainer.py [--python PYTHON_WITH_VERIFIERS_HATCHLING_AND_TRL]

If no Python with verifiers is given, the script creates an environment with it, which takes TRL and PyTorch from this
one. The script exports the spec `nip`. `specs/train_environment_with_trl.py` trains its prover on the CPU, starting
from a tiny model with random weights; a server derives each answer of the verifier from its chat. The script checks:

- TRL takes five steps, which change the weights
- the tokens of each row are those of the prover's chat, and their probabilities those of the model
- a run of nip-run with the same answers of the prover has the same rewards, and TRL used these
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file
from shared import ROOT, SoftAssertions, temporary_folder
from tokenizers import Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verifiers_env import Chat, choose_reply, install_verifiers, run_chat_server, to_chat

from runner import run
from runner.cli.main import main as nip_run
from runner.spec.loader import load_spec
from tests.support.files import parquet_rows

STEPS, GAMES_PER_STEP, PER_TASK = 5, 8, 4
TASKS = STEPS * GAMES_PER_STEP // PER_TASK
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"] + [
    f"<{slash}tool_{kind}>" for kind in ("call", "response") for slash in ("", "/")
]
"""The tokens that the renderer for Qwen3 needs."""


def make_model(place: Path) -> None:
    """Save a Llama with two small layers and random weights, and a tokenizer learned from the datapoints."""
    torch.manual_seed(0)
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer, pairs.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    pairs.train([str(ROOT / "specs/data/code_validation.jsonl")], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pairs,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=8192, pad_token_id=0, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    tokenizer.save_pretrained(place)


def write_spec(here: Path, name: str, url: str) -> Path:
    """Write the spec of one game about each datapoint; its agents have a path each at `url`."""
    group = {"provider": "openai", "model": "tiny", "temperature": 1.0}
    spec = {
        "extends": f"{ROOT}/specs/nip.yaml", "name": "nip", "seed": 3, "fine_tune": None,
        "protocol": {"verifier_first": False},  # so that the prover is asked in every game
        "models": {agent: {**group, "base_url": f"{url}/{agent}/v1"} for agent in ("prover", "verifier")},
        "agents": {"prover": {"model": "prover"}, "verifier": {"model": "verifier", "freeze": True}},
        "dataset": {"split": None, "group_by": None, "limit": TASKS},
        "retry": {"invalid_response": {"attempts": 1, "then": "empty_message"}},
    }  # fmt: skip
    path = here / f"{name}.yaml"
    path.write_text(json.dumps(spec), "utf-8")
    return path


def create_environment(here: Path) -> Path:
    """Create an environment with verifiers that also finds the packages of this one."""
    python = install_verifiers(here)
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    Path(site, "trainer.pth").write_text(str(Path(torch.__file__).parents[1]))
    return python


def train(here: Path, python: Path, url: str) -> str:
    """Train the prover with TRL. Return the output of a failure, or an empty text."""
    install = [python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", here / "nip_games"]
    subprocess.run(install, check=True)
    options = {
        "agent": "prover", "model": "start", "output": "trained", "others": f"{url}/verifier/v1",
        "others-model": "tiny", "others-key-var": "HOME", "steps": STEPS, "games": GAMES_PER_STEP, "per-task": PER_TASK,
        "max-tokens": 24, "learning-rate": 1e-3,
    }  # fmt: skip
    arguments = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.run(
        [python, ROOT / "specs/train_environment_with_trl.py", "nip_games", *arguments], cwd=here, check=False,
        env={"HOME": str(here), "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    return f"{process.stdout[-2000:]} {process.stderr[-6000:]}" if process.returncode else ""


def iterate_answers(trace: dict[str, Any]) -> Iterator[tuple[Chat, str]]:
    """Yield each chat that was sent to the agent, with its answer."""
    nodes = trace["nodes"]
    for node in nodes:
        if node["message"]["role"] == "assistant":
            path, parent = [], node.get("parent")
            while parent is not None:
                path.append(nodes[parent]["message"])
                parent = nodes[parent].get("parent")
            yield to_chat(path[::-1]), node["message"].get("content") or ""


def find_prover_trace(line: dict[str, Any]) -> dict[str, Any]:
    return next(trace for trace in line["episode"]["traces"] if trace["info"]["seat"] == "prover")


def replay_rewards(here: Path, lines: list[dict[str, Any]]) -> dict[str, float]:
    """Play one game about each datapoint with the prover's answers from `lines`. Return the prover's rewards."""
    answers = dict(pair for line in lines for pair in iterate_answers(find_prover_trace(line)))

    def answer(agent: str, messages: list[dict[str, Any]]) -> str:
        return answers[to_chat(messages)] if agent == "prover" else choose_reply(messages)

    with run_chat_server(answer) as (url, _):
        result = run(load_spec(write_spec(here, "again", url)), here)
    rows = parquet_rows(result.path / "rollouts.parquet")
    return {row["rollout_id"]: json.loads(row["rewards"])["prover"] for row in rows}


def compare_rows(check: SoftAssertions, here: Path, lines: list[dict[str, Any]]) -> None:
    """Compare the rows of the first step with the start model, and all rows with the chats."""
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(here / "start"),
        AutoTokenizer.from_pretrained(here / "start"),
    )
    largest_difference, token_count, missing = 0.0, 0, []
    for line in lines:
        row = line["row"]
        ids, start = row["prompt_ids"] + row["completion_ids"], len(row["prompt_ids"])
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        chat = [message["message"].get("content") or "" for message in find_prover_trace(line)["nodes"]]
        missing += [part for part in chat if part not in text]
        if line["step"]:
            continue
        with torch.no_grad():
            log_probabilities = torch.log_softmax(model(torch.tensor([ids])).logits[0, start - 1 : -1], dim=-1)
        for position, is_sampled in enumerate(row["env_mask"]):
            if is_sampled:
                expected = log_probabilities[position, row["completion_ids"][position]].item()
                largest_difference, token_count = (
                    max(largest_difference, abs(expected - row["logprobs"][position])),
                    token_count + 1,
                )
    turns = sum(len(list(iterate_answers(find_prover_trace(line)))) for line in lines)
    check(
        not missing, f"the rows have the text of the chats, in which the prover answered {turns} times: {missing[:2]}"
    )
    check(
        largest_difference < 1e-3,
        f"{token_count} tokens of step 1 have the start model's log probabilities within {largest_difference:.1e}",
    )


def compare_weights(check: SoftAssertions, here: Path) -> None:
    before, after = (load_file(here / name / "model.safetensors") for name in ("start", "trained/model"))
    changed = [name for name, value in before.items() if not torch.equal(value, after[name])]
    size = sum(value.numel() for value in before.values())
    check(len(changed) == len(before), f"{len(changed)} of {len(before)} tensors ({size} parameters) changed")


def compare_rewards(check: SoftAssertions, here: Path, lines: list[dict[str, Any]]) -> None:
    """Compare the rewards with those of nip-run, and with what TRL logged."""
    by_task: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_task[find_prover_trace(line)["info"]["rollout_id"]].append(line)
    check(sorted(map(len, by_task.values())) == [PER_TASK] * TASKS, f"{PER_TASK} games of each of {len(by_task)} tasks")
    equal_count = 0
    for number in range(PER_TASK):
        part = [games[number] for games in by_task.values()]
        place = here / f"replayed-{number}"  # in one folder, the second run would be the first, which is complete
        place.mkdir()
        rewards = replay_rewards(place, part)
        equal_count += sum(
            rewards[find_prover_trace(line)["info"]["rollout_id"]] == line["row"]["game_reward"] for line in part
        )
    check(
        equal_count == len(lines),
        f"{equal_count} of {len(lines)} games have the reward of nip-run's game with the same answers",
    )
    logged = [
        entry
        for entry in json.loads((here / "trained/trainer_state.json").read_bytes())["log_history"]
        if "reward" in entry
    ]
    means = [fmean(line["row"]["game_reward"] for line in lines if line["step"] == step) for step in range(STEPS)]
    has_equal_means = len(logged) == STEPS and all(
        abs(entry["reward"] - mean) < 1e-6 for entry, mean in zip(logged, means, strict=True)
    )
    check(has_equal_means, f"TRL took {len(logged)} steps with these rewards, on average {means}")
    has_gradient = [entry["reward_std"] > 0 and entry["grad_norm"] > 0 for entry in logged]
    check(
        sum(has_gradient) > STEPS / 2,
        f"rewards of the same task vary in {sum(has_gradient)} steps, which have a gradient",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, metavar="PATH", help="of an environment that has the tools")
    args = parser.parse_args()
    check = SoftAssertions()
    with temporary_folder() as here, run_chat_server() as (url, _):
        make_model(here / "start")
        code = nip_run(["export-env", str(write_spec(here, "nip", url)), "-o", str(here / "nip_games"), "-q"])
        assert code == 0, f"export-env ended with exit code {code}"
        started = time.monotonic()
        failure = train(here, args.python or create_environment(here), url)
        check(not failure, f"training took {time.monotonic() - started:.0f} s {failure}")
        if not failure:
            lines = [json.loads(line) for line in (here / "trained/episodes.jsonl").read_text("utf-8").splitlines()]
            compare_weights(check, here)
            compare_rows(check, here, lines)
            compare_rewards(check, here, lines)
    return check.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
