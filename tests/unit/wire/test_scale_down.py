"""The scale-down annotations of a node, as users read the reason."""

from gpushare.wire.annotations import SCALE_DOWN_GUARD
from gpushare.wire.scale_down import kept_nodes, mark_of, written

CA, KARPENTER = (
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
)


def test_users_are_told_why_a_node_stays_and_of_no_other() -> None:
    our_mark = written("team/web would have no place", [CA])
    nodes = {
        "ours": {CA: "true", SCALE_DOWN_GUARD: our_mark},
        "theirs": {CA: "true", KARPENTER: "true"},
        "both": {CA: "true", KARPENTER: "true", SCALE_DOWN_GUARD: our_mark},
        "taken back": {SCALE_DOWN_GUARD: our_mark},
        "allowed": {CA: "false"},
        "plain": {},
    }
    assert kept_nodes({name: mark_of(notes) for name, notes in nodes.items()}) == {
        "ours": "team/web would have no place",
        "theirs": f"annotated by others: {CA}, {KARPENTER}",
        "both": f"annotated by others: {KARPENTER}",
    }
