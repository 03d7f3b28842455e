"""The trainer that nip-run calls: fine-tune a checkpoint on a fine-tuning file, by SFT or, on preferences, by DPO.

command: [python, trainer.py, "{method}", "{dataset}", "{base_model}", "{output}", "{model_file}", "{seed}"]
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from pretrain import batch_loss
from torch.nn import functional
from transformer import END, Transformer, encode, encode_chat, load, save

EPOCHS, BATCH, BETA = 2, 32, 0.1
LEARNING_RATES = {"sft": 5e-4, "dpo": 1e-4}

Row = tuple[list[int], list[int]]
"""The tokens of a chat and of its answer."""


def row_of(example: dict[str, Any], key: str) -> Row:
    return encode_chat(example["prompt"]), [*encode(example[key][0]["content"]), END]


def batches(examples: Sequence[dict[str, Any]], seed: int) -> Iterator[list[dict[str, Any]]]:
    for epoch in range(EPOCHS):
        order = Random(f"{seed} {epoch}").sample(examples, len(examples))
        for start in range(0, len(order), BATCH):
            yield order[start : start + BATCH]


def log_probabilities(model: Transformer, rows: Sequence[Row]) -> torch.Tensor:
    """Return the log-probability of each row's answer."""
    length = max(len(chat) + len(answer) for chat, answer in rows)
    tokens = torch.tensor([[*chat, *answer] + [END] * (length - len(chat) - len(answer)) for chat, answer in rows])
    learned = torch.zeros(len(rows), length - 1)
    for number, (chat, answer) in enumerate(rows):
        learned[number, len(chat) - 1 : len(chat) + len(answer) - 1] = 1
    logits, _ = model(tokens[:, :-1])
    return (logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0] * learned).sum(-1)


def dpo_loss(model: Transformer, reference: Transformer, examples: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Return the loss of Direct Preference Optimization (Rafailov et al., 2023)."""
    rows = [row_of(example, key) for key in ("chosen", "rejected") for example in examples]
    with torch.no_grad():
        before = log_probabilities(reference, rows)
    chosen, rejected = (log_probabilities(model, rows) - before).chunk(2)
    return -functional.logsigmoid(BETA * (chosen - rejected)).mean()


def main() -> None:
    method, dataset, base_model, output, model_file, seed = sys.argv[1:]
    torch.set_num_threads(1)
    examples = [json.loads(line) for line in Path(dataset).read_text("utf-8").splitlines()]
    model = load(Path(base_model))
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATES[method])
    for number, batch in enumerate(batches(examples, int(seed))):
        if method == "dpo":
            loss = dpo_loss(model, reference, batch)
        else:
            loss = batch_loss(model, [row_of(example, "completion") for example in batch])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        if number % 10 == 0:
            print(f"batch {number}: loss {loss.item():.4f}", flush=True)
    path = Path(output, "model.pt")
    save(model, path)
    Path(model_file).write_text(f"./{os.path.relpath(path)}", "utf-8")


if __name__ == "__main__":
    main()
