"""The checks of the doctor, by area: pure functions over facts.

Tested in `tests/unit/doctor`.
"""
