"""`python -m serve` and the console script `dsv4-serve`."""

from __future__ import annotations

import sys

from serve.cli import main

if __name__ == "__main__":
    sys.exit(main())
