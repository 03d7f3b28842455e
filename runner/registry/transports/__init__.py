"""Transports to registries, with one interface: a folder, a git repository, a server, and the Hugging Face Hub."""
