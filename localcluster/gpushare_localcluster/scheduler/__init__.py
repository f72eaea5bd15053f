"""A small kube-scheduler.

Tested in `tests/contract/scheduling`, `tests/integration/test_localcluster_scheduler.py` and
`localcluster/tests`.
"""
