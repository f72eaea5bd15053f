"""The service that kube-scheduler calls.

Tested in `tests/unit/extender` and `tests/integration/test_extender.py`.
"""
