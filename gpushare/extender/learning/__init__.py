"""Policies made again for the pods that come.

Tested in `tests/unit/extender/learning`.
"""
