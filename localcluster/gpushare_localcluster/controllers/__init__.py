"""The controllers of the local cluster.

Tested in `tests/contract/workloads` and `tests/contract/apiserver/test_controllers.py`.
"""
