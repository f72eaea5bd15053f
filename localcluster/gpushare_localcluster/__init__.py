"""A cluster in one process, for demo and tests.

Tested in `localcluster/tests`, `tests/contract/workloads` and
`tests/integration/test_localcluster_scheduler.py`.
"""
