"""A cached list of names equals the list decoded anew."""

import json
import random

import pytest

from gpushare.core.node_names import MAX_PARTS
from gpushare.errors import MessageError
from gpushare.wire.extender import (
    MAX_KNOWN,
    MAX_POD_TEXT,
    MAX_TEXT,
    NameLists,
    decode_filter,
    encode_filter,
)
from gpushare.wire.objects import Pod

NAMES = [f"node-{number}" for number in range(40)]


def text_of(names: list[str]) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()


def test_a_list_that_came_before_is_the_same_object() -> None:
    lists = NameLists()
    first = lists.decode(text_of(NAMES))
    assert list(first) == NAMES
    assert lists.decode(text_of(NAMES)) is first


def test_an_answer_is_known_when_it_comes_back() -> None:
    lists = NameLists()
    text = lists.encode(NAMES[::2])
    assert text == text_of(NAMES[::2])
    names = lists.decode(text)
    assert lists.decode(text) is names
    assert list(names) == NAMES[::2]
    assert lists.encode(names) == text


def test_lists_that_differ_are_not_mixed_up() -> None:
    lists, dice = NameLists(), random.Random(3)
    for _ in range(500):
        names = dice.sample(NAMES, dice.randrange(len(NAMES)))
        if dice.random() < 0.5:
            assert lists.encode(names) == text_of(names)
        else:
            assert list(lists.decode(text_of(names))) == names


def test_the_list_used_last_stays() -> None:
    lists = NameLists()
    retained = lists.decode(text_of(NAMES))
    for number in range(3 * MAX_PARTS):
        lists.decode(text_of([f"other-{number}"]))
        assert lists.decode(text_of(NAMES)) is retained


def test_a_list_that_is_too_long_is_not_kept() -> None:
    lists = NameLists()
    text = text_of([f"{number:0200}" for number in range(MAX_TEXT // 200)])
    assert lists.decode(text) is not lists.decode(text)


@pytest.mark.parametrize("names", [[""], ["a b"], ["a", 1], [None], {}, "a", ["a" * 300]])
def test_what_is_wrong_with_a_list_is_said_each_time(names: object) -> None:
    body = json.dumps({"Pod": {}, "Nodes": None, "NodeNames": names}).encode()
    texts = set()
    for _ in range(2):
        with pytest.raises(MessageError, match="NodeNames") as caught:
            decode_filter(body)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_name_that_comes_twice_is_asked_about_once() -> None:
    body = json.dumps({"Pod": {}, "NodeNames": ["a", "b", "a"]}).encode()
    for _ in range(2):
        assert list(decode_filter(body).names) == ["a", "b"]


def test_the_pod_of_the_last_call_is_the_same_object_and_any_other_is_read_anew() -> None:
    lists = NameLists()
    metadata = {"name": "p", "namespace": "ns", "uid": "u"}

    def read(**more: object) -> Pod:
        pod = {"metadata": metadata | more}
        return decode_filter(json.dumps({"Pod": pod, "NodeNames": NAMES}).encode(), lists).pod

    first, second = read(), read(annotations={"a": "b"})
    assert second.metadata is not None
    assert second.metadata.annotations == {"a": "b"}
    assert read(annotations={"a": "b"}) is second
    assert read() == first
    large = {"a": "x" * MAX_POD_TEXT}
    assert read(annotations=large) is not read(annotations=large)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_an_answer_is_the_same_whether_its_names_are_known_or_not(
    separators: tuple[str, str],
) -> None:
    requested: dict[str, object] = {"Pod": {}, "Nodes": None, "NodeNames": NAMES}
    for _ in range(2):
        args = decode_filter(json.dumps(requested, separators=separators).encode())
        answer = encode_filter(args, args.names)
        assert answer == encode_filter(args, NAMES)
        assert text_of(NAMES) in answer


def test_names_that_came_before_are_known_in_any_order() -> None:
    """kube-scheduler's goroutines append the nodes that fit in another order for each pod."""
    lists, dice = NameLists(), random.Random(5)
    first = {name: name for name in lists.decode(text_of(NAMES))}
    for _ in range(3 * MAX_PARTS):
        names = dice.sample(NAMES, 30)
        result = lists.decode(text_of(names))
        assert list(result) == names
        assert all(name is first[name] for name in result)
        assert lists.encode(result) == text_of(names)


def test_what_is_written_otherwise_is_never_in_an_answer() -> None:
    lists, dice = NameLists(), random.Random(9)
    strange = ["ä", 'a"', "a\\", *NAMES]
    for _ in range(300):
        names = dice.sample(strange if dice.random() < 0.5 else NAMES, dice.randrange(16, 40))
        blanks, ascii_only = dice.choice((",", ", ")), dice.random() < 0.5
        text = json.dumps(names, separators=(blanks, ":"), ensure_ascii=ascii_only)
        if dice.random() < 0.3:
            text = text.replace("node", "n\\u006fde", 1)
        result = lists.decode(text.encode())
        assert list(result) == names
        plain = json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode()
        assert lists.encode(result) == plain


def test_names_that_are_known_are_asked_about_once_each() -> None:
    lists = NameLists()
    lists.decode(text_of(NAMES))
    assert list(lists.decode(text_of([*NAMES, NAMES[3]]))) == NAMES


def test_at_most_so_many_names_are_known() -> None:
    lists = NameLists()
    for start in range(0, 3 * MAX_KNOWN, 2500):
        names = [f"n-{number}" for number in range(start, start + 2500)]
        for order in (names, names[::-1]):
            assert list(lists.decode(text_of(order))) == order
        assert lists.known is not None
        assert len(lists.known) <= MAX_KNOWN
