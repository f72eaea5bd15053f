"""What the extender keeps in its namespace, by name: it writes these, and doctor looks for them.

Tested in `tests/contract/test_manifests.py`.
"""

LEASE = "gpushare-extender"
"""The Lease by which it leads."""

MOVES = "gpushare-moves"
"""The ConfigMap with the moves of the last hour."""
