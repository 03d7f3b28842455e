"""Training: selects rollouts and fine-tunes models on them, iteration by iteration."""
