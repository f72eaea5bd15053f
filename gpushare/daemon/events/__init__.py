"""The event recorder: a queue, and the thread that writes.

Tested in `tests/unit/daemon/events`.
"""
