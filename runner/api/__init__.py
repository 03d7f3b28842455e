"""The public functions of `runner` for specs, runs, and questions about several runs."""
