"""From a torch module to the plan of its kernels, or the reason why there is none."""

from __future__ import annotations

import torch
from torch import nn

from qll.errors import NetworkError
from qll.kernels.chain import build_plan
from qll.kernels.graph import plan_graph
from qll.kernels.plan import NetworkPlan
from qll.kernels.recognise import Shape
from qll.kernels.spans import spans_of
from qll.networks.torch_reader import Trace


def plan_network(module: nn.Module, input_shape: Shape) -> NetworkPlan | str:
    """The plan of a module; for one that the kernels do not take, which layer keeps it off them."""
    spans = spans_of(module, input_shape)
    if spans is not None:
        return build_plan(spans)
    if any(t.device.type != "cpu" for t in (*module.parameters(), *module.buffers())):
        return "weights that are not on the CPU"
    try:
        trace = Trace(module, tuple(input_shape))
        if trace.dtype != torch.float32:
            return f"weights of type {trace.dtype}"
        graph = trace.read()
        if len(graph.output_shape) != 2 or graph.output_shape[0] != 1:
            return f"an output of shape {graph.output_shape[1:]}"
        return plan_graph(trace.read)
    except NetworkError as error:
        place = "" if error.where is None else f" in {error.where}"
        return f"{error.found}{place}: {error.what}"
