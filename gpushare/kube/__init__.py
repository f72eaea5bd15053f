"""HTTP with the API server; list and watch, and Leases.

Tested in `tests/unit/kube`.
"""
