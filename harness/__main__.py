"""`python -m harness` is the command `harness`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder: a file there is no library of ours

from harness.cli import main

sys.exit(main())
