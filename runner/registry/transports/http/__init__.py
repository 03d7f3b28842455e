"""A registry behind `nip-run serve`."""
