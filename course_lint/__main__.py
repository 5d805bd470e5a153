"""`python -m course_lint train.py`."""

import sys

from course_lint.command import main

sys.exit(main())
