"""Texts about pods and plans from books: explanations, what-if, more nodes, moves, claims.

Tested in `tests/unit/explain` and `tests/unit/core/test_explain.py`.
"""
