"""The verb bind: one write, and what becomes of its charge.

Tested in `tests/unit/extender/verbs/bind`.
"""
