"""torch modules to the op graph, through a symbolic trace.

Modules are read as in evaluation mode (dropout passes, batch norm uses its running statistics).
What a function or module means is in ``torch_operators``; here is the walk.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import nn

from qll.errors import NetworkError
from qll.networks.graph import Graph, GraphBuilder
from qll.networks.hooks import is_altered
from qll.networks.layers import Shape
from qll.networks.models import Normalize
from qll.networks.torch_operators import FUNCTIONS, METHODS, MODULES, VIEWS
from qll.networks.torch_reading import Activation, TorchReading


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Normalize) or super().is_leaf_module(m, module_qualified_name)


def read_torch(module: nn.Module, *, input_shape: Shape) -> Graph:
    """The op graph of a module for inputs of ``input_shape`` (no batch axis)."""
    return Trace(module, input_shape).read()


class Trace:
    """A module traced once; ``read`` gives the op graph with the weights that it has then."""

    def __init__(self, module: nn.Module, input_shape: Shape) -> None:
        self.input_shape = input_shape
        self.dtype = parameter_type(module)
        # Weakly: a trace is kept with what is known of a module, and must not keep it alive.
        self._module = ref(module)
        # Tensors that a forward makes, which the tracer leaves at the root.
        self._made: dict[str, torch.Tensor] = {}
        root, modules = self._root()
        self._traced = _trace(root)
        self._made = {k: v for k, v in vars(root).items() if isinstance(v, torch.Tensor)}
        _refuse_unknown(self._traced, modules, MODULES, FUNCTIONS, METHODS)
        for node in self._traced.nodes:
            _refuse_shared_in_place(node, modules)

    def _root(self) -> tuple[nn.Module, dict[str, nn.Module]]:
        """A tracer steps into the root whatever it is, past its hooks: a root of our own."""
        module = self._module()
        if module is None:
            raise RuntimeError("the module of this trace is gone")
        root = nn.Sequential(OrderedDict(network=module))
        for name, tensor in self._made.items():
            setattr(root, name, tensor)
        return root, dict(root.named_modules())

    def read(self) -> Graph:
        root, modules = self._root()
        reading = TorchReading(GraphBuilder(self.input_shape, (1, *self.input_shape)), self.dtype)
        values: dict[Any, Any] = {}
        for node in self._traced.nodes:
            reading.place = node.name
            if node.op == "placeholder":
                values[node] = Activation(0)
                continue
            args = torch.fx.node.map_arg(node.args, values.__getitem__)
            kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
            if node.op == "output":
                return _finish(reading, args[0])
            if node.op == "get_attr":
                values[node] = _attribute(root, str(node.target))
                continue
            values[node] = _apply(reading, node, modules, args, kwargs)
        raise NetworkError(
            "the module returns nothing",
            expected="a tensor",
            found="none",
            fix="return the outputs from forward",
        )


def parameter_type(module: nn.Module) -> torch.dtype:
    tensors = [*module.parameters(), *module.buffers()]
    types = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if len(types) > 1 or not types <= {torch.float32, torch.float64}:
        raise NetworkError(
            "the module's weights are not of one type that we take",
            expected="all float32 (or all float64)",
            found=", ".join(sorted(str(kind) for kind in types)),
            fix="call module.float()",
        )
    return types.pop() if types else torch.float32


def _apply(
    reading: TorchReading, node: Any, modules: dict[str, nn.Module], args: Any, kwargs: Any
) -> Any:
    name = describe(node, modules)
    try:
        if node.op == "call_module":
            layer = modules[str(node.target)]
            return MODULES[type(layer)](reading, layer, *args, **kwargs)
        table: Any = FUNCTIONS if node.op == "call_function" else METHODS
        return table[node.target](reading, *args, **kwargs)
    except NetworkError as error:
        raise error.at(f"layer '{node.name}' ({name})") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise NetworkError(
            "a layer is called in a way that we do not take",
            expected=f"a plain use of {name}",
            found=str(error) or type(error).__name__,
            fix="write the layer with constant arguments, or replace it",
            where=f"layer '{node.name}' ({name})",
        ) from error


def describe(node: Any, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    return str(getattr(node.target, "__name__", node.target))


def _trace(module: nn.Module) -> Any:
    try:
        with evaluation_mode(module):
            return _Tracer().trace(module)
    except Exception as error:  # whatever the user's forward raises on a symbolic input
        raise NetworkError(
            "the module cannot be traced",
            expected="a forward method of one tensor, without branches on it",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="fix other inputs, remove control flow, or export to ONNX and load that",
        ) from error


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, then every submodule's own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _refuse_unknown(
    traced: Any, modules: dict[str, nn.Module], known: Any, functions: Any, methods: Any
) -> None:
    unknown = []
    for node in traced.nodes:
        taken = {
            "call_module": lambda n: (
                type(modules[str(n.target)]) in known and not is_altered(modules[str(n.target)])
            ),
            "call_function": lambda n: n.target in functions,
            "call_method": lambda n: n.target in methods,
        }.get(node.op)
        if taken is not None and not taken(node):
            hooked = node.op == "call_module" and is_altered(modules[str(node.target)])
            kind = describe(node, modules) + (
                " with a hook or a forward of its own" if hooked else ""
            )
            unknown.append(f"{kind} (layer '{node.name}')")
    if unknown:
        names = sorted({kind.__name__ for kind in known})
        raise NetworkError(
            "the module has layers that we do not take",
            expected=f"affine layers and activations: {', '.join(names)} and their functions",
            found=", ".join(unknown),
            fix="replace these layers, or cut the network before them",
        )


def _refuse_shared_in_place(node: Any, modules: dict[str, nn.Module]) -> None:
    """A trace records values, not storage: an in-place layer is read rightly only if nothing else
    looks at what it overwrites, directly or through a view."""
    if not _is_in_place(node, modules):
        return
    operand = node.args[0] if node.args else None
    while isinstance(operand, torch.fx.Node):
        if len(operand.users) > 1:
            raise NetworkError(
                f"the in-place layer '{node.name}' overwrites a tensor that is used elsewhere",
                expected="no other use of an overwritten tensor",
                found=", ".join(f"'{user.name}'" for user in operand.users),
                fix="use the layer without inplace=True",
            )
        operand = operand.args[0] if operand.target in VIEWS and operand.args else None


def _is_in_place(node: Any, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_function":
        bends = (torch.nn.functional.relu, torch.nn.functional.leaky_relu)
        positional = node.target in bends and True in node.args[1:]
        in_place = node.target in (operator.iadd, operator.isub)
        return bool(node.kwargs.get("inplace")) or positional or in_place
    return False


def _attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _finish(reading: TorchReading, output: Any) -> Graph:
    if not isinstance(output, Activation):
        raise NetworkError(
            "the module does not return one tensor",
            expected="one tensor that depends on the input",
            found=type(output).__name__,
            fix="return only the output that the property speaks of",
        )
    return reading.builder.finish(output.index)
