"""Moves: pods are evicted so that one fits that waits, one at a time and so many an hour.

Off by default; what is planned is what `gpushare defrag` plans.
"""
