"""What is kept of nodes is what would be made anew, and only changed nodes are made again."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.states.entry import NodeBooks
from gpushare.extender.tell.node_values import NodeValues
from gpushare.extender.tell.written_metrics import DeviceMetrics
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inspect import encode_inspect, encode_node, inspect_of
from tests.unit.core.clusters import node
from tests.unit.extender.kit import managed_resources

NAMES = ("a", "b", "c")


def bind(ledger: Ledger, name: str, on: str, request: Request, device: int = 0) -> None:
    ref = PodRef("team", name, f"uid-{name}")
    ledger.pod_changed(ObservedPod(ref, request, on, ((device, request.units),)))


def test_only_a_node_that_changed_is_made_again() -> None:
    ledger, made = Ledger(), list[str]()

    def make(books: NodeBooks, more: str) -> str:
        made.append(books.spec.name)
        return f"{books.used}{more}"

    ledger.replace_nodes([node("b", 8), node("a", 8), node("cpu")])
    values = NodeValues(make)
    assert values.all(ledger, "") == ["(0,)", "(0,)"]
    bind(ledger, "p", "b", Request(3, 1))
    assert values.all(ledger, "") == ["(0,)", "(3,)"]
    assert values.all(ledger, "", {"a": "!"}) == ["(0,)!", "(3,)"]
    assert made == ["a", "b", "b", "a"]
    ledger.node_gone("a")
    assert values.all(ledger, "") == ["(3,)"]
    ledger.node_changed(node("a", 8, 8))
    assert values.all(ledger, "") == ["(0, 0)", "(3,)"]
    assert made == ["a", "b", "b", "a", "a"]


changes = st.one_of(
    st.tuples(
        st.just("bind"),
        st.sampled_from("pqrst"),
        st.sampled_from(NAMES),
        st.integers(1, 8),
        st.integers(0, 2),
        st.sampled_from((0, 0, 30, 100)),
    ),
    st.tuples(st.just("end"), st.sampled_from("pqrst")),
    st.tuples(st.just("set"), st.sampled_from(NAMES), st.lists(st.integers(4, 8), max_size=3)),
    st.tuples(st.just("close"), st.sampled_from(NAMES), st.sets(st.integers(0, 2))),
    st.tuples(st.just("go"), st.sampled_from(NAMES)),
    st.tuples(st.just("keep"), st.dictionaries(st.sampled_from(NAMES), st.sampled_from("xy"))),
)


@given(st.lists(changes, max_size=12))
def test_documents_after_any_changes_are_those_made_anew(steps: list[tuple[object, ...]]) -> None:
    resources = managed_resources(ALIYUN)
    (managed,) = resources
    ledger, kept_nodes = managed.ledger, dict[str, str]()
    ledger.replace_nodes([node(name, 8, 8) for name in NAMES])
    texts, metrics = NodeValues(partial(encode_node, None)), DeviceMetrics(2**30)
    for step in steps:
        match step:
            case ("bind", str(name), str(on), int(units), int(device), int(cores)):
                bind(ledger, name, on, Request(units, 1, percents=compute(cores)), device)
            case ("end", str(name)):
                ledger.pod_gone(f"uid-{name}")
            case ("set", str(name), [*sizes]):
                ledger.node_changed(node(name, *sizes))  # type: ignore[arg-type]  # of integers
            case ("close", str(name), set(devices)):
                ledger.set_unhealthy(name, frozenset(devices))
            case ("go", str(name)):
                ledger.node_gone(name)
            case ("keep", dict(reasons)):
                kept_nodes = reasons
        expected = encode_inspect(ledger.dump(), None, kept_nodes)
        assert inspect_of(texts.all(ledger, "", kept_nodes)) == expected
        assert metrics.text([managed]) == DeviceMetrics(2**30).text([managed])
