"""The explanation of a pod that waits, or of one that is bound.

Tested in `tests/unit/explain` and `tests/unit/core/test_explain.py`.
"""
