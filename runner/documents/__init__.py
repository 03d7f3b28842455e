"""Convert YAML files and command-line overrides to validated, frozen dataclasses, or report all errors with places."""
