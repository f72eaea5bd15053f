"""What keeps the books true to the cluster: the watch, the readiness, the audit.

Tested in `tests/unit/extender/follow` and `tests/integration/test_audit.py`.
"""
