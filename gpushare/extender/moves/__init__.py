"""Moves: pods are evicted so that one fits that waits, one at a time and so many an hour.

Off by default; the plans are those of `gpushare defrag`.
"""
