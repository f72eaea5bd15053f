"""Bugs in moving pods for one that waits; each is found by the stories of the mover."""

from dataclasses import replace
from typing import Any

from gpushare.cli import defrag_apply
from gpushare.core.openings import ReservedPart
from gpushare.explain.moves import Answer, Pause, Run, Stop, Stopped
from gpushare.extender.moves.mover import Mover
from gpushare.extender.moves.reserver import Reserver
from gpushare.extender.verbs import holds
from gpushare.wire.moves import MoveRecord
from tests.simulation.mutants.museum import mutant

_STORIES = "tests/unit/extender/moves/test_mover.py"
_RESERVED = "tests/unit/extender/moves/test_reserver.py"
_TOGETHER = "tests/unit/extender/moves/test_movers_together.py"


@mutant("M1", "nothing is kept for the pod that waits while its room opens", Mover, "_keep_hole",
        test=f"{_STORIES}::"
        "test_what_opens_is_kept_from_a_pod_that_comes_in_between")  # fmt: skip
def keeps_no_hole(original: Any) -> Any:
    del original
    return lambda self, going: going.resource.holds.release()


@mutant("M1", "the new place of the pod that moves is kept from nobody", Mover, "_keep_place",
        test=f"{_STORIES}::"
        "test_the_new_place_of_the_pod_that_moves_is_kept_from_others")  # fmt: skip
def keeps_no_place(original: Any) -> Any:
    del original
    return lambda self, going, move, old: None


@mutant("M2", "no answer to an eviction is taken for a refusal", Run, "answered",
        test=f"{_STORIES}::"
        "test_an_eviction_that_fails_for_a_while_is_made_once_in_the_end")  # fmt: skip
def forgets_an_unclear_eviction(original: Any) -> Any:
    def answered(self: Any, move: Any, answer: Answer, now: float) -> Any:
        step = original(self, move, answer, now)
        if answer is Answer.UNCLEAR:
            self.sent = None
        return step

    return answered


@mutant("M3", "who leads next knows nothing of an eviction under way", MoveRecord, "under_way",
        test=f"{_STORIES}::test_two_leaders_do_not_evict_at_once")  # fmt: skip
def forgets_what_is_under_way(original: Any) -> Any:
    del original
    return lambda self, now: None


@mutant("M4", "a moved pod may land where it likes", Run, "_after",
        test=f"{_STORIES}::test_one_that_lands_elsewhere_ends_it")  # fmt: skip
def goes_on_wherever_it_lands(original: Any) -> Any:
    def after(self: Any, move: Any, seen: Any, now: float) -> Any:
        step = original(self, move, seen, now)
        return Pause() if step == Stopped(Stop.LANDED) else step

    return after


@mutant("M5", "a hole is kept for ever after a plan has ended", Mover, "_let_go",
        test=f"{_STORIES}::test_one_that_lands_elsewhere_ends_it")  # fmt: skip
def never_lets_go(original: Any) -> Any:
    del original
    return lambda self: None


@mutant("M6", "a person who moves pods writes nothing down", defrag_apply.DefragRecord, "begin",
        test=f"{_TOGETHER}::test_a_person_and_the_extender_never_evict_at_once")  # fmt: skip
def moves_beside_the_record(original: Any) -> Any:
    del original
    return lambda self, ref: ""


@mutant("M7", "an eviction that was refused takes another one's of that pod from the record",
        MoveRecord, "withdrawn",
        test="tests/unit/wire/test_move_record.py::"
        "test_a_move_counts_for_an_hour_and_is_under_way_until_it_is_settled")  # fmt: skip
def withdraws_what_another_did(original: Any) -> Any:
    del original

    def withdrawn(self: MoveRecord, uid: str) -> MoveRecord:
        return replace(self, moves=tuple(move for move in self.moves if move.uid != uid))

    return withdrawn


@mutant("M8", "a move is written down after its eviction", Mover, "_write_record",
        test=f"{_TOGETHER}::"
        "test_one_that_dies_at_any_call_is_followed_by_one_that_moves_nobody_twice")  # fmt: skip
def writes_down_too_late(original: Any) -> Any:
    def late(self: Mover, record: MoveRecord) -> None:
        if record.under_way(self.wall()) is None:
            original(self, record)

    return late


@mutant("M9", "pods that wait for long reserve the whole cluster", ReservedPart, "allows",
        test=f"{_RESERVED}::"
        "test_the_reserved_part_is_bounded_and_no_smaller_pod_overtakes")  # fmt: skip
def reserves_everything(_original: Any) -> Any:
    return lambda *_of: True


@mutant("M10", "a free place stays reserved for a pod that never comes", Reserver, "_why_ended",
        test=f"{_RESERVED}::"
        "test_a_free_place_that_kube_scheduler_does_not_use_is_given_up")  # fmt: skip
def reserves_for_ever(original: Any) -> Any:
    def why_ended(self: Any, *of: Any) -> str:
        self._free_since.clear()
        return str(original(self, *of))

    return why_ended


@mutant("M11", "a reservation lets any pod with a deadline pass", holds, "lets_pass",
        test=f"{_RESERVED}::"
        "test_a_reservation_lets_older_pods_pass_and_those_that_end_before")  # fmt: skip
def lets_long_pods_pass(original: Any) -> Any:
    return lambda hold, pod, now: pod.deadline > 0 or original(hold, pod, now)


@mutant("M12", "a reservation goes on when its process does not lead any more", Reserver,
        "_end_all",
        test=f"{_RESERVED}::test_a_reservation_ends_with_its_reason")  # fmt: skip
def reserves_without_the_lead(original: Any) -> Any:
    del original
    return lambda self: None
