"""The choice of the pods that preemption removes.

Tested in `tests/unit/core/preemption`.
"""
