"""How kernels are compiled: what one calls becomes a part of it, and only whole ones are kept.

numba compiles every function as if it were called from Python: it optimises it, makes machine code
and a wrapper for its arguments, and does all of it again for what it calls, at every level of
calls. Here a function that another kernel calls is a `Part`: it is typed and lowered once, linked
into those that call it, and optimised there. Machine code is made for what Python calls alone, and
that alone is kept on disk (`Store`).

This module imports numba; what it uses of it beyond its documented interface is held by
``tests/test_kernels_dispatch.py``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba import types
from numba.core.caching import IndexDataCacheFile, _Cache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.extending import overload
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.types.misc import unliteral
from numba.np import arrayobj

from qll.kernels.announce import counted

_SHAPE_ERROR = "raise_with_shape_context"  # in numba.np.arrayobj

# --- errors of shapes ---


def _unequal_shapes(source: Any, target: Any) -> None:
    """Where an array that is assigned to a slice does not fit; a stub, for numba to replace."""


@overload(_unequal_shapes)
def _raise_unequal_shapes(source: Any, target: Any) -> Any:
    def raise_error(source: Any, target: Any) -> None:
        raise ValueError("an array is assigned to a slice of another shape")

    return raise_error


@contextmanager
def _brief_shape_errors() -> Iterator[None]:
    """numba's own error names the shapes. Its text is put together by some fifty compiled
    functions on strings, a quarter of what a kernel with such an assignment takes to compile.

    To be entered while the compiler's lock is held.
    """
    saved = getattr(arrayobj, _SHAPE_ERROR, None)
    if saved is None:  # older versions have the brief one
        yield
        return
    setattr(arrayobj, _SHAPE_ERROR, _unequal_shapes)
    try:
        yield
    finally:
        setattr(arrayobj, _SHAPE_ERROR, saved)


# --- code that is only ever linked into other code ---


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code without optimisation and without machine code of its own."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):  # type: ignore[misc]
    _name = "qll_part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # Callers find a function's code by what Python would call: here by an object of its own.
        key = object()
        lowered = state["cr"]
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_PartLowering, text) if step is NativeLowering else (step, text)
            for step, text in passes.passes
        ]
        passes._finalized = False
        passes.finalize()
        return [passes]


class Part(CPUDispatcher):  # type: ignore[misc]
    """A kernel as other kernels see it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        alone = {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        super().__init__(function, {}, alone, pipeline_class=_PartCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # A number that the caller states is not a function of its own.
        plain = {name: unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(unliteral(kind) for kind in args), plain)

    def add_overload(self, result: Any) -> None:
        self.overloads[tuple(result.signature.args)] = result


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A compiled function: called from Python it has machine code of its own, from other kernels
    it becomes a part of theirs."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], folder: Path | None
    ) -> None:
        options = {"nopython": True, "boundscheck": None, **options}
        super().__init__(function, {}, {**options, "no_cfunc_wrapper": True})
        self.part = Part(function, options)
        if folder is not None:
            self._cache = Store(function, folder)

    def compile(self, sig: Any) -> Any:
        with global_compiler_lock, _brief_shape_errors(), counted():
            return super().compile(sig)

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.part)


def callback(function: Callable[..., None], signature: Any, folder: Path | None) -> Any:
    """A function to be called by its address."""
    found: Any = CFunc(
        function, (signature.args, signature.return_type), {}, {"error_model": "numpy"}
    )
    if folder is not None:
        found._cache = Store(function, folder)
    with global_compiler_lock, counted():
        found.compile()
    return found


# --- machine code on disk ---


def _identity(function: Callable[..., Any]) -> str | None:
    """What tells a function from others of its folder, which stands for all their sources; None if
    it closes over something that has no name."""
    parts = [function.__module__, function.__qualname__, str(function.__code__.co_firstlineno)]
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        if isinstance(value, Dispatcher):
            inside = _identity(value.py_func)
        else:
            inside = repr(value) if isinstance(value, bool | int | float | str) else None
        if inside is None:
            return None
        parts.append(inside)
    return repr(parts)


class Store(_Cache):  # type: ignore[misc]
    """The machine code of one function: a file for each signature, of a name that follows from it.

    numba's own store numbers such files and keeps an index of them, which two processes that
    compile at once read and write one over the other: one's index may then name the other's code.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._folder, self._name = folder, function.__name__
        self._identity = _identity(function)
        # It writes and reads single files for us; its index is not used.
        self._files = IndexDataCacheFile(str(folder), function.__name__, None)

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def enable(self) -> None:
        pass

    def disable(self) -> None:
        self._identity = None

    def flush(self) -> None:
        for file in self._folder.glob(f"{self._name}-*.nbc"):
            file.unlink(missing_ok=True)

    def _key(self, signature: Any, codegen: Any) -> str:
        versions = (sys.implementation.cache_tag, numba.__version__, llvmlite.__version__)
        return repr((versions, codegen.magic_tuple(), self._identity, str(signature)))

    def _file(self, key: str) -> str:
        return f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        if self._identity is None:
            return None
        key = self._key(sig, target_context.codegen())
        try:
            stored, payload = self._files._load_data(self._file(key))
        except Exception:  # no file, or a spoilt one, which may raise anything
            return None
        return CompileResult._rebuild(target_context, *payload) if stored == key else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep it; not where it cannot be kept, and that is no error: it runs all the same.

        LLVM hands the machine code to a callback, in which Python also raises what a signal asked
        for while LLVM was at work. ctypes drops that exception, and the machine code with it.
        """
        library = data.library
        if self._identity is None or library.has_dynamic_globals or not library._compiled_object:
            return
        key = self._key(sig, data.codegen)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files._save_data(self._file(key), (key, data._reduce()))
        except OSError:
            return
