"""Scores of any size to scores from 0 to 100 (DefaultNormalizeScore)."""

from collections.abc import Mapping

from gpushare_localcluster.scheduler.framework import MAX_NODE_SCORE


def normalized(scores: Mapping[str, int], *, reverse: bool = False) -> dict[str, int]:
    """Return each score as its share of the highest; with `reverse` the missing share."""
    highest = max(scores.values(), default=0)
    if highest == 0:
        return dict.fromkeys(scores, MAX_NODE_SCORE) if reverse else dict(scores)
    shares = {name: MAX_NODE_SCORE * score // highest for name, score in scores.items()}
    if reverse:
        return {name: MAX_NODE_SCORE - share for name, share in shares.items()}
    return shares
