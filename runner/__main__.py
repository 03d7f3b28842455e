"""`python -m runner` is `nip-run`."""

import sys

from runner.main import main

sys.exit(main())
