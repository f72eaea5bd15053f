"""The two rules of cluster-autoscaler, and an autoscaler for the local cluster.

Tested in `localcluster/tests/test_autoscaler.py`, `localcluster/tests/test_autoscaler_running.py`.
"""
