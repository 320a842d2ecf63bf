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
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    """All Python modules of the package."""
    found = pkgutil.walk_packages(unislab.__path__, "unislab.")
    names = ["unislab", *(info.name for info in found)]
    extensions = {"unislab._native", "unislab._model"}
    return sorted(set(names) - NOT_IMPORTED - extensions)


@pytest.mark.parametrize("name", module_names())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=OPTIONS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed"


def public_methods(cls: type) -> dict[str, object]:
    """What a class adds that users call."""
    members = {name: getattr(member, "__func__", member) for name, member in vars(cls).items()}
    return {
        name: member
        for name, member in members.items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


PUBLIC = [name for name in unislab.__all__ if callable(getattr(unislab, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_is_documented_and_shown(name: str) -> None:
    thing = getattr(unislab, name)
    docs = {name: inspect.getdoc(thing)}
    if inspect.isclass(thing):
        for method, function in public_methods(thing).items():
            docs[f"{name}.{method}"] = inspect.getdoc(function)
    assert all(docs.values()), [where for where, doc in docs.items() if not doc]
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return  # shown where it is raised
    assert any(">>>" in (doc or "") for doc in docs.values()), f"no example of unislab.{name}"
