"""`python -m wgemma` is the `wgemma` command."""

import sys

from wgemma.cli import main

sys.exit(main())
