"""``python -m procsched`` is ``procsched``."""

from __future__ import annotations

import sys

from procsched.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
