"""Where releases live: a folder, a git repository, or one of the Hugging Face Hub, behind one interface."""
