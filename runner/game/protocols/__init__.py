"""Protocols: YAML files into games, replies into decisions, decisions into rewards. No I/O but reading the file."""
