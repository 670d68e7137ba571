"""Layers: one class in one file, by its shape, its exact steps and what it does to entries."""

from qll.networks.layers.apply import Apply
from qll.networks.layers.average_pool import AveragePool
from qll.networks.layers.base import Indices, Layer, Shape, positions
from qll.networks.layers.batch_norm import BatchNorm
from qll.networks.layers.concat import Concat
from qll.networks.layers.constant import Constant
from qll.networks.layers.convolution import Convolution
from qll.networks.layers.extremum import Extremum
from qll.networks.layers.layer_norm import LayerNorm
from qll.networks.layers.linear import Linear
from qll.networks.layers.matrix_product import MatrixProduct
from qll.networks.layers.max_pool import MaxPool
from qll.networks.layers.mean import Mean
from qll.networks.layers.normalise import Normalise
from qll.networks.layers.pad import Pad
from qll.networks.layers.parametric_relu import ParametricRelu
from qll.networks.layers.product import Product
from qll.networks.layers.rearrange import Rearrange
from qll.networks.layers.reshape import Reshape
from qll.networks.layers.scale import Scale
from qll.networks.layers.slice import Slice
from qll.networks.layers.softmax import Softmax
from qll.networks.layers.sum import Sum
from qll.networks.layers.transpose import Transpose

__all__ = [
    "Apply",
    "AveragePool",
    "BatchNorm",
    "Concat",
    "Constant",
    "Convolution",
    "Extremum",
    "Indices",
    "Layer",
    "LayerNorm",
    "Linear",
    "MatrixProduct",
    "MaxPool",
    "Mean",
    "Normalise",
    "Pad",
    "ParametricRelu",
    "Product",
    "Rearrange",
    "Reshape",
    "Scale",
    "Shape",
    "Slice",
    "Softmax",
    "Sum",
    "Transpose",
    "positions",
]
