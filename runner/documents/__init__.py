"""YAML files and command-line overrides into validated, frozen dataclasses, or all errors with their places."""
