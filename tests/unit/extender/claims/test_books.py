"""The books of claims: what ends a charge, and that counting step by step is counting anew."""

import itertools
import random
from collections.abc import Sequence

import pytest

from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.errors import MessageError
from gpushare.extender.claims.books import ClaimBooks, version_of
from gpushare.wire.dra.claims import claim_request
from gpushare.wire.dra.objects import ResourceClaim, ResourceSlice
from gpushare.wire.dra.slices import DeviceKey, SliceCard
from tests.unit.wire.dra.objects import (
    CLASS,
    DRIVER,
    GIB,
    Json,
    claim,
    device,
    exactly,
    slice_of,
    stepped,
)


def books(lent: list[str] | None = None) -> ClaimBooks:
    lend = (lambda _: None) if lent is None else lent.append
    return ClaimBooks(DRIVER, GIB, Ranking(load_policy("device-bestfit")), lend)


def shown(
    number: int, version: int, *given: tuple[str, int | None], gib: int = 10, count: int = 1
) -> ResourceClaim:
    """Claim `number`, with these (device, GiB) of node n1; None: without an amount."""
    meta = {"name": f"c{number}", "uid": f"uid-{number}", "resourceVersion": str(version)}
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": name}
        | ({} if amount is None else {"consumedCapacity": {"memory": f"{amount}Gi"}})
        for name, amount in given
    ]
    status = {"allocation": {"devices": {"results": results}}} if given else {}
    return claim(exactly(f"{gib}Gi", count=count), meta=meta, status=status)


def asking(number: int, *sizes: str) -> ResourceClaim:
    """Claim `number`, with a request of each of these sizes, named a, b, ..."""
    requests = [
        {"name": name, "exactly": exactly(size)} for name, size in zip("abcd", sizes, strict=False)
    ]
    meta = {"name": f"c{number}", "uid": f"uid-{number}", "resourceVersion": "5"}
    return claim(devices={"requests": requests}, meta=meta)


def used(kept: ClaimBooks) -> dict[str, int]:
    """Units by card."""
    kept.ledger.check()
    return {
        uuid: units
        for each in kept.ledger.dump()
        for uuid, units in zip(each.spec.uuids, each.used, strict=True)
    }


def take(kept: ClaimBooks, each: ResourceClaim, nodes: Sequence[str] = ("n1",)) -> Sequence[str]:
    asked = claim_request(each, CLASS)
    assert asked
    cards: tuple[SliceCard, ...] = kept.take(each, asked, nodes.__contains__)
    return [card.uuid for card in cards]


def test_the_tightest_card_is_taken_and_charged_at_once() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0, 80), device(1, 24))])
    for number in (1, 2):
        kept.claim_changed(each := shown(number, 5))
        assert take(kept, each) == ["GPU-101"]
        assert take(kept, each) == []
    assert used(kept) == {"GPU-100": 0, "GPU-101": 20}
    kept.claim_changed(each := shown(3, 5))
    assert take(kept, each, nodes=()) == []
    assert take(kept, each) == ["GPU-100"]


def test_a_charge_ends_by_null_in_a_later_version_alone() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(1, 5))
    take(kept, each)
    kept.claim_changed(shown(1, 7))  # protected: nothing was sent yet
    assert used(kept) == {"GPU-100": 10}
    assert kept.sending("uid-1", 7)
    for version in (5, 7):
        kept.claim_changed(shown(1, version))
        assert used(kept) == {"GPU-100": 10}
    kept.claim_changed(shown(1, 9, ("gpu-0", 10)))
    assert not kept.in_flight()
    kept.claim_changed(shown(1, 7))  # late
    assert used(kept) == {"GPU-100": 10}
    kept.claim_changed(shown(1, 11))
    assert used(kept) == {"GPU-100": 0}


def test_what_can_not_land_any_more_is_given_back() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(1, 5))
    take(kept, each)
    assert kept.sending("uid-1", 5)
    kept.claim_changed(shown(1, 6))
    assert used(kept) == {"GPU-100": 0}
    assert not kept.sending("uid-1", 6)


@pytest.mark.parametrize("why", ["given to another", "closed", "gone", "another by that name"])
def test_nothing_is_sent_for_cards_that_were_lost_meanwhile(why: str) -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(1, 5))
    take(kept, each)
    assert kept.sending("uid-1", 5)
    if why == "given to another":
        kept.claim_changed(shown(2, 6, ("gpu-0", 71)))
    else:
        old, new = ({"uuid": {"string": uuid}} for uuid in ("GPU-100", "GPU-new"))
        changed = {
            "closed": [device(0, taints=[{"effect": "NoSchedule"}])],
            "another by that name": [device(0, attributes=new), device(1, attributes=old)],
        }
        kept.slices_changed([slice_of(*changed[why])] if why in changed else [])
    assert not kept.sending("uid-1", 5)


def test_a_claim_that_is_gone_frees_its_cards_and_no_late_read_brings_it_back() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(shown(1, 5, ("gpu-0", 10)))
    kept.claim_gone("uid-1")
    kept.claim_changed(shown(1, 6, ("gpu-0", 10)), read=True)
    assert used(kept) == {"GPU-100": 0}
    assert kept.named("default", "c1") is None


def test_a_slice_that_vanishes_frees_nothing_and_takes_nothing_new() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(shown(1, 5, ("gpu-0", 10)))
    kept.slices_changed([])
    assert used(kept) == {"GPU-100": 10}
    kept.claim_changed(each := shown(2, 5))
    assert take(kept, each) == []
    kept.slices_changed([slice_of(device(0))])
    assert take(kept, each) == ["GPU-100"]


def test_a_node_that_is_gone_is_forgotten_once_nobody_holds_a_card_of_it() -> None:
    """Else an autoscaler's nodes of a year are looked through at each change of a slice."""
    known = {"n1", "n2"}
    ranking = Ranking(load_policy("device-bestfit"))
    kept = ClaimBooks(DRIVER, GIB, ranking, knows=known.__contains__)
    kept.slices_changed([slice_of(device(0), node="n1"), slice_of(device(1), node="n2")])
    kept.claim_changed(shown(1, 5, ("gpu-0", 10)))
    kept.slices_changed([])
    assert set(kept.ledger.snapshot().row) == {"n1", "n2"}  # a driver that starts anew
    known.clear()
    kept.forget_nodes()
    assert ({*kept.ledger.snapshot().row}, used(kept)) == ({"n1"}, {"GPU-100": 10})
    kept.claim_gone("uid-1")
    kept.slices_changed([])
    assert (used(kept), kept.card(DeviceKey(DRIVER, "n1", "gpu-0"))) == ({}, None)
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(2, 5))
    assert take(kept, each) == ["GPU-100"]


def test_a_node_that_is_gone_is_kept_while_an_allocation_of_its_card_is_written() -> None:
    ranking = Ranking(load_policy("device-bestfit"))
    kept = ClaimBooks(DRIVER, GIB, ranking, knows=lambda _: False)
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(1, 5))
    assert take(kept, each) == ["GPU-100"]
    kept.slices_changed([])
    assert (used(kept), kept.sending("uid-1", 5)) == ({"GPU-100": 10}, False)
    kept.forget("uid-1")
    kept.slices_changed([])
    assert not kept.ledger.snapshot().row


def test_what_was_allocated_before_its_slice_is_seen_is_charged_with_it() -> None:
    lent: list[str] = []
    kept = books(lent)
    kept.claim_changed(shown(1, 5, ("gpu-0", 75)))
    assert lent == ["n1"]
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(2, 5))
    assert take(kept, each) == []
    assert used(kept) == {"GPU-100": 75}


def test_after_devices_were_numbered_anew_both_cards_are_charged() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(shown(1, 5, ("gpu-0", 10)))
    old, new = ({"uuid": {"string": uuid}} for uuid in ("GPU-100", "GPU-new"))
    kept.slices_changed([slice_of(device(0, attributes=new), device(1, attributes=old))])
    assert used(kept) == {"GPU-100": 10, "GPU-new": 10}


def test_what_others_have_counts_a_whole_card_where_no_amount_is_said() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0), device(1))])
    kept.claim_changed(shown(1, 5, ("gpu-0", None), ("gpu-1", 3), ("gpu-1", 4)))
    assert used(kept) == {"GPU-100": 80, "GPU-101": 7}


def test_a_claim_counts_its_whole_card_at_most_whatever_it_says() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0), device(1))])
    kept.claim_changed(shown(1, 5, *[("gpu-0", 2**33 - 1)] * 32))
    kept.claim_changed(each := shown(2, 5))
    assert used(kept) == {"GPU-100": 80, "GPU-101": 0}
    assert take(kept, each) == ["GPU-101"]


def test_while_a_claim_cannot_be_read_nothing_is_given_out() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0))])
    kept.claim_changed(each := shown(1, 5))
    kept.claim_unread("uid-9")
    assert take(kept, each) == []
    kept.replace_claims([each], keep={"uid-9"})
    assert take(kept, each) == []
    kept.claim_gone("uid-9")
    assert take(kept, each) == ["GPU-100"]


def test_cards_that_are_not_shared_and_amounts_that_there_are_not_are_not_given_out() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0, allowMultipleAllocations=False))])
    kept.claim_changed(each := shown(1, 5))
    assert take(kept, each) == []
    policy = {"default": "5Gi", "validValues": ["5Gi"]}
    few: Json = {"capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}}}
    kept.slices_changed([slice_of(device(0, **few))])
    with pytest.raises(MessageError, match="no such amount"):
        take(kept, each)


def test_an_amount_is_charged_as_the_driver_rounds_it_up() -> None:
    kept = books()
    policy = {"default": "80Gi", "validRange": {"min": "16Gi", "step": "16Gi"}}
    coarse: Json = {"capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}}}
    kept.slices_changed([slice_of(device(0, **coarse))])
    for number in range(6):
        kept.claim_changed(each := shown(number, 5))
        assert take(kept, each) == ["GPU-100"] * (number < 5)
    assert used(kept) == {"GPU-100": 80}


def test_each_request_has_a_card_of_its_own_for_its_amount() -> None:
    kept = books()
    kept.slices_changed([slice_of(device(0, 80), device(1, 24))])
    for number, sizes, given, left in (
        (1, ("10Gi", "40Gi"), ["GPU-100", "GPU-101"], (40, 10)),
        (2, ("20Gi", "20Gi"), [], (40, 10)),  # the first card has room for both
        (3, ("14Gi", "30Gi"), ["GPU-100", "GPU-101"], (70, 24)),
        (4, ("1Gi", "1Gi"), [], (70, 24)),
    ):
        kept.claim_changed(each := asking(number, *sizes))
        assert take(kept, each) == given
        assert used(kept) == dict(zip(("GPU-100", "GPU-101"), left, strict=True))
    for number in (1, 3):
        kept.forget(f"uid-{number}")
    assert used(kept) == {"GPU-100": 0, "GPU-101": 0}


@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n2", "n1")])
def test_a_step_of_one_nodes_cards_rounds_up_nothing_on_another_node(nodes: Sequence[str]) -> None:
    kept = books()
    coarse, fine = nodes
    slices = [(coarse, stepped(0, 16, 16)), (fine, stepped(1, 24, 1))]
    kept.slices_changed([slice_of(card, node=node) for node, card in slices])
    for number, given in enumerate((["GPU-101"],) * 4 + (["GPU-100"], [])):
        kept.claim_changed(each := shown(number, 5, gib=6))
        assert take(kept, each, nodes) == given
    assert used(kept) == {"GPU-100": 16, "GPU-101": 24}


def test_what_one_nodes_cards_do_not_deal_out_is_had_of_another() -> None:
    kept = books()
    small, large = stepped(0, 16, 1, max="4Gi"), stepped(1, 24, 1)
    kept.slices_changed([slice_of(small)])
    kept.claim_changed(each := shown(1, 5, gib=6))
    with pytest.raises(MessageError, match="no such amount"):
        take(kept, each)
    kept.slices_changed([slice_of(small), slice_of(large, node="n2")])
    assert take(kept, each, ("n1", "n2")) == ["GPU-101"]
    kept.forget("uid-1")
    kept.slices_changed([slice_of(small)])  # the cards that are gone deal out nothing
    with pytest.raises(MessageError, match="no such amount"):
        take(kept, each, ("n1", "n2"))


@pytest.mark.parametrize("seed", range(30))
def test_of_unlike_cards_what_fits_is_found(seed: int) -> None:
    chance = random.Random(seed)
    cards = [(chance.choice((8, 16, 24)), chance.choice((1, 4, 6, 16))) for _ in range(4)]
    kept = books()
    at = {f"GPU-{100 + number}": ("n1", "n2")[number // 2] for number in range(4)}
    kept.slices_changed(
        [
            slice_of(*(stepped(number, *cards[number]) for number in numbers), node=node)
            for node, numbers in (("n1", (0, 1)), ("n2", (2, 3)))
        ]
    )
    free = {f"GPU-{100 + number}": gib for number, (gib, _) in enumerate(cards)}
    steps = {f"GPU-{100 + number}": step for number, (_, step) in enumerate(cards)}
    for number in range(12):
        sizes = sorted((chance.randint(1, 10) for _ in range(chance.randint(1, 2))), reverse=True)
        kept.claim_changed(each := asking(number, *(f"{size}Gi" for size in sizes)))
        possible = [
            places
            for places in itertools.permutations(free, len(sizes))
            if len({at[uuid] for uuid in places}) == 1
            and all(
                _up(size, steps[uuid]) <= free[uuid]
                for size, uuid in zip(sizes, places, strict=True)
            )
        ]
        try:
            given = tuple(take(kept, each, ("n1", "n2")))
        except MessageError:
            given = ()
        assert given in (possible or [()])
        for uuid, size in zip(given, sizes, strict=False):
            free[uuid] -= _up(size, steps[uuid])
        whole = {f"GPU-{100 + number}": gib for number, (gib, _) in enumerate(cards)}
        assert used(kept) == {uuid: whole[uuid] - free[uuid] for uuid in whole}


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def test_each_request_is_rounded_up_by_the_card_that_it_has() -> None:
    kept = books()
    kept.slices_changed([slice_of(stepped(0, 16, 16), stepped(1, 20, 1), stepped(2, 48, 8))])
    kept.claim_changed(each := asking(1, "18Gi", "17Gi", "5Gi"))
    assert take(kept, each) == ["GPU-101", "GPU-102", "GPU-100"]
    assert used(kept) == {"GPU-100": 16, "GPU-101": 18, "GPU-102": 24}
    kept.claim_changed(each := asking(2, "24Gi", "2Gi"))
    assert take(kept, each) == ["GPU-102", "GPU-101"]
    assert used(kept) == {"GPU-100": 16, "GPU-101": 20, "GPU-102": 48}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_charged_is_what_each_request_takes_of_a_card_with_room(seed: int) -> None:
    chance = random.Random(seed)
    step = chance.choice((1, 4))
    policy = {"default": f"{step}Gi", "validRange": {"min": f"{step}Gi", "step": f"{step}Gi"}}
    free = {f"GPU-{100 + at}": chance.choice((16, 24, 40)) for at in range(4)}
    kept = books()
    kept.slices_changed(
        [
            slice_of(
                *(
                    device(at, capacity={"memory": {"value": f"{gib}Gi", "requestPolicy": policy}})
                    for at, gib in enumerate(free.values())
                )
            )
        ]
    )
    for number in range(12):
        sizes = [chance.randint(1, 20) for _ in range(chance.randint(1, 4))]
        kept.claim_changed(each := asking(number, *(f"{size}Gi" for size in sizes)))
        needed = sorted((-(-size // step) * step for size in sizes), reverse=True)
        given = take(kept, each)
        assert len({*given}) == len(given)
        # The largest on the fullest: if all have room, then also so.
        most = sorted(free.values(), reverse=True)
        assert bool(given) == all(units <= room for units, room in zip(needed, most, strict=False))
        for uuid, units in zip(given, needed, strict=False):
            free[uuid] -= units
            assert free[uuid] >= 0
        spec = {f"GPU-{100 + at}": at for at in range(4)}
        snapshot = kept.ledger.snapshot()
        assert {
            uuid: int(snapshot.capacity[0, at] - snapshot.used[0, at]) for uuid, at in spec.items()
        } == free


@pytest.mark.parametrize("seed", range(30))
def test_counted_step_by_step_is_counted_anew(seed: int) -> None:
    chance = random.Random(seed)
    slices = [slice_of(device(0), device(1), device(2, 24)), slice_of(device(0), device(1))]
    kept, there, now = books(), dict[int, ResourceClaim](), slices[0]
    for version in range(1, 80):
        number = chance.randrange(6)
        match chance.randrange(6):
            case 0:
                now = chance.choice(slices)
                kept.slices_changed([now])
            case 1:
                kept.claim_gone(f"uid-{number}")
                there.pop(number, None)
            case 2:
                kept.replace_claims(there.values(), keep=())
            case _:
                given = [(f"gpu-{chance.randrange(3)}", chance.choice((1, 7, None)))]
                given *= chance.randrange(3)
                there[number] = shown(number, version, *given)
                assert version_of(there[number]) == version
                kept.claim_changed(there[number])
    kept.slices_changed([slices[0]])
    anew = books()
    anew.replace_claims(there.values(), keep=())
    anew.slices_changed([slices[0]])
    assert used(kept) == used(anew)


class Changing:
    """Books of a cluster where slices, nodes and claims come and go, and some writes are lost."""

    def __init__(self, seed: int) -> None:
        self.chance, self.version = random.Random(seed), 0
        self.known, self.slices = {"n1", "n2", "n3"}, dict[str, ResourceSlice]()
        self.claims: dict[str, tuple[ResourceClaim, SliceCard | None]] = {}
        self.sent: dict[str, SliceCard] = {}
        self.books = self.new()

    def new(self) -> ClaimBooks:
        ranking = Ranking(load_policy("device-bestfit"))
        return ClaimBooks(DRIVER, GIB, ranking, knows=self.known.__contains__)

    def used(self, books: ClaimBooks) -> dict[tuple[str, str], int]:
        """Units by node and card, of nodes with slices."""
        books.ledger.check()
        return {
            (each.spec.name, uuid): units
            for each in books.ledger.dump()
            for uuid, units in zip(each.spec.uuids, each.used, strict=True)
            if each.spec.name in self.slices
        }

    def act(self) -> None:
        """Let one thing happen."""
        self.version += 1
        name = self.chance.choice(("n1", "n2", "n3"))
        act = self.chance.choice(
            (self.slice_comes, self.slice_goes, self.node, self.take, self.write, self.end)
        )
        act(name)
        if self.chance.random() < 0.2:
            self.books.forget_nodes()

    def slice_comes(self, name: str) -> None:
        number = 10 * int(name[1])
        self.slices[name] = slice_of(device(number), device(number + 1), node=name)
        self.books.slices_changed(self.slices.values())

    def slice_goes(self, name: str) -> None:
        self.slices.pop(name, None)
        self.books.slices_changed(self.slices.values())

    def node(self, name: str) -> None:
        self.known ^= {name}

    def take(self, _: str) -> None:
        uid = f"c{self.version}"
        self._show(uid, None)
        asked = claim_request(self.claims[uid][0], CLASS)
        assert asked
        for card in self.books.take(self.claims[uid][0], asked, lambda _: True):
            self.sent[uid] = card

    def write(self, _: str) -> None:
        if self.sent:
            uid, card = self.sent.popitem()
            may = self.books.sending(uid, version_of(self.claims[uid][0]))
            if may and self.chance.random() < 0.8:
                self._show(uid, card)
            else:
                self.books.forget(uid)

    def end(self, _: str) -> None:
        uid = self.chance.choice([*self.claims, ""])
        if uid and uid not in self.sent:
            self.books.claim_gone(uid)
            del self.claims[uid]

    def _show(self, uid: str, card: SliceCard | None) -> None:
        result = card and {
            "driver": DRIVER,
            "pool": card.key.pool,
            "device": card.key.device,
            "consumedCapacity": {"memory": "10Gi"},
        }
        given = {"allocation": {"devices": {"results": [result]}}} if result else {}
        meta = {"name": uid, "uid": uid, "resourceVersion": str(self.version)}
        self.claims[uid] = claim(exactly("10Gi"), meta=meta, status=given), card
        self.books.claim_changed(self.claims[uid][0])


@pytest.mark.parametrize("seed", range(40))
def test_books_that_forget_nodes_say_what_new_ones_say(seed: int) -> None:
    world = Changing(seed)
    for _ in range(80):
        world.act()
        now = world.used(world.books)
        for _, card in world.claims.values():
            assert card is None or card.node not in world.slices or now[card.node, card.uuid] >= 10
    for uid in world.sent:
        world.books.forget(uid)
    anew = world.new()
    anew.slices_changed(world.slices.values())
    for each, _ in world.claims.values():
        anew.claim_changed(each)
    assert world.used(world.books) == world.used(anew)
    for uid in world.claims:
        world.books.claim_gone(uid)
    world.known.clear()
    world.books.slices_changed([])
    assert not world.books.ledger.snapshot().row
