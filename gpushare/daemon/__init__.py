"""Parts of any process of gpushare: log lines, events, probes, loops.

Tested in `tests/unit/daemon`.
"""
