"""``python -m tilejit``."""

import sys

from .cli import main

sys.exit(main())
