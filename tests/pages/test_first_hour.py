"""README.md, docs/start.md and docs/coming-from.md, done as printed, in a fresh clone."""

import os
import re
import shutil
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.support.terminal import on_terminal
from tests.support.waiting import PATIENCE
from tests.support.walkthrough import Block, Shell, blocks, without_plug_in

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/start.md", "docs/coming-from.md")

REPOSITORY = "<this repository>"
"""The reader has an address in its place."""

VARIES = (
    (r"\d\d:\d\d:\d\d", "TIME"),
    (r"\bhalf-\d", "half-N"),
    (r"half-N -> node gpu-a device \d", "half-N -> node gpu-a device D"),
    (r"(half-N, container main: \S+=GPU-gpu-a)-\d", r"\1-D"),
    (r"\bweb-\w{10}-\w{5}\b", "web-TEMPLATE-POD"),
    (r"(?m)^(web-TEMPLATE-POD +default +6 +)\S.*", r"\1REASON"),
)
"""The parts that differ each time: the hour, the order of two equal pods, generated names, and
how full the nodes were when a pod was last looked at.
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    result = list(blocks(ROOT / page))
    fences = re.findall(r"^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(result) > 10
    for block in result:
        if block.language == "sh":
            assert block.kind in ("", "not run", "goes on until"), block.place
            assert bool(block.kind) == bool(block.more), f"{block.place}: say why"
        else:
            assert block.language in ("yaml", "text"), block.place
            assert block.kind in ("file", "output", "figures of"), block.place


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A terminal of somebody who has git, make, Python and kubectl, and nothing of ours."""
    environ = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    home = tmp_path / "home"
    home.mkdir()
    environ |= {"HOME": str(home), "PATH": without_plug_in(os.environ["PATH"]), "TERM": "dumb"}
    return Shell(tmp_path, environ, home)


def clone(folder: Path) -> Path:
    """A clone with the present changes, and this test's environment for the installed packages.

    Installing takes half a minute and the network, and the environment has the same packages.
    """
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True, timeout=60)
    text = ""
    for item in (
        ("diff", "-z", "--name-only", "HEAD"),
        ("ls-files", "-z", "--others", "--exclude-standard"),
    ):
        command = ["git", *item]
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        text += completed.stdout
    for name in filter(None, text.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    programs = folder / ".venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    packages = next((folder / ".venv" / "lib").iterdir()) / "site-packages"
    present = [path for path in sys.path if Path(path).name.endswith("-packages")]
    (packages / "installed.pth").write_text(
        "\n".join([str(folder), str(folder / "localcluster"), *present])
    )
    setup = ConfigParser()
    setup.read(folder / "setup.cfg")
    for script in setup["options.entry_points"]["console_scripts"].split("\n"):
        name, _, entry = script.partition(" = ")
        if name:
            module, _, function = entry.partition(":")
            program = f"from {module} import {function}\nif __name__ == '__main__':\n"
            program += f"    sys.exit({function}())\n"
            (programs / name).write_text(f"#!{programs}/python\nimport sys\n{program}")
            (programs / name).chmod(0o755)
    (folder / ".venv" / ".runtime").touch()
    return folder


def printed(expected: Block, output: str) -> None:
    """Must hold: the output has the lines that the page shows."""

    def alike(text: str) -> str:
        for pattern, word in VARIES:
            text = re.sub(pattern, word, text)
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    for part in re.split(r"^\.\.\.$", expected.text, flags=re.MULTILINE):
        assert alike(part) in alike(output), f"{expected.place}: this is not printed\n{output}"


@pytest.mark.timeout(900)
@pytest.mark.kubectl
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository to clone")
@pytest.mark.parametrize("page", PAGES)
def test_the_page_works_as_it_is_printed(page: str, shell: Shell, tmp_path: Path) -> None:
    folder = clone(tmp_path / "gpushare")
    result = list(blocks(folder / page))
    if page != "README.md":
        shell.folder = folder
    status = ["git", "status", "--porcelain", "--untracked-files=no"]
    before = subprocess.run(status, cwd=folder, capture_output=True, check=True, text=True)
    output = ""
    try:
        for block in result:
            output = follow(block, shell, folder, output)
    finally:
        shell.end()
    after = subprocess.run(status, cwd=folder, capture_output=True, check=True, text=True)
    assert after.stdout == before.stdout


def figures(block: Block, shell: Shell) -> None:
    """Must come to hold soon: the first line's command prints the rest.

    A pod whose bind came too late has another reason for a moment, until the next try.
    """
    command = block.text.splitlines()[0].removeprefix("$ ")
    deadline = time.monotonic() + PATIENCE
    while True:
        on_terminal_result = on_terminal(command.split(), {**shell.environ, "NO_COLOR": "1"})
        try:
            printed(block, f"$ {command}\n{on_terminal_result}")
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def follow(block: Block, shell: Shell, folder: Path, output: str) -> str:
    """Do the steps of the block; return the output of the last commands."""
    if block.kind == "not run":
        return output
    if block.kind == "output":
        printed(block, output)
    elif block.kind == "figures of":
        figures(block, shell)
    elif block.kind == "file":
        file = shell.folder / block.more
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text)
    elif block.kind == "goes on until":
        lines = shell.start(block)
        exports = [line for line in lines if line.startswith("export ")]
        assert len(exports) == 2, lines
        shell.run(Block(block.place, "sh", "\n".join(exports), "", ""))
        tries = lines[lines.index("then, for example:") + 1 :]
        commands = [line for line in tries if line.startswith("  ")]
        assert len(commands) > 5
        shell.run(Block(block.place, "sh", "\n".join(commands), "", ""))
    else:
        first = f"git clone {REPOSITORY} gpushare && cd gpushare\n"
        if block.text.startswith(first):
            shell.folder = folder
        return shell.run(Block(block.place, "sh", block.text.removeprefix(first), "", ""))
    return output
