"""The preempt verb's JSON: both forms, any spelling, nulls anywhere; the answer never has one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.preemption.preemptor import Victims
from gpushare.errors import MessageError
from gpushare.wire.preempt import decode_preempt, encode_preempt

POD = b'"Pod":{"metadata":{"name":"p","namespace":"ns","uid":"u"},"spec":{},"status":{}}'


def decoded(remainder: bytes) -> dict[str, Victims]:
    return dict(decode_preempt(b"{" + POD + b"," + remainder + b"}").victims)


def test_uids_are_read_in_order() -> None:
    body = b'"NodeNameToVictims":null,"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"b"},'
    body += b'{"UID":"a"}],"NumPDBViolations":1},"n2":{"Pods":[],"NumPDBViolations":0}}'
    assert decoded(body) == {"n1": Victims(("b", "a"), 1), "n2": Victims()}


def test_whole_pods_are_read_by_their_uid() -> None:
    pods = b'[{"metadata":{"name":"x","uid":"a"},"spec":{"new":[1]}},{"metadata":{"uid":"b"}}]'
    body = b'"NodeNameToVictims":{"n1":{"Pods":' + pods + b',"NumPDBViolations":2}}'
    assert decoded(body) == {"n1": Victims(("a", "b"), 2)}


def test_keys_match_whatever_their_case_at_every_level() -> None:
    body = b'"nodenametometavictims":{"n1":{"pods":[{"uid":"a"}],"NUMPDBVIOLATIONS":1}}'
    assert decoded(body) == {"n1": Victims(("a",), 1)}


@pytest.mark.parametrize(
    ("body", "victims"),
    [
        (b'"NodeNameToVictims":null,"NodeNameToMetaVictims":null', {}),
        (b'"NodeNameToMetaVictims":{"n":null}', {"n": Victims()}),
        (b'"NodeNameToMetaVictims":{"n":{}}', {"n": Victims()}),
        (b'"NodeNameToMetaVictims":{"n":{"Pods":null,"NumPDBViolations":null}}', {"n": Victims()}),
        (b'"NodeNameToMetaVictims":{"n":{"Pods":[null,{"UID":"a"}]}}', {"n": Victims(("a",))}),
        (b'"NodeNameToMetaVictims":{"n":{"NumPDBViolations":-3}}', {"n": Victims()}),
        (b'"Other":1,"NodeNameToMetaVictims":{"n":{"More":{}}}', {"n": Victims()}),
    ],
)
def test_what_is_missing_stands_for_nothing(body: bytes, victims: dict[str, Victims]) -> None:
    assert decoded(body) == victims


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "request"),
        (b"null", "request"),
        (b"[]", "request"),
        (b"{}", "Pod"),
        (b'{"Pod":null,"NodeNameToMetaVictims":{}}', "Pod"),
        (b"{" + POD + b',"NodeNameToMetaVictims":[]}', "NodeNameToMetaVictims"),
        (b"{" + POD + b',"NodeNameToMetaVictims":{"n":7}}', "NodeNameToMetaVictims.n"),
        (b"{" + POD + b',"NodeNameToMetaVictims":{"n":{"Pods":{}}}}', "Pods"),
        (b"{" + POD + b',"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":5}]}}}', "UID"),
        (b"{" + POD + b',"NodeNameToMetaVictims":{"n":{"Pods":[{}]}}}', "UID"),
        (b"{" + POD + b',"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":""}]}}}', "UID"),
        (b"{" + POD + b',"NodeNameToVictims":{"n":{"Pods":[{"metadata":null}]}}}', "metadata"),
        (
            b"{" + POD + b',"NodeNameToMetaVictims":{"n":{"NumPDBViolations":1.5}}}',
            "NumPDBViolations",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: bytes, field: str) -> None:
    with pytest.raises(MessageError, match=field):
        decode_preempt(body)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_refused_or_read(body: bytes) -> None:
    for whole in (body, b"{" + POD + b',"NodeNameToMetaVictims":' + body + b"}"):
        try:
            decode_preempt(whole)
        except MessageError:
            continue


_NAMES = st.text(min_size=1, max_size=8)
_UIDS = st.from_regex(r"[!-~]{1,8}", fullmatch=True)


@given(
    st.dictionaries(
        _NAMES, st.builds(Victims, st.lists(_UIDS, max_size=3).map(tuple), st.integers(0, 5))
    )
)
def test_an_answer_has_every_key_and_no_null_and_can_be_read_again(
    victims: dict[str, Victims],
) -> None:
    body = encode_preempt(victims)
    answer: dict[str, Any] = json.loads(body)
    assert answer.keys() == {"NodeNameToMetaVictims"}
    for those in answer["NodeNameToMetaVictims"].values():
        assert those.keys() == {"Pods", "NumPDBViolations"}
        assert all(pod.keys() == {"UID"} for pod in those["Pods"])
        assert all(isinstance(pod["UID"], str) for pod in those["Pods"])
    assert decode_preempt(b"{" + POD + b"," + body[1:]).victims == victims
