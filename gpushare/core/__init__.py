"""The decisions: which nodes fit, which is best, which devices; over numpy arrays.

Tested in `tests/unit/core`.
"""
