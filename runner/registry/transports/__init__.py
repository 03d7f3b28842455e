"""Where releases live: a folder, a git repository, a server, or the Hugging Face Hub, behind one interface."""
