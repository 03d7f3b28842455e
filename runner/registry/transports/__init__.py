"""The places that store releases, with one interface: a folder, a git repository, a server, the Hugging Face Hub."""
