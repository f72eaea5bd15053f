"""The states of a pod in the books, the table of the events that change them, and the guards.

Tested in `tests/unit/core/states` and `tests/unit/ledger`.
"""
