"""cluster-autoscaler's two rules, and the part of the local cluster that follows them.

Tested in `localcluster/tests/test_autoscaler.py`, `localcluster/tests/test_autoscaler_running.py`.
"""
