"""`python -m dsv4.training`."""

import sys

from dsv4.training.cli import main

sys.exit(main())
