"""The version of nip-run."""

__version__ = "0.1.0"
