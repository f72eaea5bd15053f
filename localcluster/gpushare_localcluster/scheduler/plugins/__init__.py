"""The filters, scores and binders of the small kube-scheduler.

Tested in `localcluster/tests/test_scheduler_plugins.py` and `tests/contract/scheduling`.
"""
