"""The commands that are no service: `gpushare VERB` and `kubectl inspect gpushare`.

Tested in `tests/unit/cli` and `tests/integration/test_kubectl_inspect.py`.
"""
