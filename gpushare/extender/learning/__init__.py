"""Policies made anew for the pods that come.

Tested in `tests/unit/extender/learning`.
"""
