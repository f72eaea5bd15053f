"""A second policy beside the first one, on the pods of the cluster.

Tested in `tests/unit/extender/shadow`.
"""
