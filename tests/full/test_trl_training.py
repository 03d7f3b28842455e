"""Expert iteration and MALT with training by TRL, starting from a tiny model.

The dummy provider plays the games. The test checks that TRL accepts every dataset, that each iteration starts from the
model of the previous one, and that training changes the weights. It takes three minutes on a CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import command, environment
from tests.support.soft_assertions import SoftAssertions

PLACEHOLDERS = ("{method}", "{dataset}", "{base_model}", "{output}", "{model_file}", "{seed}")
TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)


@pytest.mark.parametrize("kind", ["expert_iteration", "malt"])
def test_trl_trains_on_the_datasets_of_a_run(tmp_path: Path, check: SoftAssertions, kind: str) -> None:
    base = tmp_path / "base"
    make_model(base)
    check_training(check, tmp_path / kind, base, kind)


def make_model(folder: Path) -> None:
    """Save a Llama with two small layers, a byte tokenizer and random weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    vocabulary = {text: number for number, text in enumerate(["<|pad|>", "<|end|>", *sorted(ByteLevel.alphabet())])}
    byte_tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    byte_tokenizer.pre_tokenizer, byte_tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer, pad_token="<|pad|>", eos_token="<|end|>", chat_template=TEMPLATE
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8192, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_training(check: SoftAssertions, folder: Path, base: Path, kind: str) -> None:
    folder.mkdir()
    trainer = {
        "backend": "command",
        "command": [sys.executable, str(ROOT / "specs" / "train_with_trl.py"), *PLACEHOLDERS],
    }
    spec = {
        "extends": f"specs/{kind}.yaml",
        "models": {group: {"provider": "dummy", "model": str(base)} for group in ("prover", "verifier")},
        "training": {"iterations": 2, "test": {"scheme": "none"}, "trainers": {"prover": trainer, "verifier": trainer}},
    }
    (folder / "spec.yaml").write_text(json.dumps(spec))
    offline = environment(HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf"))
    done = subprocess.run(
        command("spec.yaml", "-q", "--json"), cwd=folder, env=offline, capture_output=True, text=True, check=False
    )
    check(done.returncode == 0, f"{kind}: exit code 0: {done.returncode} {done.stderr[-2000:]}")
    for state in folder.glob("results/runs/*/state.json"):
        for group, model in json.loads(state.read_bytes()).items():
            steps = model["lineage"]
            chain = [str(base), *(step["model"] for step in steps)]
            check(
                len(steps) == 2 and [step["from_model"] for step in steps] == chain[:-1],
                f"{kind}: {group} is trained twice, the second time from the first model: {steps}",
            )
            weights = {(folder / name / "model.safetensors").read_bytes() for name in chain}
            check(len(weights) == 3, f"{kind}: {group} has new weights after each training")
