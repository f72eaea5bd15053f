"""Scenarios: read, run and told.

Tested in `tests/unit/localcluster/test_scenario.py`, `tests/unit/localcluster/test_report.py` and
`tests/integration/test_demo_runner.py`.
"""
