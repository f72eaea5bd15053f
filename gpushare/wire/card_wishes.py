"""Which cards a pod wants or refuses: its annotations, ours and the names that HAMi gave them.

kube-scheduler's node labels cannot tell the cards of one node apart, so a pod says it here. Each is
a list with commas. A model is any part of the name of one, whether in capitals or not; blanks count
as hyphens, as in labels. HAMi's mean the same (pkg/device/nvidia/device.go).

Tested in `tests/unit/wire/test_card_wishes.py`.
"""

from collections.abc import Mapping

from gpushare.core.model import ANY_CARD, Cards
from gpushare.errors import AnnotationError
from gpushare.wire.annotations import is_uuid
from gpushare.wire.gpu_models import label_value

USE_MODELS, NOT_MODELS = "gpushare.io/use-models", "gpushare.io/not-models"
USE_UUIDS, NOT_UUIDS = "gpushare.io/use-uuids", "gpushare.io/not-uuids"
WISHES = {
    USE_MODELS: "nvidia.com/use-gputype",
    NOT_MODELS: "nvidia.com/nouse-gputype",
    USE_UUIDS: "nvidia.com/use-gpuuuid",
    NOT_UUIDS: "nvidia.com/nouse-gpuuuid",
}
"""Our annotations of pods, in the order of `Cards`, and HAMi's name for each."""

MOST_WISHES = 64
_MOST_CHARACTERS = 128


def wanted_cards(annotations: Mapping[str, str]) -> Cards:
    """Return which cards the pod wants.

    Raises AnnotationError for a wish that makes no sense, or that stands under both names with
    different values.
    """
    if not any(ours in annotations or hamis in annotations for ours, hamis in WISHES.items()):
        return ANY_CARD
    return Cards(*(_wish(annotations, ours, hamis) for ours, hamis in WISHES.items()))


def _wish(annotations: Mapping[str, str], ours: str, hamis: str) -> tuple[str, ...]:
    name = ours if ours in annotations else hamis
    wish = _values(annotations.get(name, ""), name)
    if name == ours and hamis in annotations and wish != _values(annotations[hamis], hamis):
        raise AnnotationError(f"{ours} and {hamis} mean the same and differ: leave out one of them")
    return wish


def _values(text: str, name: str) -> tuple[str, ...]:
    """Return the values, each once and sorted, so that equal wishes are equal values."""
    values = {value.strip() for value in text.split(",")} - {""}
    if text.strip() and not values:
        raise AnnotationError(f"{name}: {text[:20]!a} names nothing")
    if len(values) > MOST_WISHES or any(len(value) > _MOST_CHARACTERS for value in values):
        raise AnnotationError(
            f"{name}: more than {MOST_WISHES} values, or one of more than {_MOST_CHARACTERS}"
            " characters"
        )
    if name in (USE_MODELS, NOT_MODELS, WISHES[USE_MODELS], WISHES[NOT_MODELS]):
        return tuple(sorted({label_value(value).lower() for value in values}))
    for value in values:
        if not is_uuid(value):
            raise AnnotationError(f"{name}: {value[:20]!a} is no uuid of a card")
    return tuple(sorted(values))
