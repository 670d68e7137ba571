"""A cell of a notebook that is run twice registers the same thing anew; nothing else does."""

from __future__ import annotations

import pytest

from qll.errors import InputError
from qll.registry import Registry


def _thing(module: str, name: str) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name})


def test_a_definition_of_the_prompt_replaces_itself() -> None:
    held: Registry[type] = Registry("thing")
    held.register("a")(_thing("__main__", "A"))
    second = held.register("a")(_thing("__main__", "A"))
    assert held["a"] is second


@pytest.mark.parametrize(("module", "name"), [("__main__", "B"), ("qll.logics.dl2", "A")])
def test_another_one_is_refused(module: str, name: str) -> None:
    held: Registry[type] = Registry("thing")
    held.register("a")(_thing("__main__", "A"))
    with pytest.raises(InputError, match="registered twice"):
        held.register("a")(_thing(module, name))


def test_a_file_of_the_library_is_not_replaced_by_its_like() -> None:
    held: Registry[type] = Registry("thing")
    held.register("a")(_thing("qll.logics.dl2", "A"))
    with pytest.raises(InputError, match="registered twice"):
        held.register("a")(_thing("qll.logics.dl2", "A"))
