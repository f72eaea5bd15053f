"""What any process of ours needs: log lines, events, probes.

Tested in `tests/unit/daemon`.
"""
