"""`gpushare simulate`: virtual time over the same decisions.

Tested in `tests/unit/sim`.
"""
