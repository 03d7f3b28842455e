"""Expert iteration and MALT whose models TRL really trains, from a tiny model that is made here.

The games are the dummy provider's: what is shown is that TRL takes every dataset as it is, that each iteration's job
starts from the model of the one before, and that its weights have changed. A CPU takes three minutes for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.claims import Claims
from tests.support.paths import ROOT
from tests.support.processes import command, environment

WORDS = ("{method}", "{dataset}", "{base_model}", "{output}", "{model_file}", "{seed}")
TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)


@pytest.mark.parametrize("kind", ["expert_iteration", "malt"])
def test_trl_trains_on_what_a_run_writes(tmp_path: Path, claims: Claims, kind: str) -> None:
    base = tmp_path / "base"
    make_model(base)
    prove(claims, tmp_path / kind, base, kind)


def make_model(place: Path) -> None:
    """A Llama of two small layers that reads bytes, with weights drawn at random."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    vocabulary = {text: number for number, text in enumerate(["<|pad|>", "<|end|>", *sorted(ByteLevel.alphabet())])}
    bytes_ = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_.pre_tokenizer, bytes_.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_, pad_token="<|pad|>", eos_token="<|end|>", chat_template=TEMPLATE
    )
    shape = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8192, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(place)
    tokenizer.save_pretrained(place)


def prove(claims: Claims, here: Path, base: Path, kind: str) -> None:
    here.mkdir()
    trainer = {"backend": "command", "command": [sys.executable, str(ROOT / "specs" / "train_with_trl.py"), *WORDS]}
    spec = {
        "extends": f"specs/{kind}.yaml",
        "models": {group: {"provider": "dummy", "model": str(base)} for group in ("prover", "verifier")},
        "training": {"iterations": 2, "test": {"scheme": "none"}, "trainers": {"prover": trainer, "verifier": trainer}},
    }
    (here / "spec.yaml").write_text(json.dumps(spec))
    offline = environment(HF_HUB_OFFLINE="1", HF_HOME=str(here / "hf"))
    done = subprocess.run(
        command("spec.yaml", "-q", "--json"), cwd=here, env=offline, capture_output=True, text=True, check=False
    )
    claims(done.returncode == 0, f"{kind}: exit code {done.returncode} {done.stderr[-2000:]}")
    for state in here.glob("results/runs/*/state.json"):
        for group, model in json.loads(state.read_bytes()).items():
            steps = model["lineage"]
            chain = [str(base), *(step["model"] for step in steps)]
            claims(
                len(steps) == 2 and [step["from_model"] for step in steps] == chain[:-1],
                f"{kind}: {group} was trained twice by {steps[0]['method']}, the second time from the first",
            )
            weights = {(here / name / "model.safetensors").read_bytes() for name in chain}
            claims(len(weights) == 3, f"{kind}: {group} has new weights after each")
