"""The API server of the local cluster.

Tested in `tests/contract/apiserver` and `localcluster/tests`.
"""
