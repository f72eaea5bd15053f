"""However cards move, a charge counts on every device that the pod may hold, and on no other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.cover import MAX_CARDS, resolve_devices, with_given
from gpushare.core.model import Cover, NodeSpec, Shares
from tests.unit.core.clusters import node

CARDS = st.permutations("abcd").flatmap(
    lambda cards: st.integers(1, 4).map(lambda count: tuple(cards[:count]))
)


def cards(*uuids: str, identity: bool = False) -> NodeSpec:
    """A node with these cards, "" for one that is not named."""
    return node("n", *[16] * len(uuids), uuids=uuids, serves_by_identity=identity)


def after(cover: Cover, *specs: NodeSpec) -> Shares | None:
    """The charge after the node had these specs, in order."""
    charge: Shares | None = None
    for spec in specs:
        cover, charge = resolve_devices(cover, spec)
        assert resolve_devices(cover, spec) == (cover, charge), "a second call has the same result"
    return charge


ON_B = Cover(((1, 4),), ("b",))
ON_C_BUT_1 = Cover(((1, 4),), ("c",))
MADE_UP = Cover(((1, 4),), ("x",))
BY_INDEX = Cover(((1, 4),))
ABC = cards("a", "b", "c", identity=True)
ABC_BY_INDEX = cards("a", "b", "c")


ON_B_AND_C = with_given(ON_B, (("c", 2),))


@pytest.mark.parametrize(
    ("cover", "specs", "charge"),
    [
        (ON_B, [ABC], ((1, 4),)),
        (ON_B, [ABC, cards("b", "c", identity=True)], ((0, 4),)),
        # A card that the node reports as gone frees the charge; otherwise the uuid may be invented.
        (ON_B, [ABC, replace(cards("a", "c", identity=True), gone=("b",))], ()),
        (ON_B, [replace(cards("a", "c", identity=True), gone=("b",))], ()),
        (ON_B, [ABC, cards("a", "c", identity=True)], ((1, 4),)),
        (
            ON_B,
            [ABC, cards("a", "c", identity=True), cards("c", "a", "b", identity=True)],
            ((2, 4),),
        ),
        (ON_B, [ABC_BY_INDEX, cards("b", "c")], ((0, 4), (1, 4))),
        (ON_B, [ABC_BY_INDEX, cards("a", "c")], ((1, 4),)),
        (ON_B, [ABC_BY_INDEX, cards("a")], None),
        (ON_B, [ABC_BY_INDEX, replace(cards("a"), gone=("b",))], ()),
        (ON_B, [ABC_BY_INDEX, cards("b", "c"), cards("c", "b", "a")], ((0, 4), (1, 4))),
        # Cards without uuids any more may be any of the earlier cards.
        (ON_B, [ABC, cards("", "")], ((0, 4), (1, 4))),
        (ON_B, [ABC, cards("a", "", "c", identity=True)], ((1, 4),)),
        # Served with other cards: charged there and on the written ones.
        (ON_B_AND_C, [ABC], ((1, 4), (2, 2))),
        (ON_B_AND_C, [ABC, cards("c", "b", identity=True)], ((0, 2), (1, 4))),
        (ON_B_AND_C, [cards("a", "b", identity=True)], ((1, 4),)),
        (with_given(ON_B, (("b", 2),)), [ABC], ((1, 4),)),
        (with_given(Cover(), (("b", 2),)), [ABC], None),
        # First seen when the cards have moved, or are not named.
        (ON_B, [cards("b", "c")], ((0, 4), (1, 4))),
        (ON_B, [cards("b", "c", identity=True)], ((0, 4),)),
        (ON_B, [cards("a", "c", identity=True)], ((1, 4),)),
        (ON_B, [cards("a", identity=True)], None),
        (ON_B, [cards("a", identity=True), ABC], ((1, 4),)),
        (ON_B, [cards("", "", "")], ((0, 4), (1, 4), (2, 4))),
        # An invented uuid frees no device, even if a plug-in begins to serve by identity.
        (MADE_UP, [cards("", "", ""), ABC], ((1, 4),)),
        (MADE_UP, [ABC_BY_INDEX, ABC, cards("b", "a", identity=True)], ((0, 4), (1, 4))),
        # A Binding with another card than the one at the index: a plug-in that serves by index may
        # have served the card at the index.
        (ON_C_BUT_1, [cards("", "", ""), ABC], ((1, 4), (2, 4))),
        (ON_C_BUT_1, [cards("", "", ""), cards("", identity=True), ABC], ((1, 4), (2, 4))),
        (
            ON_C_BUT_1,
            [cards("", "", ""), ABC, cards("b", "a", "c", identity=True)],
            ((0, 4), (2, 4)),
        ),
        (ON_C_BUT_1, [cards("", "", "", identity=True), ABC], ((2, 4),)),
        (ON_C_BUT_1, [ABC], ((2, 4),)),
        # Without uuids an index is of so many.
        (BY_INDEX, [cards("", "", "")], ((1, 4),)),
        (BY_INDEX, [cards("", "", ""), cards("", "")], None),
        (BY_INDEX, [cards("", "", ""), cards("", ""), cards("", "", "")], ((1, 4),)),
        (BY_INDEX, [cards("", "", ""), ABC, cards("b", "c", identity=True)], ((0, 4), (1, 4))),
        (BY_INDEX, [cards("", "", ""), cards("b", "c"), ABC], None),
        (Cover(((0, 4), (9, 4))), [cards("", "")], None),
        (Cover(), [ABC], None),
        (Cover(((0, 4), (1, 8)), ("a", "b")), [cards("b", "a")], ((0, 8), (1, 8))),
        (Cover(((0, 4), (1, 8)), ("a", "b")), [cards("b", "a", identity=True)], ((0, 8), (1, 4))),
    ],
)
def test_a_charge_follows_its_card(
    cover: Cover, specs: list[NodeSpec], charge: Shares | None
) -> None:
    assert after(cover, *specs) == charge


def test_a_share_with_too_many_cards_counts_everywhere() -> None:
    orders = [cards("x", f"card-{number}") for number in range(MAX_CARDS + 3)]
    cover = ON_B
    for spec in orders:
        cover, _ = resolve_devices(cover, spec)
    assert resolve_devices(cover, orders[0])[1] is None
    assert len(cover.cards[0]) == MAX_CARDS + 1


@given(st.lists(st.tuples(CARDS, st.booleans()), min_size=1, max_size=6), st.integers(0, 5))
def test_what_may_have_been_given_is_never_free(
    moves: list[tuple[tuple[str, ...], bool]], served: int
) -> None:
    """A pod is bound to the last card of the first order, and served at any moment later."""
    (first, _), *_ = moves
    index, card_uuid = len(first) - 1, first[-1]
    cover = Cover(((index, 4),), (card_uuid,))
    given_card = ""
    for moment, (order, identity) in enumerate(moves):
        cover, charge = resolve_devices(cover, cards(*order, identity=identity))
        if moment <= served:  # served now, or not yet: the card that would be handed out now counts
            card_at_index = order[index] if index < len(order) else ""
            given_card = card_uuid if identity else card_at_index
        if given_card in order:
            assert charge is None or order.index(given_card) in dict(charge)


@given(st.lists(CARDS, min_size=1, max_size=6), st.sets(st.sampled_from("abcd")))
def test_who_starts_anew_counts_as_who_has_seen_it_all(
    orders: list[tuple[str, ...]], lost: set[str]
) -> None:
    """With plug-ins that serve by identity, the current objects alone determine the charge."""
    cover = Cover(((1, 4), (2, 2)), ("b", "x"))
    specs = [replace(cards(*order, identity=True), gone=tuple(lost)) for order in orders]
    assert after(cover, *specs) == after(cover, specs[-1])


def test_what_was_given_once_is_not_taken_back() -> None:
    cover = with_given(ON_B, (("a", 3), ("c", 1)))
    assert with_given(cover, ()) is cover
    assert with_given(cover, (("a", 3), ("c", 1))) is cover
    assert with_given(cover, (("a", 1), ("d", 2))).given == (("a", 3), ("c", 1), ("d", 2))
