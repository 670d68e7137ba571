"""Which layer can be attacked, bounded, proved and certified: tried, and held against the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import qll
from qll.bounds.modules import module_bounds
from qll.errors import NetworkError
from qll.kernels.network import plan_network
from qll.networks import layers
from qll.networks.activations import ACTIVATIONS
from qll.networks.onnx_reader import OPERATORS
from qll.networks.torch_operators import FUNCTIONS, METHODS, MODULES
from qll.verify.verdict import Status

PAGE = Path(__file__).parent.parent / "docs" / "layers.md"
BEGIN, END = "<!-- layers: begin -->\n", "<!-- layers: end -->"
SHAPE = (1, 4, 4)


class Between(nn.Module):
    """A layer between a convolution and a linear one, of which a chain of layers may be made."""

    def __init__(self, call: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.first, self.call, self.last = nn.Conv2d(1, 2, 3, padding=1), call, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.first(x)).flatten(1))


def sequential(*layers: nn.Module, width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *layers, nn.Flatten(), nn.Linear(width, 2))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear, Conv2d, Flatten, ReLU": lambda: sequential(nn.ReLU()),
    "grouped, strided, dilated Conv2d": lambda: sequential(
        nn.ReLU(), nn.Conv2d(2, 2, 3, 1, 2, 2, groups=2)
    ),
    "BatchNorm2d": lambda: sequential(nn.BatchNorm2d(2), nn.ReLU()),
    "AvgPool2d": lambda: sequential(nn.ReLU(), nn.AvgPool2d(2), width=8),
    "MaxPool2d": lambda: sequential(nn.ReLU(), nn.MaxPool2d(2), width=8),
    "ZeroPad2d": lambda: sequential(nn.ZeroPad2d(1), nn.ReLU(), width=72),
    "residual sum": lambda: Between(lambda h: torch.relu(h) + h, 32),
    "concatenation": lambda: Between(lambda h: torch.cat([torch.relu(h), h], 1), 64),
    "transpose": lambda: Between(lambda h: torch.relu(h).permute(0, 2, 3, 1), 32),
    "LeakyReLU": lambda: sequential(nn.LeakyReLU(0.1)),
    "PReLU": lambda: sequential(nn.PReLU(2)),
    "ReLU6, Hardtanh, clamp": lambda: sequential(nn.ReLU6()),
    "abs": lambda: Between(torch.abs, 32),
    "Sigmoid": lambda: sequential(nn.Sigmoid()),
    "Tanh": lambda: sequential(nn.Tanh()),
    "Softplus": lambda: sequential(nn.Softplus()),
    "GELU": lambda: sequential(nn.GELU()),
    "SiLU": lambda: sequential(nn.SiLU()),
    "HardSwish": lambda: sequential(nn.Hardswish()),
    "exp": lambda: Between(lambda h: torch.exp(0.1 * h), 32),
    "maximum, minimum of two": lambda: Between(
        lambda h: torch.maximum(h, torch.minimum(h * 0.5, torch.relu(h))), 32
    ),
    "slices": lambda: Between(lambda h: torch.relu(h)[:, :, 1:3], 16),
    "square, product of two values": lambda: Between(lambda h: h * torch.relu(h) + h**2, 32),
    "powers 1/2, -1/2, -1; division": lambda: Between(
        lambda h: h / (1.0 + h * h) + torch.sqrt(torch.sigmoid(h) + 1.0), 32
    ),
    "matrix product of two values, attention": lambda: Between(
        lambda h: torch.softmax(h @ h.transpose(2, 3), 3) @ h, 32
    ),
    "Softmax": lambda: nn.Sequential(*sequential(nn.ReLU()), nn.Softmax(1)),
    "LayerNorm": lambda: sequential(nn.LayerNorm((4, 4)), nn.ReLU()),
}


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    module = LAYERS[name]()
    module(torch.rand(16, *SHAPE))  # statistics of a batch norm
    return module.eval()


def cells(name: str) -> list[str]:
    module, x = built(name), torch.full((1, *SHAPE), 0.5)
    found = ["torch" if isinstance(plan_network(module, SHAPE), str) else "compiled"]
    for kind in ("interval", "crown"):
        try:
            low, high = module_bounds(module, x - 0.1, x + 0.1, kind=kind).outputs_box()  # type: ignore[arg-type]
        except NetworkError:
            found.append("-")
            continue
        points = x + 0.2 * torch.rand(2000, *SHAPE) - 0.1
        with torch.no_grad():
            outputs = module(points)
        assert ((outputs >= low - 1e-5) & (outputs <= high + 1e-5)).all()
        found.append("yes")
    rule = qll.parse("outputs 2\nforall x in ball(x0, 0.02): y[0] - y[1] <= 100")
    try:
        (plain,) = qll.verify(rule, module, x, timeout=20)
        (checked,) = qll.verify(rule, module, x, timeout=20, certified=True)
    except NetworkError:
        return [*found, "-", "-"]
    assert plain.status is Status.VERIFIED
    return [*found, "yes", "yes" if checked.status is Status.VERIFIED else "-"]


def table() -> str:
    head = ["layer", "attack", "interval bounds", "linear bounds", "proof", "certificate"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join([name, *cells(name)]) + " |" for name in LAYERS]
    return "\n".join(lines) + "\n"


def hold(request: pytest.FixtureRequest, begin: str, end: str, found: str) -> None:
    """The part of the page between two marks, or what it should be now."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(before + begin + found + end + rest.split(end)[1], encoding="utf-8")
    else:
        assert rest.split(end)[0] == found, "run pytest --update-goldens and read docs/layers.md"


def test_the_page_says_what_each_layer_can_do(request: pytest.FixtureRequest) -> None:
    hold(request, BEGIN, END, table())


def test_the_page_has_the_names_of_each_layer(request: pytest.FixtureRequest) -> None:
    lines = ["| layer | ONNX | torch |", "|---|---|---|"]
    for name, operators, torch_names in stated():
        # A method is called as its function, which is named once.
        kept = dict.fromkeys(n.removeprefix("Tensor.").removeprefix("nn.") for n in torch_names)
        said = [", ".join(f"`{n}`" for n in names) for names in (operators, kept)]
        lines.append(f"| {name} | {said[0]} | {said[1]} |")
    names = "<!-- names: begin -->\n", "<!-- names: end -->"
    hold(request, *names, "\n".join(lines) + "\n")


# Names that are read and stand for no layer: nothing is computed, or only sizes are.
NO_LAYER = {"Identity", "Dropout", "Cast", "Shape", "Gather"}
NO_LAYER |= {"Dropout1d", "Dropout2d", "Normalize", "dropout", "size", "contiguous", "clone"}
# Of activations with settings, which the readers take apart, and Python's own operators.
WITH_SETTINGS = {
    *("ReLU6", "Hardtanh", "LeakyReLU", "Softplus", "GELU", "relu6", "hardtanh", "leaky_relu"),
    *("softplus", "gelu", "clamp", "clip", "reciprocal", "sqrt", "rsqrt", "pow"),
}


def stated() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Every layer and activation with its names in ONNX and in torch."""
    records = [getattr(layers, name) for name in layers.__all__]
    found = [r for r in records if isinstance(r, type) and issubclass(r, layers.Layer)]
    found += [ACTIVATIONS[name] for name in ACTIVATIONS]  # type: ignore[list-item]
    return [(r.__name__, r.onnx, r.in_torch) for r in found if r.onnx or r.in_torch]


def test_every_name_that_is_read_stands_with_its_layer() -> None:
    known = {name for _, operators, _ in stated() for name in operators}
    assert set(OPERATORS) - NO_LAYER == known
    things = {name.rpartition(".")[2] for _, _, torch_names in stated() for name in torch_names}
    read = {kind.__name__ for kind in MODULES} | set(METHODS)
    read |= {f.__name__ for f in FUNCTIONS if f.__module__ not in ("_operator", "builtins")}
    assert read - NO_LAYER - WITH_SETTINGS == things


def test_every_activation_is_on_the_page() -> None:
    text = "".join(LAYERS).lower().replace(" ", "")
    names = {"clip": "clamp", **{name: name.replace("-", "") for name in ACTIVATIONS}}
    names["clip"] = "clamp"
    for name in ACTIVATIONS:
        assert names[name] in text, name
