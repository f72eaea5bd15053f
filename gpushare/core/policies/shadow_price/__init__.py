"""The policy that prices what a placement costs the pods to come.

Tested in `tests/unit/core/test_prices.py` and `tests/unit/core/test_policies.py`.
"""
