"""kube-scheduler's configuration files: read, checked and written.

Tested in `tests/unit/wire/scheduler`.
"""
