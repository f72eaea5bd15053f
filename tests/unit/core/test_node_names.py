"""Names of nodes that remember their rows: of the layout they are asked about, and no other."""

from gpushare.core.node_names import NodeNames
from gpushare.core.nodeset import NodeNumbers


def test_rows_are_those_of_the_layout_asked_about() -> None:
    names = NodeNames(["b", "a", "c"])
    old, new = {"a": 0, "b": 1}, {"c": 0, "a": 1, "b": 2}
    for _ in range(2):
        assert names.rows(old).tolist() == [1, 0, -1]
        assert names.rows(new).tolist() == [2, 1, 0]


def test_rows_are_found_once_for_a_layout() -> None:
    names, row = NodeNames(["a"]), {"a": 0}
    assert names.rows(row) is names.rows(row)
    assert not names.rows(row).flags.writeable


def test_the_bits_of_a_list_are_its_own() -> None:
    numbers = NodeNumbers()
    for names in (["a", "b"], NodeNames(["b"]), NodeNames(["c", "a"]), ["b"], NodeNames(["b"])):
        for _ in range(2):
            bits = numbers.bits(names)
            assert [name for name in "abc" if numbers.has(bits, name)] == sorted(names)
