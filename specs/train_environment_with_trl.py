"""Train one agent of an environment, which `nip-run export-env` wrote, with TRL's GRPOTrainer.

    python train_environment_with_trl.py ENVIRONMENT --agent NAME --model FOLDER --others URL --output FOLDER

verifiers 0.4, TRL and the environment must be installed. The other agents are asked at URL. verifiers renders the
agent's chats itself, as for Qwen3 without thinking, and asks for tokens as of vLLM's `/inference/v1/generate`. A server
in this process answers with the weights of the moment. Copy this file and change it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import verifiers.v1 as vf
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from verifiers.v1.utils.loaders import env_config_type, load_environment

RENDERER = {"name": "qwen3", "enable_thinking": False}


class Policy(ThreadingHTTPServer):
    """Samples from a model, on loopback."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, model: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Sample)
        self.model, self.turn = model, threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @torch.no_grad()
    def sample(self, prompt: list[int], wanted: dict[str, Any]) -> tuple[list[int], list[float]]:
        """The tokens of an answer and the logarithm of each one's probability."""
        ids, temperature = torch.tensor([prompt], device=self.model.device), wanted["temperature"]
        with self.turn:
            found = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
                max_new_tokens=wanted["max_tokens"], eos_token_id=wanted["stop_token_ids"],
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        tokens = found.sequences[0, len(prompt) :]
        chances = torch.log_softmax(torch.cat(found.logits).float() / temperature, dim=-1)
        return tokens.tolist(), chances.gather(1, tokens[:, None])[:, 0].tolist()


class _Sample(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Policy

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = body["sampling_params"]
        tokens, chances = self.server.sample(body["token_ids"], wanted)
        content = [{"token": f"token_id:{one}", "logprob": chance} for one, chance in zip(tokens, chances, strict=True)]
        reason = "stop" if tokens[-1] in wanted["stop_token_ids"] else "length"
        choice = {"index": 0, "token_ids": tokens, "finish_reason": reason, "logprobs": {"content": content}}
        self.answer({"request_id": "1", "choices": [choice]})

    def answer(self, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Games:
    """Plays the environment's games with the model that is being trained: TRL's `rollout_func`."""

    def __init__(self, args: argparse.Namespace, policy: Policy) -> None:
        seats = env_config_type(args.environment)(taskset={"id": args.environment})
        server = {"type": "eval", "base_url": args.others, "api_key_var": args.others_key_var}
        others = {
            name: {"model": args.others_model, "client": server}
            for name, value in seats
            if isinstance(value, vf.AgentConfig) and name != args.agent
        }
        self.environment = load_environment(type(seats)(taskset={"id": args.environment}, **others))
        self.tasks = list(self.environment.taskset)
        self.agent, self.policy, self.record = args.agent, policy, args.output / "episodes.jsonl"
        client = vf.TrainClientConfig(
            base_url=f"http://127.0.0.1:{policy.server_port}/v1", renderer=RENDERER, renderer_model_name=args.model
        )
        sampling = vf.SamplingConfig(temperature=1.0, max_tokens=args.max_tokens)
        self.context = vf.ModelContext(model=args.model, client=client, sampling=sampling)

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        trainer.model.eval()
        episodes = asyncio.run(self.play([self.tasks[int(number)] for number in prompts]))
        trainer.model.train()
        rows = [self.row(episode) for episode in episodes]
        with self.record.open("a", encoding="utf-8") as lines:
            for episode, row in zip(episodes, rows, strict=True):
                step = trainer.state.global_step
                lines.write(json.dumps({"step": step, "row": row, "episode": episode.to_record()}) + "\n")
        return {name: [row[name] for row in rows] for name in rows[0]}

    async def play(self, tasks: list[Any]) -> list[Any]:
        async with self.environment.serving():
            return await asyncio.gather(*(self.environment.run_episode(task, self.context) for task in tasks))

    def row(self, episode: Any) -> dict[str, Any]:
        """What TRL trains on, of a game: the agent's chat as tokens, and which of them it sampled."""
        if not episode.ok:
            raise RuntimeError(f"a game failed: {episode.last_error or [trace.errors for trace in episode.traces]}")
        branches = [(trace, branch) for trace in episode.by_agent.get(self.agent, []) for branch in trace.branches]
        if len(branches) != 1:
            raise RuntimeError(f"GRPOTrainer needs one chat per game, and {self.agent} has {len(branches)} in this one")
        [(trace, branch)] = branches
        start = branch.sampled_mask.index(True)
        return {
            "prompt_ids": branch.token_ids[:start],
            "completion_ids": branch.token_ids[start:],
            "env_mask": [int(sampled) for sampled in branch.sampled_mask[start:]],
            "logprobs": branch.logprobs[start:],
            "game_reward": trace.reward,
        }


def reward_of_game(game_reward: list[float], **_: object) -> list[float]:
    return game_reward


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--agent", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--others", required=True, metavar="URL")
    parser.add_argument("--others-model", default="default")
    parser.add_argument("--others-key-var", default="OPENAI_API_KEY")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--games", type=int, default=8, help="in each step")
    parser.add_argument("--per-task", type=int, default=4, help="games of the same task, which are compared")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    args.output.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    games = Games(args, Policy(model))
    settings = GRPOConfig(
        output_dir=str(args.output), max_steps=args.steps, per_device_train_batch_size=args.games,
        num_generations=args.per_task, learning_rate=args.learning_rate, temperature=1.0, logging_steps=1,
        gradient_checkpointing=False, save_strategy="no", report_to="none", shuffle_dataset=False,
        use_cpu=not torch.cuda.is_available(), bf16=torch.cuda.is_available(),
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, args=settings, processing_class=AutoTokenizer.from_pretrained(args.model),
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(games.tasks))]}),
        rollout_func=games, reward_funcs=reward_of_game,
    )  # fmt: skip
    trainer.train()
    trainer.save_state()
    trainer.save_model(args.output / "model")


if __name__ == "__main__":
    main()
