"""What another policy would have done with the pods that really came.

Tested in `tests/unit/extender/shadow`.
"""
