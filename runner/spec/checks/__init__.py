"""What a schema cannot say about a spec, section by section."""
