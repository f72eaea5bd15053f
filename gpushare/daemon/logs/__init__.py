"""Log lines: their form, and the thread that writes them.

Tested in `tests/unit/daemon/logs`.
"""
