"""Scenarios: reading, running and reporting.

Tested in `localcluster/tests/test_scenario.py`, `localcluster/tests/test_report.py` and
`tests/integration/test_demo_runner.py`.
"""
