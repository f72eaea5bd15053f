"""Names in a pod that are nearly ours: misspelt resources of containers and annotations.

To Kubernetes such a name is as good as any other: the pod waits for a resource that no node has, or
runs as if the annotation were not there. A name counts as a near miss if one of its two halves,
`domain/name`, is right and the other one is at most three edits away. The domain gpushare.io is
ours, so each unknown annotation of it counts.

Pure. Tested in `tests/unit/wire/test_near_misses.py`.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache

from gpushare.wire.annotations import Names
from gpushare.wire.device_request import APART, MEMORY_LIMIT, NEIGHBOURS, SPLIT, WISHES
from gpushare.wire.groups import GROUP_SIZE
from gpushare.wire.whole_card import WHOLE_CARD

_OWN_DOMAIN = "gpushare.io"
_OF_MOVES = ("gpushare.io/checkpoint-seconds", "gpushare.io/movable")
_MOST_EDITS = 3
_WRITTEN = ("placeholder-for", "placeholder-group", "room-since", "allocation", "core-percentage")
"""Names in our domain that we write ourselves, besides those of `Names`; a suffix may follow."""


def near_miss(
    resources: Collection[str],
    annotations: Collection[str],
    names: Names,
    other_resources: Collection[str] = (),
) -> str:
    """Return the names of a pod that are nearly ours, with the names probably meant; "" without.

    resources: of all containers. other_resources: those that nodes offer, or that are managed too.
    """
    candidates = (names.resource, *(of_amount.resource for of_amount in names.percents))
    texts = [
        f"{name} is none of gpushare's resources: {probable} is probably meant"
        for name in sorted(resources)
        if name not in other_resources and name != names.count
        if (probable := nearest(name, candidates))
    ]
    return "; ".join([*texts, *_annotations(annotations, names)])


def _annotations(annotations: Collection[str], names: Names) -> Iterator[str]:
    """Yield a text for each annotation that is nearly ours."""
    wanted = (
        names.count,
        names.policy,
        SPLIT,
        *WISHES,
        WHOLE_CARD,
        GROUP_SIZE,
        NEIGHBOURS,
        APART,
        MEMORY_LIMIT,
        *_OF_MOVES,
    )
    written = (names.uuids, names.given, names.inventory, names.shape)
    for name in sorted(annotations):
        domain, _, own_name = name.partition("/")
        if name in wanted or name.startswith(written) or own_name.startswith(_WRITTEN):
            continue
        probable = nearest(name, wanted)
        if probable:
            yield f"annotation {name} has no effect: {probable} is probably meant"
        elif domain == _OWN_DOMAIN:
            yield f"annotation {name} has no effect: gpushare has none of that name"


@lru_cache(maxsize=1024)
def nearest(name: str, candidates: tuple[str, ...]) -> str:
    """Return the candidate that is probably meant by another name; "" if none is."""
    domain, slash, own_name = name.partition("/")
    if not slash or name in candidates:
        return ""
    best, probable = _MOST_EDITS + 1, ""
    for candidate in candidates:
        its_domain, _, its_name = candidate.partition("/")
        if domain == its_domain:
            # As far as the first dot, too: gpu-core for gpu-core.percentage.
            edits = min(_edits(own_name, its_name), _edits(own_name, its_name.partition(".")[0]))
        elif own_name == its_name:
            edits = _edits(domain, its_domain)
        else:
            continue
        if edits < best:
            best, probable = edits, candidate
    return probable


def _edits(one: str, other: str) -> int:
    """Return the number of inserted, removed and replaced characters between two texts."""
    if abs(len(one) - len(other)) > _MOST_EDITS:
        return _MOST_EDITS + 1
    row: list[int] = [*range(len(other) + 1)]
    for at, character in enumerate(one, 1):
        before, row = row, [at]
        for place, its_character in enumerate(other):
            replaced = before[place] + (character != its_character)
            row.append(min(replaced, before[place + 1] + 1, row[-1] + 1))
    return row[-1]
