"""The policy that prices the cost of a placement for the pods to come.

Tested in `tests/unit/core/test_prices.py` and `tests/unit/core/test_policies.py`.
"""
