"""The bind of a pod: one write, and what becomes of its charge.

Tested in `tests/unit/extender/binding`.
"""
