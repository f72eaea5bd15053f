"""Output for people: events, metrics, explanations and the page.

Tested in `tests/unit/extender/tell`.
"""
