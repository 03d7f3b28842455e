"""The version of nip-run."""

__version__ = "1.1.0.dev0"
