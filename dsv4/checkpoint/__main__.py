"""`python -m dsv4.checkpoint`."""

import sys

from dsv4.checkpoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
