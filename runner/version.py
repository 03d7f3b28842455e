"""The version of nip-run."""

__version__ = "1.0.0"
