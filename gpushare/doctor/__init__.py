"""`gpushare doctor`: find mistakes in the setup of a cluster.

Tested in `tests/unit/doctor` and `tests/integration/test_doctor.py`.
"""
