"""What users are told by events.

Tested in `tests/unit/extender/tell/events`.
"""
