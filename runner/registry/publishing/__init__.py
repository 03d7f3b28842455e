"""Check releases and send them to a registry."""
