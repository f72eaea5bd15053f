"""The books follow the cluster: the watch, the readiness, the audit.

Tested in `tests/unit/extender/follow` and `tests/integration/test_audit.py`.
"""
