"""`python -m runner` is `nip-run`."""

import sys

from runner.cli.main import main

sys.exit(main())
