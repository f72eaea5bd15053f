"""Each verb from top to bottom: bytes in, a decision over a snapshot, bytes out.

Tested in `tests/unit/extender/verbs` and `tests/unit/extender/test_service.py`.
"""
