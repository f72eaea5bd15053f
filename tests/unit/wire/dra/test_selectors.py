"""CEL selectors: what is true of a device, with the functions that Kubernetes adds."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from gpushare.core.claims.model import Attribute, Capacity, Device, DeviceKey
from gpushare.wire.dra import selectors as module
from gpushare.wire.dra.cel_functions import FUNCTIONS
from gpushare.wire.dra.selectors import MAX_EXPRESSION, Selectors

DRIVER = "gpu.example.com"
GIB = 1024**3 * 1000


def gpu(name: str = "d", driver: str = DRIVER, memory: int = 80, **more: Attribute) -> Device:
    attributes = {
        f"{driver}/model": Attribute("string", "A100"),
        f"{driver}/index": Attribute("int", 3),
        f"{driver}/healthy": Attribute("bool", True),
        f"{driver}/version": Attribute("version", "1.10.0+build"),
        f"{driver}/odd": Attribute("", ""),
        "resource.kubernetes.io/pcieRoot": Attribute("string", "pci0"),
        **{f"{driver}/{word}": value for word, value in more.items()},
    }
    capacities = {"memory": Capacity(memory * GIB), "other.example.com/cores": Capacity(2500)}
    key = DeviceKey(driver, "p", name)
    return Device(key=key, is_shared=True, capacities=capacities, attributes=attributes)


def evaluate(text: str, device: Device | None = None) -> bool | None:
    """The result; None if it cannot be evaluated."""
    selectors = Selectors(time.thread_time)
    verdict = selectors.matches((text,), device or gpu())
    return None if sum(selectors.unevaluated.values()) else verdict


A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'


@pytest.mark.parametrize(
    "text",
    [
        f'device.driver == "{DRIVER}"',
        "device.allowMultipleAllocations",
        f'{A}.model == "A100" && {A}.index > 2 && {A}.healthy',
        f'{A}["model"] in ["A100", "H100"]',
        f'"model" in {A} && !("absent" in {A})',
        f"has({A}.model) && !has({A}.absent)",
        '!has(device.attributes["absent.example.com"].x)',
        '!has(device.capacity["absent.example.com"].x)',
        "!has(device.attributes['absent.example.com'].x)",
        'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0"',
        f'{A}.model.matches("^A1") && {A}.model.startsWith("A") && {A}.model.contains("10")',
        f'{A}.exists(name, name == "index")',
        f'{A}.all(name, name != "absent")',
        f"{A}.absent == 1 || true",
        f"!(false && {A}.absent == 1)",
        f'{C}.memory.compareTo(quantity("80Gi")) == 0',
        f'{C}.memory == quantity("81920Mi")',
        f'{C}.memory.isGreaterThan(quantity("10G")) && {C}.memory.isLessThan(quantity("1Ti"))',
        f'{C}.memory.sub(quantity("79Gi")) == quantity("1Gi")',
        f'{C}.memory.add(1).compareTo(quantity("80Gi").add(quantity("1"))) == 0',
        'device.capacity["other.example.com"].cores == quantity("2500m")',
        'device.capacity["other.example.com"].cores.asApproximateFloat() == 2.5',
        '!quantity("2500m").isInteger() && quantity("2k").asInteger() == 2000',
        'quantity("-1").sign() == -1 && quantity("0").sign() == 0 && quantity("1").sign() == 1',
        'isQuantity("1Gi") && !isQuantity("much")',
        f'{A}.version.isGreaterThan(semver("1.9.9")) && {A}.version == semver("1.10.0")',
        f"{A}.version.major() == 1 && {A}.version.minor() == 10 && {A}.version.patch() == 0",
        'semver("1.0.0-rc.1").isLessThan(semver("1.0.0-rc.a"))',
        'semver("1.0.0-rc.2").isLessThan(semver("1.0.0-rc.10"))',
        'semver("1.0.0-rc").isLessThan(semver("1.0.0"))',
        'semver("v1.2", true) == semver("1.2.0") && semver("01.2.3-a", true) == semver("1.2.3-a")',
        'isSemver("1.2.3") && !isSemver("v1.2") && isSemver("v1.2", true) && !isSemver("x", true)',
        f'cel.bind(d, {A}, d.model == "A100" && d.index == 3)',
        f'cel.bind(d, {A}, cel.bind(e, d.model, e in ["A100", ")"]))',
        f'cel . bind(d, {A}, [d.index, 1][0] == 3) && "(bind" != r"\\("',
        f'{A}.model.lowerAscii() == "a100" && "a1é".upperAscii() == "A1é"',
        '"abc".charAt(1) == "b" && "abc".charAt(3) == ""',
        '"abcb".indexOf("b") == 1 && "abcb".indexOf("b", 2) == 3 && "abc".indexOf("x") == -1',
        '"abcb".lastIndexOf("b") == 3 && "abcb".lastIndexOf("b", 2) == 1',
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(2) == -1",
        "[1].lastIndexOf(2) == -1",
        '"a-b-c".replace("-", "") == "abc" && "a-b-c".replace("-", "+", 1) == "a+b-c"',
        '"a,b,c".split(",") == ["a", "b", "c"] && "a,b,c".split(",", 2) == ["a", "b,c"]',
        '"abc".split("") == ["a", "b", "c"] && "abc".split("", 2) == ["a", "bc"]',
        '"a".split(",", 0) == []',
        '"abcd".substring(2) == "cd" && "abcd".substring(1, 3) == "bc"',
        '" a ".trim() == "a" && ["a", "b"].join("-") == "a-b" && ["a", "b"].join() == "ab"',
    ],
)
def test_an_expression_is_true(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    "text",
    [
        'device.driver == "other"',
        f'{A}.model == "H100"',
        f'{C}.memory.isLessThan(quantity("1Gi"))',
    ],
)
def test_an_expression_is_false(text: str) -> None:
    assert evaluate(text) is False


@pytest.mark.parametrize(
    "text",
    [
        f"{A}.absent == 1",  # kube-scheduler ends its attempt here
        f"{A}.odd == 1",
        "1",
        "device.attributes[",
        f"{A}.?absent.orValue(true)",
        "unknown(1)",
        'quantity("much") == quantity("1")',
        'quantity("2500m").asInteger() == 2',
        'semver("x") == semver("1.0.0")',
        "1.5.sign() == 1",
        "[1, 2].sign() == 1",
        "true.sign() == 1",
        '"abc".charAt(4) == ""',
        '"abc".substring(2, 9) == ""',
        '"abc".indexOf("a", 9) == 0',
        '"abc".lastIndexOf("a", 9) == 0',
        f'"{"a" * 100}".replace("", "{"b" * 100}") == ""',
        "cel.bind(d, 1)",
        "cel.bind(d, 1, (d)",
        "cel.bind(d, 1, d))",
        "true" + " " * MAX_EXPRESSION,
    ],
)
def test_an_expression_that_cannot_be_evaluated_is_taken_as_true(text: str) -> None:
    selectors = Selectors(time.thread_time)
    assert selectors.matches((text,), gpu())
    assert sum(selectors.unevaluated.values()) == 1


def test_all_selectors_have_to_be_true() -> None:
    selectors = Selectors(time.thread_time)
    true, false = f'{A}.model == "A100"', f"{A}.index == 4"
    assert selectors.matches((), gpu())
    assert selectors.matches((true, true), gpu())
    assert not selectors.matches((true, false), gpu())


class Evaluations:
    """A clock that counts evaluations: each reads it at its begin and at its end."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return 0.0

    @property
    def number(self) -> int:
        return self.readings // 2


def test_devices_that_are_alike_in_all_that_is_named_are_evaluated_once() -> None:
    evaluations = Evaluations()
    selectors = Selectors(evaluations)
    devices = [gpu(f"d{i}", uuid=Attribute("string", f"GPU-{i}")) for i in range(8)]
    for _ in range(2):
        assert all(selectors.matches((f'{A}.model == "A100"',), device) for device in devices)
    assert evaluations.number == 1
    assert [selectors.matches((f'{A}.uuid == "GPU-3"',), device) for device in devices].count(
        True
    ) == 1
    assert evaluations.number == 9
    small = gpu(memory=40)
    text = f'{C}.memory.isGreaterThan(quantity("50Gi"))'
    assert selectors.matches((text,), devices[0])
    assert not selectors.matches((text,), small)


@pytest.mark.parametrize(
    "text",
    [f'{A}.exists(name, name == "uuid")', f'{A}["uu" + "id"] == "x"', f'{A}["\\u0075uid"] == "x"'],
)
def test_an_expression_that_may_look_at_anything_is_evaluated_for_each(text: str) -> None:
    evaluations = Evaluations()
    selectors = Selectors(evaluations)
    for i in range(3):
        selectors.matches((text,), gpu(uuid=Attribute("string", f"GPU-{i}")))
    assert evaluations.number == 3


def test_an_expression_that_takes_too_long_is_taken_as_true() -> None:
    def ticks() -> Iterator[float]:
        yield from (i * 0.04 for i in count())

    clock = ticks()
    selectors = Selectors(lambda: next(clock))
    text = f"{A}.uuid == 0"
    verdicts = [selectors.matches((text,), gpu(uuid=Attribute("int", i))) for i in range(1, 5)]
    assert verdicts == [False, False, True, True]
    assert selectors.unevaluated == {"compile": 0, "evaluate": 0, "time": 2}


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MAX_EXPRESSIONS", "_MAX_RESULTS", "_MAX_VERDICTS", "_MAX_NAMES"):
        monkeypatch.setattr(module, name, 4)
    selectors = Selectors(time.thread_time)
    device = gpu()
    for i in range(20):
        assert selectors.matches((f"{A}.index == {i}",), device) == (i == 3)
        assert len(device.verdicts) <= 4
        assert len(selectors._expressions) <= 4  # noqa: SLF001
        assert len(selectors._results) <= 4  # noqa: SLF001
    for i in range(20):
        attributes = {**device.attributes, f"{DRIVER}/x{i}": Attribute("int", 1)}
        odd = replace(device, attributes=attributes, verdicts={})
        assert selectors.matches((f"{A}.index == 3",), odd)
    expression = selectors._expressions[f"{A}.index == 3"]  # noqa: SLF001
    assert expression is not None
    assert len(expression._named) <= 4  # noqa: SLF001


class PanicException(BaseException):
    """What the library raises for a bug of its own."""


class Faulty(str):
    """A text that cannot be read."""

    error: type[BaseException]

    def __new__(cls, error: type[BaseException]) -> "Faulty":
        """Return a text that raises this error."""
        text = super().__new__(cls, "1.0.0")
        text.error = error
        return text

    def __str__(self) -> str:
        raise self.error


def test_a_bug_of_the_library_is_no_more_than_a_selector_that_cannot_be_evaluated() -> None:
    device = gpu(version=Attribute("version", Faulty(PanicException)))
    assert evaluate(f'{A}.version == semver("1.0.0")', device) is None
    device = gpu(version=Attribute("version", Faulty(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        evaluate(f'{A}.version == semver("1.0.0")', device)


def test_without_the_library_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match="common-expression-language"):
        module._cel.__wrapped__()  # noqa: SLF001


def test_every_function_has_a_name_that_cel_can_call() -> None:
    assert all(name.isidentifier() for name in FUNCTIONS)
