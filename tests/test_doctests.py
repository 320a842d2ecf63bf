"""Every example in a docstring of the package runs, and every public thing has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import unislab

# The child of a baseline has no public part, and is a program.
NOT_IMPORTED = {"unislab._baseline_child", "unislab.__main__"}
#: Modules that users import names from; those of ``unislab`` itself come first.
MODULE_NAMES = ["datasets", "errors", "inspect", "ops", "raw", "sizes", "workloads"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    """All Python modules of the package."""
    found = pkgutil.walk_packages(unislab.__path__, "unislab.")
    names = ["unislab", *(info.name for info in found)]
    extensions = {"unislab._native", "unislab._model"}
    return sorted(set(names) - NOT_IMPORTED - extensions)


def is_public(module: str, name: str) -> bool:
    """Whether users see a docstring: nothing on the way to it begins with an underscore."""
    parts = [*module.split("."), *name.removeprefix(module).strip(".").split(".")]
    return not any(part.startswith("_") and not part.endswith("__") for part in parts)


@pytest.mark.parametrize("name", module_names())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder().find(module):
        if is_public(name, test.name):
            test.globs = {"__name__": "example"}  # who copies it has no more than it imports
        runner.run(test)
    assert runner.failures == 0, f"{runner.failures} of {runner.tries} examples failed"


def public_methods(cls: type) -> dict[str, object]:
    """What a class and those of ours below it add that users call or read."""
    parts = [part for part in cls.__mro__[::-1] if part.__module__.startswith("unislab")]
    members = {
        name: getattr(member, "__func__", member)
        for part in parts
        for name, member in vars(part).items()
    }
    return {
        name: member
        for name, member in members.items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


MODULES = ["unislab", *(f"unislab.{name}" for name in MODULE_NAMES)]
PUBLIC = [
    (module, name)
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if callable(getattr(importlib.import_module(module), name))
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_everything_public_is_documented_and_shown(module: str, name: str) -> None:
    thing = getattr(importlib.import_module(module), name)
    docs = {name: inspect.getdoc(thing)}
    methods = public_methods(thing) if inspect.isclass(thing) else {}
    for method, function in methods.items():
        docs[f"{name}.{method}"] = inspect.getdoc(function)
    assert all(docs.values()), [where for where, doc in docs.items() if not doc]
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return  # shown where it is raised
    called = {f"{name}.{m}" for m, f in methods.items() if inspect.isfunction(f)}
    lacking = [n for n, doc in docs.items() if ">>>" not in (doc or "") and n in {name, *called}]
    assert not lacking, f"no example of {', '.join(lacking)}"


def test_dir_lists_what_is_public() -> None:
    names = [name for name in dir(unislab) if not name.startswith("__")]
    assert names == sorted(set(unislab.__all__) - {"__version__"})
