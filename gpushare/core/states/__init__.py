"""What the books hold of a pod: its states, the table of what changes them, and the guards.

Tested in `tests/unit/core/states` and `tests/unit/ledger`.
"""
