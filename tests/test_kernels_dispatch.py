"""How kernels are compiled and kept: parts of others, several processes, signals."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from numba.core import event

from qll.kernels.cache import compiled as counting
from qll.kernels.dispatch import Kernel, Part
from qll.kernels.simd import kernel, never_inline

OPTIONS = {"nogil": True, "error_model": "numpy"}


def adder(number: int) -> Any:
    @kernel
    def add(x):  # type: ignore[no-untyped-def]
        never_inline()
        return x + number

    return add


@kernel
def shared(x, factor):  # type: ignore[no-untyped-def]
    return factor * x


class Compiled(event.Listener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.wholes: list[str] = []

    def on_start(self, event: Any) -> None:
        of = event.data["dispatcher"]
        if isinstance(of, Part | Kernel):
            (self.parts if isinstance(of, Part) else self.wholes).append(of.py_func.__name__)

    def on_end(self, event: Any) -> None:
        pass


@pytest.fixture
def compiled() -> Iterator[Compiled]:
    found = Compiled()
    with event.install_listener("numba:compile", found):
        yield found


def test_what_a_kernel_calls_is_a_part_of_it(compiled: Compiled) -> None:
    """Typed once, whatever numbers it is called with; machine code is made for the outermost."""
    one, ten = adder(1), adder(10)

    @kernel
    def middle(x):  # type: ignore[no-untyped-def]
        return shared(one(x), 3) + shared(ten(x), 5)

    @kernel
    def outermost(x):  # type: ignore[no-untyped-def]
        return middle(x) + 1

    assert outermost(2) == 3 * 3 + 5 * 12 + 1
    assert compiled.wholes == ["outermost"]
    assert sorted(compiled.parts) == ["add", "add", "middle", "shared"]
    library = next(iter(middle.part.overloads.values())).library
    assert library.get_pointer_to_function("anything") == 0
    assert middle(2) == 69, "from Python it is a whole of its own"
    assert compiled.wholes == ["outermost", "middle"]
    assert sorted(compiled.parts) == ["add", "add", "middle", "shared"], "parts are there"


def test_an_array_of_another_shape_is_refused(compiled: Compiled) -> None:
    @counting()  # references: a slice is an array of its own
    def copy(source, target):  # type: ignore[no-untyped-def]
        target[1:] = source

    target = np.zeros(4)
    copy(np.arange(3.0), target)
    assert target.tolist() == [0.0, 0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="another shape"):
        copy(np.zeros(2), target)
    assert compiled.wholes == ["copy"]


# --- the store ---


def double(x):  # type: ignore[no-untyped-def]
    return 2 * x


def kept(folder: Path, function: Callable[..., Any] = double) -> Kernel:
    return Kernel(function, OPTIONS, folder)


def hits(kernel: Kernel) -> int:
    return sum(kernel.stats.cache_hits.values())


def test_every_signature_has_a_file_of_its_own(tmp_path: Path) -> None:
    """As a process that compiles at the same moment knows nothing of the other's."""
    first, second = kept(tmp_path), kept(tmp_path)
    assert (first(2), second(2.0)) == (4, 4.0)
    third = kept(tmp_path)
    assert (third(2), third(2.0), hits(third)) == (4, 4.0, 2)
    assert len(list(tmp_path.glob("double-*.nbc"))) == 2


def test_closures_of_one_text_are_told_apart(tmp_path: Path) -> None:
    def power(exponent: int, inner: Any) -> Kernel:
        def raised(x):  # type: ignore[no-untyped-def]
            return inner(x**exponent)

        return kept(tmp_path, raised)

    doubled, shifted = kept(tmp_path), adder(1)
    wanted = {(2, doubled): 18, (3, doubled): 54, (2, shifted): 10}
    for _ in range(2):
        for (exponent, inner), value in wanted.items():
            assert power(exponent, inner)(3) == value
    assert len(list(tmp_path.glob("raised-*.nbc"))) == 3, "found again the second time"


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(("another key", ()))])
def test_a_file_that_is_not_the_kernels_is_replaced(tmp_path: Path, content: bytes) -> None:
    assert kept(tmp_path)(2) == 4
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    again = kept(tmp_path)
    assert (again(2), hits(again)) == (4, 0)
    last = kept(tmp_path)
    assert (last(2), hits(last)) == (4, 1)


def test_where_nothing_can_be_written_kernels_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert kept(tmp_path / "file" / "folder")(2) == 4


class Interrupted(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timer here")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_while_llvm_is_at_work(tmp_path: Path) -> None:
    """Python handles it in the callback that takes the machine code, and numba had none to save:
    'no compiled object yet'."""
    seen = []

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "_raw_object_cache_notify":
                seen.append(number)
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise Interrupted
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        whole = kept(tmp_path)
        assert whole(2) == 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen, "the signal came elsewhere"
    assert not list(tmp_path.iterdir())
    again = kept(tmp_path)
    assert (again(2), hits(again), len(list(tmp_path.iterdir()))) == (4, 0, 1)
