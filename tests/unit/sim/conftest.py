"""Compiled loops run as they are written: to compile them would take longer than all tests here.

That they decide alike when compiled is shown by `python -m tests.bench.placement`.
"""

import os

# numba reads it when it is imported, which importing the simulator does.
os.environ["NUMBA_DISABLE_JIT"] = "1"
