"""The version of nip-run."""

__version__ = "0.2.0.dev0"
