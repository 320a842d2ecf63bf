"""README says nothing that does not run: its Python blocks, commands and links.

The rules a writer needs:

- every ```` ```python ```` block is executed, all in order in one namespace, in an empty folder;
- in ``sh``, ``bash``, ``console`` and ``shell`` blocks, and in `code` within text, what follows
  ``make``, ``unislab``, ``python`` or ``jupyter`` must exist: targets and variables of the
  Makefile, commands and options of the command line, files of the tree;
- relative links, and `paths/in/code` outside of build/, lead to files of the tree.
"""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from unislab.cli import cli

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SHELLS = {"sh", "bash", "console", "shell"}
FILES = re.compile(r"[\w./-]+\.(?:py|ipynb|sh)")


class Block(NamedTuple):
    """A fenced block: language, text, number of the line its text begins at."""

    language: str
    text: str
    line: int


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a text."""
    found = []
    for match in re.finditer(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", markdown, re.M | re.S):
        line = markdown.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1], match[2], line))
    return found


def commands(markdown: str) -> Iterator[list[str]]:
    """Every command of shell blocks and of code within text, as words, without variables."""
    lines: list[str] = []
    for block in blocks(markdown):
        if block.language in SHELLS:
            text = block.text.replace("\\\n", " ")
            prompted = any(line.startswith("$ ") for line in text.splitlines())
            lines += [  # after prompts, what has none is output
                line.removeprefix("$ ")
                for line in text.splitlines()
                if not prompted or line.startswith("$ ")
            ]
    lines += re.findall(r"`([^`\n]+)`", without_blocks(markdown))
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that is none of the shell's
            continue
        # `cd x && make demo | tail` is three commands.
        for joined, part in itertools.groupby(words, lambda w: w in ("&&", "||", "|", ";")):
            command = list(itertools.dropwhile(lambda w: re.match(r"\w+=", w), part))
            if not joined and command:
                yield command


def make_mistakes(words: list[str]) -> list[str]:
    """What is wrong with a call of make."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wrong = []
    targets = []
    for word in words[1:]:
        name, equals, _ = word.partition("=")
        if equals:
            if not re.search(rf"^(?:#\s+)?(?:export )?{re.escape(name)}\s*[:?]?=", makefile, re.M):
                wrong.append(f"the Makefile has no variable {name}")
        elif not word.startswith("-"):
            targets.append(word)
    wrong += [
        f"the Makefile has no target {target}"
        for target in targets
        if not re.search(rf"^{re.escape(target)}(?:\s[\w\s-]*)?:(?!=)", makefile, re.M)
    ]
    return wrong


def unislab_mistakes(words: list[str]) -> list[str]:
    """What is wrong with a call of unislab."""
    command: click.Command = cli
    known = options(command)
    wrong = []
    for word in words[1:]:
        if word in ("...", "…"):
            break
        if word.startswith("-") and word != "-":
            name = word.partition("=")[0]
            if name not in known:
                wrong.append(f"`{command.name}` has no option {name}")
        elif isinstance(command, click.Group):
            if word not in command.commands:
                return [*wrong, f"`{command.name}` has no command {word}"]
            command = command.commands[word]
            known |= options(command)
    return wrong


def options(command: click.Command) -> set[str]:
    """Names of a command's options, help included."""
    parameters = command.get_params(click.Context(command, help_option_names=["-h", "--help"]))
    return {name for parameter in parameters for name in parameter.opts}


def file_mistakes(words: list[str]) -> list[str]:
    """Files of the tree that a command names and that are not there."""
    return [
        f"there is no file {word}"
        for word in words[1:]
        if FILES.fullmatch(word) and not word.startswith("/") and not (ROOT / word).exists()
    ]


CHECKS = {
    "make": make_mistakes,
    "unislab": unislab_mistakes,
    "python": file_mistakes,
    "python3": file_mistakes,
    "jupyter": file_mistakes,
}


def mistakes(markdown: str) -> list[str]:
    """What is wrong with the commands of a text."""
    return [
        f"{shlex.join(words)}: {wrong}"
        for words in commands(markdown)
        if words[0] in CHECKS
        for wrong in CHECKS[words[0]](words)
    ]


def without_blocks(markdown: str) -> str:
    """The text around the fenced blocks."""
    return re.sub(r"^```.*?^```\s*$", "", markdown, flags=re.M | re.S)


def links(markdown: str) -> list[str]:
    """Links and paths that lead into the tree, without anchors."""
    text = without_blocks(markdown)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", text)
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#|build/", link)]


@pytest.fixture(scope="module")
def readme() -> str:
    """The text of README.md."""
    return README.read_text(encoding="utf-8")


def test_python_blocks_run(readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = [block for block in blocks(readme) if block.language == "python"]
    assert python, "README shows no Python"
    namespace: dict[str, Any] = {"__name__": "readme"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*this machine offers")  # fewer CPUs than traced
        for block in python:
            # Errors name the line of README.md.
            exec(compile("\n" * (block.line - 1) + block.text, str(README), "exec"), namespace)


def test_commands_exist(readme: str) -> None:
    assert {"make", "unislab"} <= {words[0] for words in commands(readme)}
    assert not mistakes(readme)


def test_links_lead_somewhere(readme: str) -> None:
    assert not [link for link in links(readme) if not (ROOT / link).exists()]


def test_makefile_has_every_target_that_it_helps_with() -> None:
    # The rules above hold for the Makefile's own help, so targets are recognised.
    text = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = [line.split()[:2] for line in text.splitlines()]
    assert ["make", "demo"] in named
    assert not [wrong for words in named for wrong in make_mistakes(words)]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("make", []),
        ("make demo TRACE=fork", []),
        ("make demos", ["the Makefile has no target demos"]),
        ("make demo TARCE=fork", ["the Makefile has no variable TARCE"]),
        ("unislab trace describe tcp_rr --json", []),
        ("unislab compare x.txt --policies unified,slub", []),
        ("unislab compair x", ["`cli` has no command compair"]),
        ("unislab trace describe x --jsno", ["`describe` has no option --jsno"]),
        ("python bench/no.py", ["there is no file bench/no.py"]),
        ("python setup.py --version", []),
    ],
)
def test_a_wrong_command_is_found(command: str, found: list[str]) -> None:
    expected = [f"{command}: {wrong}" for wrong in found]
    assert mistakes(f"text\n```sh\n{command}\n```\n") == expected
    assert mistakes(f"say `{command}` and more") == expected


def test_what_is_read_from_a_text() -> None:
    text = (
        "# x\n```python\na = 1\n```\n[map](csrc/README.md#top) [out](https://x.org) [here](#x)\n"
        "```console\n$ cd x && UNISLAB_RSEQ=0 make test | tail\nmake output\n```\n"
    )
    assert blocks(text)[0] == Block("python", "a = 1\n", 3)
    assert list(commands(text)) == [["cd", "x"], ["make", "test"], ["tail"]]
    assert links(text + "see `tests/x.py`, `/sys/x`, `build/a.json`") == [
        "csrc/README.md",
        "tests/x.py",
    ]
