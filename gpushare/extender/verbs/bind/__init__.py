"""The verb bind: one write, and the end of its charge.

Tested in `tests/unit/extender/verbs/bind`.
"""
