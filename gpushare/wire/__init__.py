"""Codecs between bytes and core values.

Tested in `tests/unit/wire`.
"""
