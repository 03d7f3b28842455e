"""A trainer for the `command` backend: fine-tune with TRL, by SFT or, on preference pairs, by DPO.

    command: [python, train_with_trl.py, "{method}", "{dataset}", "{base_model}", "{output}", "{model_file}", "{seed}"]

The new model is a folder, which is its name: serve it as such, for instance with vLLM. Copy this file and change it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    import torch
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    method, dataset, base_model, output, model_file, seed = sys.argv[1:]
    rows = load_dataset("json", data_files=dataset, split="train")
    trainer_of, config_of = (DPOTrainer, DPOConfig) if method == "dpo" else (SFTTrainer, SFTConfig)
    settings = config_of(
        output_dir=output,
        seed=int(seed) % 2**32,
        num_train_epochs=1,
        max_length=None,  # TRL's own default cuts long chats, and drops pairs with long prompts, in silence
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    trainer = trainer_of(model=base_model, args=settings, train_dataset=rows)
    trainer.train()
    trainer.save_model(output)
    Path(model_file).write_text(output, "utf-8")


if __name__ == "__main__":
    main()
