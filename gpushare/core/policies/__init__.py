"""The placement policies, one class each.

Tested in `tests/contract/test_policies.py`, `tests/unit/core/test_policies.py` and
`tests/contract/test_placement_policies.py`.
"""
