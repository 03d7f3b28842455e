"""The transport for registry servers (`nip-run serve`)."""
