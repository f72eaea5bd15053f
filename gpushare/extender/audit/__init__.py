"""Comparison of the ledger with a fresh list.

Tested in `tests/unit/extender/audit` and `tests/integration/test_audit.py`.
"""
