"""`gpushare doctor`: what is mis-wired in a cluster.

Tested in `tests/unit/doctor` and `tests/integration/test_doctor.py`.
"""
