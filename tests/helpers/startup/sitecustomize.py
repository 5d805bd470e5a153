"""Each Python of a test, and each fork of it, looks for garbage rarely.

An import of torch makes none, and spends a sixth of its time on looking.
"""

import gc

gc.set_threshold(50_000)
