"""The annotation of a pod that may use all memory of its cards, however little it asks for.

For a pod that wants one card of any size and shares the card with nobody, so nothing more is
charged.

Standard library only. Tested in `tests/unit/wire/test_request_mistakes.py`.
"""

from collections.abc import Mapping

from gpushare.core.amounts import memory_percent
from gpushare.core.model import ALL_CORES, Request
from gpushare.wire.annotations import Names

WHOLE_CARD = "gpushare.io/whole-card"


def has_whole_cards(annotations: Mapping[str, str], request: Request, names: Names) -> bool:
    """Return whether a bound pod wants all memory of its cards, and shares none of the cards.

    An extender that counts no compute writes none into the Binding, and places other pods there.
    """
    is_annotated = annotations.get(WHOLE_CARD) == "true"
    return is_annotated and request.alone and names.core_allocation in annotations


def whole_card_mistake(annotations: Mapping[str, str], request: Request, names: Names) -> str:
    """Return why the annotation is ignored, or missed, and the mend; "" without a mistake.

    It is missed by a pod that takes whole cards and asks for one unit of each, and no percentage:
    its program would be told of one unit.
    """
    is_told_little = request.units == 1 and not memory_percent(request.percents)
    if request.alone and is_told_little and WHOLE_CARD not in annotations:
        return (
            f"the pod has its cards alone, and its program is told of 1 unit of {names.resource}:"
            f' write the annotation {WHOLE_CARD}: "true" to give it all memory of its cards, or'
            " the units that it needs"
        )
    text = annotations.get(WHOLE_CARD, "false")
    if text not in ("true", "false"):
        return f"{WHOLE_CARD}: {text[:20]!a} is neither 'true' nor 'false', and is ignored"
    if text == "false" or request.alone:
        return ""
    return (
        f"{WHOLE_CARD} is ignored, as the pod shares its devices with others: it asks for"
        f" {request.cores} percent of each; write {names.cores}: {ALL_CORES * request.devices} to"
        " have them alone, or leave the annotation out"
    )
