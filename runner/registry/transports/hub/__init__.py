"""A registry in a dataset repository of the Hugging Face Hub."""
