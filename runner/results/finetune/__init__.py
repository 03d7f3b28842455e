"""Fine-tuning files from rollouts, in the formats of training tools."""
