"""Names of the objects in the extender's namespace that the extender writes and doctor reads.

Tested in `tests/contract/test_manifests.py`.
"""

LEASE = "gpushare-extender"
"""The Lease of the leader."""

MOVES = "gpushare-moves"
"""The ConfigMap with the moves of the last hour."""
