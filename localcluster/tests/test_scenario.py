"""Scenarios: the plan of a valid one; an invalid one is refused in one line with the place."""

import re
from pathlib import Path

import msgspec
import pytest

from gpushare.wire.inventory import decode_inventory
from gpushare_localcluster.demo.manifests import (
    node_document,
    pod_document,
    priority_class_document,
)
from gpushare_localcluster.demo.plan import (
    Expect,
    NodePlan,
    PodPlan,
    Protect,
    Scenario,
    ScenarioError,
    Step,
    Taint,
    Toleration,
    Trace,
    WaitFor,
    several,
)
from gpushare_localcluster.demo.scenario import (
    find,
    find_stage,
    load_program,
    load_scenario,
    shipped,
    stages,
)

NODES = "nodes: [{name: a, gpus: 2, gpuMemory: 16}]\n"
POD_COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
POD = "steps:\n- apply: {name: p, gpuMem: 2}\n"


def written(folder: Path, text: str, name: str = "s.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_every_shipped_scenario_loads() -> None:
    files = shipped()
    assert len(files) == 25
    assert [int(file.stem.partition("-")[0]) for file in files] == list(range(1, 26))
    for file in files:
        if file.suffix == ".yaml":
            assert load_scenario(file).steps
        else:
            assert callable(load_program(file))


def test_a_scenario_becomes_a_plan(tmp_path: Path) -> None:
    text = """
name: full
title: All words
nodes:
- {prefix: n-, count: 2, gpus: 2, gpuMemory: 8, cpu: 500m, memory: 1Gi, cordoned: true,
   labels: {zone: x}, taints: [{key: k, value: v, effect: NoSchedule}, {key: l, effect: NoExecute}]}
- {name: mixed, gpuMemory: [4, 8]}
- {name: plain, gpus: 0}
steps:
- say: hello
- apply:
  - {name: one, gpuMem: 4, gpuCount: 2, priority: 7, nodeSelector: {zone: x}, runSeconds: 1.5,
     schedulerName: other}
  - {name: many, containers: [1, 0], replicas: 2, labels: {app: m}, policy: spread}
- waitFor: {pods: [one, many-*], is: settled, timeout: 3}
- cordon: [mixed]
- uncordon: n-1
- delete: many-*
- protect: {name: few, labels: {app: m}, allowed: 1}
- expect: {pod: one, node: mixed, devices: [0, 1]}
- expect: {pod: one, pending: no room}
- expect: {device: mixed/1, used: 8}
- expect: {bound: 1, pods: many-*}
- expect: {packed: true}
- expect: {pod: one, trace: Chosen mixed}
- expect: {pod: one, cycles: 2}
- pause: 0.5
"""
    scenario = load_scenario(written(tmp_path, text))
    assert (scenario.name, scenario.title) == ("full", "All words")
    assert [node.name for node in scenario.nodes] == ["n-1", "n-2", "mixed", "plain"]
    first, _, mixed, plain = scenario.nodes
    assert (first.devices, first.cpu, first.cordoned, first.mixed) == ((8, 8), "500m", True, False)
    assert first.taints == (Taint("k", "NoSchedule", "v"), Taint("l", "NoExecute"))
    assert (mixed.devices, mixed.mixed, plain.devices) == ((4, 8), True, ())
    say, apply, wait, closed_nodes, opened, delete, protect, *expects, pause = scenario.steps
    assert say == Step(say="hello")
    pods = several(apply.apply)
    assert [pod.name for pod in pods] == ["one", "many-1", "many-2"]
    assert pods[1].units == (1, 0)
    assert [pod.scheduler_name for pod in pods] == ["other", "", ""]
    assert wait == Step(wait_for=WaitFor(("one", "many-*"), "settled", 3.0))
    assert protect == Step(protect=Protect("few", {"app": "m"}, 1))
    assert closed_nodes == Step(cordon=("mixed",))
    assert opened == Step(uncordon="n-1")
    assert delete == Step(delete="many-*")
    assert pause == Step(pause=0.5)
    assert [(step.expect, step.expect.words) for step in expects if step.expect] == [
        (
            Expect(pod="one", node="mixed", devices=(0, 1)),
            "one is on mixed devices 0, 1",
        ),
        (Expect(pod="one", pending="no room"), 'one is pending because of "no room"'),
        (Expect(device="mixed/1", used=8), "device 1 of mixed: 8 units are in use"),
        (Expect(bound=1, pods="many-*"), "1 of the pods many-* is bound"),
        (Expect(packed=True), "no device is over its capacity, and no pending pod would fit"),
        (Expect(pod="one", trace="Chosen mixed"), "one: Chosen mixed"),
        (Expect(pod="one", cycles=2), "one has been tried 2 times"),
    ]


def test_nodes_look_as_the_device_plugin_leaves_them(tmp_path: Path) -> None:
    text = (
        "nodes: [{name: a, gpuMemory: [4, 8]}, {name: b, gpus: 3}, {name: c, gpus: 0}]\nsteps: []\n"
    )
    mixed, alike, plain = (
        node_document(node, number)
        for number, node in enumerate(load_scenario(written(tmp_path, text)).nodes)
    )
    assert mixed["status"]["allocatable"]["aliyun.com/gpu-mem"] == "12"
    assert mixed["status"]["capacity"]["aliyun.com/gpu-count"] == "2"
    inventory = decode_inventory(mixed["metadata"]["annotations"]["gpushare.io/devices"])
    assert [device.mem for device in inventory.devices] == [4, 8]
    assert alike["status"]["allocatable"]["aliyun.com/gpu-mem"] == "48"
    assert alike["metadata"]["labels"]["gpushare"] == "true"
    assert "annotations" not in alike["metadata"]
    assert "aliyun.com/gpu-mem" not in plain["status"]["allocatable"]
    assert "gpushare" not in plain["metadata"]["labels"]


def test_pods_look_as_users_write_them(tmp_path: Path) -> None:
    text = (
        "nodes: [{name: a}]\nsteps:\n- apply: {name: p, containers: [6, 2], gpuCount: 2, cpu: 2, "
        "policy: spread, priority: 5, runSeconds: 3, schedulerName: other}\n"
    )
    (pod,) = several(load_scenario(written(tmp_path, text)).steps[0].apply)
    document = pod_document(pod)
    first, second = document["spec"]["containers"]
    assert first["resources"] == {
        "limits": {"aliyun.com/gpu-mem": "6"},
        "requests": {"cpu": "2", "memory": "64Mi"},
    }
    assert second["resources"] == {"limits": {"aliyun.com/gpu-mem": "2"}}
    assert document["metadata"]["annotations"] == {
        "aliyun.com/gpu-count": "2",
        "localcluster.gpushare.io/run-seconds": "3.0",
        "gpushare.io/policy": "spread",
    }
    assert document["spec"]["priorityClassName"] == "priority-5"
    assert document["spec"]["schedulerName"] == "other"
    assert priority_class_document(5)["value"] == 5
    assert priority_class_document(-5)["metadata"]["name"] == "priority-minus-5"


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 1, "the file is empty"),
        ("[1", 1, "no YAML"),
        ("nodes: [\n{name: a},\n", 3, "no YAML"),
        ("- a\n", 1, "Expected `object`, got `array`"),
        ("steps: []\n", 1, "nodes is missing"),
        (NODES, 1, "missing required field `steps`"),
        (NODES + "steps: {}\n", 2, "steps: Expected `array`"),
        (NODES + "extra: 1\nsteps: []\n", 2, "unknown field `extra`"),
        ("nodes: [{name: a}]\nnodes: []\n", 2, "nodes is there twice"),
        ("nodes:\n- {gpus: 1}\nsteps: []\n", 2, "nodes[0]: needs either name, or prefix"),
        ("nodes:\n- {name: a, prefix: b}\nsteps: []\n", 2, "needs either name, or prefix"),
        ("nodes:\n- {prefix: b}\nsteps: []\n", 2, "needs either name, or prefix"),
        ("nodes:\n- {prefix: b, count: 0}\nsteps: []\n", 2, "nodes[0].count: Expected `int` >= 1"),
        ("nodes:\n- {name: A_b}\nsteps: []\n", 2, "nodes[0].name: Expected `str` matching regex"),
        ("nodes:\n- {name: 5}\nsteps: []\n", 2, "nodes[0].name: Expected `str`, got `int`"),
        ("nodes: [{name: a}, {name: a}]\nsteps: []\n", 1, "same name"),
        ("nodes:\n- {name: a, gpus: -1}\nsteps: []\n", 2, "nodes[0].gpus: Expected `int` >= 0"),
        ("nodes:\n- {name: a, gpus: 1.5}\nsteps: []\n", 2, "gpus: Expected `int | null`"),
        ("nodes:\n- {name: a, gpus: true}\nsteps: []\n", 2, "gpus: Expected `int | null`"),
        ("nodes:\n- {name: a, gpuMemory: 0}\nsteps: []\n", 2, "gpuMemory: Expected `int` >= 1"),
        ("nodes:\n- {name: a, gpus: 3, gpuMemory: [1, 2]}\nsteps: []\n", 2, "lists 2 devices"),
        ("nodes:\n- {name: a, cpu: lots}\nsteps: []\n", 2, "nodes[0]: 'lots' is not a quantity"),
        ("nodes:\n- {name: a, memory: -1Gi}\nsteps: []\n", 2, "out of range"),
        ("nodes:\n- {name: a, cordoned: 1}\nsteps: []\n", 2, "cordoned: Expected `bool`"),
        ("nodes:\n- {name: a, labels: {x: 1}}\nsteps: []\n", 2, "labels[...]: Expected `str`"),
        (
            "nodes:\n- {name: a, taints: [{key: k, effect: Bad}]}\nsteps: []\n",
            2,
            "taints[0].effect: Invalid enum value 'Bad'",
        ),
        (NODES + "steps:\n- jump: high\n", 3, "steps[0]: Object contains unknown field `jump`"),
        (NODES + "steps:\n- {say: a, delete: b}\n", 3, "exactly one key"),
        (NODES + "steps:\n- say: 3\n", 3, "say: Expected `str"),
        (
            NODES + "steps:\n- apply: {gpuMem: 1}\n",
            3,
            "apply: Object missing required field `name`",
        ),
        (
            NODES + "steps:\n- apply: {name: p, gpuMen: 1}\n",
            3,
            "apply: Object contains unknown field `gpuMen`",
        ),
        (NODES + "steps:\n- apply: {name: p, gpuMem: 1, containers: [1]}\n", 3, "give either"),
        (
            NODES + "steps:\n- apply: {name: p, containers: []}\n",
            3,
            "containers: Expected `array` of length >= 1",
        ),
        (NODES + "steps:\n- apply: {name: p, replicas: 0}\n", 3, "replicas: Expected `int` >= 1"),
        (NODES + "steps:\n- apply: [{name: p}, {name: p}]\n", 3, "applied before"),
        (NODES + POD + "- apply: {name: p}\n", 4, "a pod p was applied before"),
        (NODES + POD + "- delete: q\n", 4, "no pod 'q' was applied before this step; there are: p"),
        (NODES + "steps:\n- delete: q\n", 3, "there are: none"),
        (
            NODES + "steps:\n- apply: {name: p, replicas: 12}\n- delete: q\n",
            4,
            "p-9, p-10 and 2 more",
        ),
        (NODES + "steps: []\n---\nsteps: []\n", 3, "one document, and here is another"),
        ("apiVersion: v1\nkind: Pod\nspec: {}\n", 1, "a manifest (Pod) is no scenario: start"),
        ("kind: Job\napiVersion: batch/v1\n---\na: 1\n", 1, "`gpushare demo --keep`, and in"),
        (NODES + POD + "- cordon: b\n", 4, "no node 'b' is in this scenario; there are: a"),
        (NODES + POD + "- waitFor: {pods: p, is: happy}\n", 4, "is: Invalid enum value 'happy'"),
        (NODES + POD + "- waitFor: {pods: p}\n", 4, "missing required field `is`"),
        (
            NODES + POD + "- waitFor: {pods: p, is: bound, timeout: soon}\n",
            4,
            "timeout: Expected `float`",
        ),
        (NODES + POD + "- expect: {}\n", 4, "states exactly one of"),
        (NODES + POD + "- expect: {pod: p, bound: 1}\n", 4, "states exactly one of"),
        (NODES + POD + "- expect: {pod: q}\n", 4, "no pod 'q'"),
        (NODES + POD + "- expect: {pod: p, node: b}\n", 4, "no node 'b' is"),
        (
            NODES + POD + "- expect: {device: a, used: 1}\n",
            4,
            "device: Expected `str` matching regex",
        ),
        (NODES + POD + "- expect: {device: a/2, used: 1}\n", 4, "node a has 2 devices"),
        (NODES + POD + "- expect: {device: a/0}\n", 4, "used is missing"),
        (NODES + POD + "- expect: {bound: 1, pods: z*}\n", 4, "no pod 'z*'"),
        (NODES + POD + "- expect: {pod: p, cycles: 0}\n", 4, "cycles: Expected `int` >= 1"),
        (NODES + POD + "- pause: soon\n", 4, "pause: Expected `float | null`"),
        (NODES + POD + "- expect: {packed: false}\n", 4, "can only be true"),
        ("nodes: [{name: !!python/name:os.system x}]\nsteps: []\n", 1, "could not determine"),
        ("a: &a [*a]\n", 1, "an alias stands within"),
    ],
)
def test_a_malformed_scenario_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ScenarioError) as raised:
        load_scenario(file)
    message = str(raised.value)
    assert message.startswith(f"{file}:{line}: ")
    assert complaint in message
    assert "\n" not in message


def test_what_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot be read: .*No such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match=r"cannot be read: .*Is a directory"):
        load_scenario(tmp_path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match=r"cannot be read: .*decode"):
        load_scenario(binary)
    with pytest.raises(ScenarioError, match="no YAML"):
        load_scenario(written(tmp_path, "a: \x07\n"))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("name,cpu_milli\np,1\n", " line 1: has no column memory_mib; gpu or num_gpu; units or"),
        (f"{POD_COLUMNS}\np,1,2,3,x\n", " line 2, column gpu_milli: is no whole number from 1"),
        (f"{POD_COLUMNS}\np,1,2\n", " line 2: has 3 columns, the header 5"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_place(
    tmp_path: Path, rows: str, complaint: str
) -> None:
    written(tmp_path, rows, "pods.csv")
    text = NODES + "steps:\n- applyTrace: {file: pods.csv}\n"
    with pytest.raises(ScenarioError) as raised:
        load_scenario(written(tmp_path, text))
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "pods.csv"))


def test_shares_of_a_trace_become_units_rounded_up(tmp_path: Path) -> None:
    written(tmp_path, f"{POD_COLUMNS}\na,100,5,1,460\nb,100,5,8,1000\nc,100,5,0,0\n", "pods.csv")
    text = NODES + "steps:\n- applyTrace: {file: pods.csv, units: 16}\n"
    step = load_scenario(written(tmp_path, text)).steps[0]
    pods = [(pod.gpu_mem, pod.gpu_count) for pod in several(step.apply)]
    assert pods == [(8, 1), (128, 8), (0, 1)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def scenario(:\n", ":1: no Python"),
        ("x = 1\n", "defines no function scenario"),
        ("scenario = 1\n", "defines no function scenario"),
        ("import nothing_of_that_name\n", "cannot be loaded: ModuleNotFoundError"),
        ("raise ValueError('a\\nb')\n", "cannot be loaded: ValueError: a"),
    ],
)
def test_a_program_that_is_none_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        load_program(written(tmp_path, text, "s.py"))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("word", ["1", "binpack", "1-binpack"])
def test_a_shipped_scenario_goes_by_its_number_and_its_name(word: str) -> None:
    assert find(word).name == "1-binpack.yaml"


def test_where_no_scenario_is_of_that_name_those_there_are_are_told() -> None:
    assert find("dir/own.yaml") == Path("dir/own.yaml")
    for word in ("0", "99", "bin", "own.txt"):
        with pytest.raises(ScenarioError, match=f"no scenario is called '{word}'; there are: 1-"):
            find(word)


@pytest.mark.parametrize("word", ["5", "permit", "5-permit"])
def test_a_stage_goes_by_its_number_and_its_name(word: str) -> None:
    assert find_stage(word).name == "5-permit"


def test_a_stage_that_there_is_not_is_refused_with_those_there_are() -> None:
    assert [stage.name[0] for stage in stages()] == list("12345678")
    with pytest.raises(ScenarioError, match=r"^no stage is called '9'; there are: 1-random, 2-"):
        find_stage("9")


PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("part", "section"),
    [
        (Scenario, "The file"),
        (NodePlan, "Nodes"),
        (Taint, "Nodes"),
        (Step, "Steps"),
        (WaitFor, "Steps"),
        (Protect, "Steps"),
        (Trace, "Steps"),
        (PodPlan, "Pods"),
        (Toleration, "Pods"),
        (Expect, "Expectations"),
    ],
)
def test_the_page_about_scenarios_has_every_word_of_the_language(
    part: type[msgspec.Struct], section: str
) -> None:
    words = part.__struct_encode_fields__
    states = re.findall(r"'(\w+)'", str(WaitFor.__annotations__["state"]))
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    expected = [*words, *(states if part is WaitFor else ())]
    assert [word for word in expected if f"`{word}`" not in text] == []


def test_the_examples_of_the_page_are_scenarios(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for text in examples:
        assert load_scenario(written(tmp_path, text)).steps
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        assert callable(load_program(written(tmp_path, text, "s.py")))
