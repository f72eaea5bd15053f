"""The HTTP server of the verbs.

Tested in `tests/unit/extender/door`, `tests/integration/test_stalled_clients.py` and
`tests/integration/test_handing_over.py`.
"""
