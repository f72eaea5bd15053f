"""The lead of a policy in a trial, as a text for the command line and for simulations.

Imports only the standard library, for `kubectl inspect gpushare`.
"""


def lead_text(lead: float, error: float, second: str) -> str:
    """Return a clause such as "it allocated 2.1 points (error 0.4) more than fgd".

    lead: points that the policy allocated more than `second`, negative if less.
    error: the standard error of the lead.
    """
    points = f"{abs(lead):.1f}"
    if float(points) == 0:
        return f"there was no difference from {second}"
    more = "less" if lead < 0 else "more"
    return f"it allocated {points} points (error {error:.1f}) {more} than {second}"
