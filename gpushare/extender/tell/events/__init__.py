"""Events for users.

Tested in `tests/unit/extender/tell/events`.
"""
