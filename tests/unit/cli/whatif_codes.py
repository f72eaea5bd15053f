"""The exit code of `gpushare whatif` for a document of an answer."""

from typing import Any


def exit_code(document: dict[str, Any]) -> int:
    """Return 0 if all requested pods fit by the document, and 1 otherwise."""
    if "podsLeftOut" in document:
        fits = not document["podsLeftOut"]
    else:
        pods = [*document["moved"], *document["pods"]]
        fits = all(
            item["fit"] > 0 if item["wanted"] is None else item["fit"] == item["wanted"]
            for item in pods
        ) and all(gang["fits"] for gang in document["gangs"])
    further = [exit_code(other) for other in document.get("others", ())]
    return max([int(not fits), *further])
