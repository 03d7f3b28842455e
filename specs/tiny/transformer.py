"""Small transformers like Llama: the tokenizer, the model, answers with log-probabilities, and checkpoints."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

PHRASES = (
    "Do these digits add up to this sum modulo 5? ",
    " True sum: ",
    "\nAnswer at once.",
    "\nCheck each step of the proof.",
    "\nCheck each step of the proof, which may be for either side.",
    "\nCheck each step of the proof. The other expert disputes one.",
    "\nAsk for each half of the proof, and check its steps.",
    " Answer Decision: accept or Decision: reject.",
    "\nProve that the answer is accept.",
    "\nProve that the answer is reject.",
    "\nProve one half when you are asked.",
    "\nDispute a step of the other expert's proof.",
    "Sums 1 to 6?",
    "Sums 7 to 12?",
    "Decision: accept",
    "Decision: reject",
    "Expert: ",
    "Expert_1: ",
    "Expert_2: ",
    "Verifier: ",
    "Anonymous: ",
    "\n\nInstructions: Decide now.",
    "\n\n",
)
"""Texts that are one token each. The other tokens are single characters."""

SPECIAL = ("<user>", "<assistant>", "<end>", "<unknown>")
TOKENS = (*SPECIAL, *PHRASES, "\n", *map(chr, range(32, 127)))
IDS = {token: number for number, token in enumerate(TOKENS)}
END, UNKNOWN = IDS["<end>"], IDS["<unknown>"]
_PIECE = re.compile("|".join(map(re.escape, sorted(PHRASES, key=len, reverse=True))) + "|.", re.DOTALL)

Chat = Sequence[Mapping[str, str]]


def encode(string: str) -> list[int]:
    return [IDS.get(piece, UNKNOWN) for piece in _PIECE.findall(string)]


def decode(tokens: Sequence[int]) -> str:
    return "".join(TOKENS[token] for token in tokens if token >= len(SPECIAL))


def encode_chat(chat: Chat) -> list[int]:
    """Return the tokens of a chat up to the beginning of the assistant's answer."""
    tokens = list[int]()
    for message in chat:
        role = "<assistant>" if message["role"] == "assistant" else "<user>"
        tokens += [IDS[role], *encode(message["content"]), END]
    return [*tokens, IDS["<assistant>"]]


@dataclass(frozen=True)
class Shape:
    """The size of a model. A head has 16 dimensions."""

    width: int
    layers: int
    heads: int


SHAPES = {"verifier": Shape(64, 3, 4), "prover": Shape(96, 3, 6)}
"""0.15 and 0.34 million parameters."""

Cache = list[tuple[Tensor, Tensor]]


def _rotate(x: Tensor, start: int) -> Tensor:
    """Rotate queries or keys by their positions (RoPE, base 500). Shape: batch, heads, length, dimension."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(start, start + x.shape[-2]), 500.0 ** (-torch.arange(half) / half))
    cos, sin, left, right = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)


class Block(nn.Module):
    """One layer: attention, then a gated feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.width * 8 // 3
        self.heads = shape.heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        for layer in (self.qkv, self.attention_out, self.gate_up, self.down):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        for layer in (self.attention_out, self.down):
            layer.weight.data /= math.sqrt(2 * shape.layers)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        start = past[0].shape[-2] if past else 0
        q, k = _rotate(q, start), _rotate(k, start)
        if past:
            k, v = torch.cat((past[0], k), -2), torch.cat((past[1], v), -2)
        heard = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.attention_out(heard.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up), (k, v)


class Transformer(nn.Module):
    """A language model. `seed` determines its first weights."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.embedding = nn.Embedding(len(TOKENS), shape.width)
        nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the logits of each next token, and the keys and values for the next call."""
        x, new = self.embedding(tokens), Cache()
        for number, block in enumerate(self.blocks):
            x, state = block(x, cache[number] if cache else None)
            new.append(state)
        return self.norm(x) @ self.embedding.weight.T, new


class Answer(NamedTuple):
    """A generated answer. `log_probabilities` has a row of all tokens for each token, as the model gives them."""

    tokens: list[int]
    is_complete: bool
    log_probabilities: Tensor


class Sampling(NamedTuple):
    """The settings of one answer. Equal settings and prompts give equal answers."""

    max_tokens: int
    temperature: float
    seed: int


@torch.inference_mode()
def generate(model: Transformer, prompts: Sequence[Sequence[int]], settings: Sequence[Sampling]) -> list[Answer]:
    """Answer prompts of equal length. Each answer has its own source of randomness."""
    steps = max(setting.max_tokens for setting in settings)
    noise = torch.zeros(len(prompts), steps, len(TOKENS))
    for row, setting in enumerate(settings):
        if setting.temperature > 0:
            uniform = torch.rand(steps, len(TOKENS), generator=torch.Generator().manual_seed(setting.seed))
            noise[row] = setting.temperature * -(-uniform.clamp_min(1e-20).log()).log()  # Gumbel's distribution
    tokens, cache = torch.tensor(prompts), None
    chosen, log_probabilities = list[Tensor](), list[Tensor]()
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for step in range(steps):
        logits, cache = model(tokens, cache)
        log_probabilities.append(logits[:, -1].log_softmax(-1))
        chosen.append((log_probabilities[-1] + noise[:, step]).argmax(-1))
        tokens = chosen[-1][:, None]
        ended |= chosen[-1] == END
        if ended.all():
            break
    all_tokens, all_log_probabilities = torch.stack(chosen, 1).tolist(), torch.stack(log_probabilities, 1)
    answers = []
    for row, setting in enumerate(settings):
        answer = all_tokens[row][: setting.max_tokens]
        length = answer.index(END) if END in answer else len(answer)
        answers.append(Answer(answer[:length], END in answer, all_log_probabilities[row, :length]))
    return answers


def save(model: Transformer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    torch.save({"shape": asdict(model.shape), "weights": model.state_dict()}, temporary)
    temporary.replace(path)


def load(path: Path) -> Transformer:
    state = torch.load(path, weights_only=True)
    model = Transformer(Shape(**state["shape"]))
    model.load_state_dict(state["weights"])
    return model
