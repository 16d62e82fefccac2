"""The base of layer kinds; a layer imports this package alone, as `L`.

    from tfe_bench.models.layers import base as L
    from tfe_bench.models.layers.base import Array, Options, Shape, Shapes

    class Relu(L.Kind): ...

The kinds are the modules of models/layers, which base/registry.py discovers.
"""

from tfe_bench.models.layers.base import masks as masks
from tfe_bench.models.layers.base import planning as planning
from tfe_bench.models.layers.base import scales as scales
from tfe_bench.models.layers.base.calls import KerasOperation as KerasOperation
from tfe_bench.models.layers.base.calls import Operand as Operand
from tfe_bench.models.layers.base.calls import TensorValue as TensorValue
from tfe_bench.models.layers.base.calls import add_reduction_layer as add_reduction_layer
from tfe_bench.models.layers.base.calls import check_same_rank as check_same_rank
from tfe_bench.models.layers.base.calls import read_constant as read_constant
from tfe_bench.models.layers.base.calls import register_reader as register_reader
from tfe_bench.models.layers.base.checks import InvalidOption as InvalidOption
from tfe_bench.models.layers.base.checks import broadcast_shapes as broadcast_shapes
from tfe_bench.models.layers.base.checks import check_bias as check_bias
from tfe_bench.models.layers.base.checks import check_image as check_image
from tfe_bench.models.layers.base.checks import check_options as check_options
from tfe_bench.models.layers.base.checks import check_single_input as check_single_input
from tfe_bench.models.layers.base.checks import check_value as check_value
from tfe_bench.models.layers.base.checks import check_weights as check_weights
from tfe_bench.models.layers.base.checks import is_padding as is_padding
from tfe_bench.models.layers.base.checks import is_real as is_real
from tfe_bench.models.layers.base.checks import is_whole as is_whole
from tfe_bench.models.layers.base.checks import read_axis as read_axis
from tfe_bench.models.layers.base.checks import read_pair as read_pair
from tfe_bench.models.layers.base.kind import Kind as Kind
from tfe_bench.models.layers.base.kind import NotPositionwise as NotPositionwise
from tfe_bench.models.layers.base.kind import Observer as Observer
from tfe_bench.models.layers.base.kind import check_fractional_bits as check_fractional_bits
from tfe_bench.models.layers.base.kind import get_common_axis as get_common_axis
from tfe_bench.models.layers.base.layer import Array as Array
from tfe_bench.models.layers.base.layer import FixedPointFormat as FixedPointFormat
from tfe_bench.models.layers.base.layer import LayerSpec as LayerSpec
from tfe_bench.models.layers.base.layer import Options as Options
from tfe_bench.models.layers.base.layer import PlacedLayer as PlacedLayer
from tfe_bench.models.layers.base.layer import Shape as Shape
from tfe_bench.models.layers.base.layer import Shapes as Shapes
from tfe_bench.models.layers.base.layout import accept_channels_first as accept_channels_first
from tfe_bench.models.layers.base.layout import add_reshape_layer as add_reshape_layer
from tfe_bench.models.layers.base.layout import add_transpose_layer as add_transpose_layer
from tfe_bench.models.layers.base.layout import convert_layer_axis_last as convert_layer_axis_last
from tfe_bench.models.layers.base.layout import parse_padding_sides as parse_padding_sides
from tfe_bench.models.layers.base.operations import Operations as Operations
from tfe_bench.models.layers.base.passes import FACTOR_BITS as FACTOR_BITS
from tfe_bench.models.layers.base.passes import ForwardContext as ForwardContext
from tfe_bench.models.layers.base.passes import Gradients as Gradients
from tfe_bench.models.layers.base.passes import TrainingPrecision as TrainingPrecision
from tfe_bench.models.layers.base.passes import add_aligned as add_aligned
from tfe_bench.models.layers.base.passes import convert_scale as convert_scale
from tfe_bench.models.layers.base.passes import find_negative_log2 as find_negative_log2
from tfe_bench.models.layers.base.passes import multiply_public as multiply_public
from tfe_bench.models.layers.base.passes import reshape_value as reshape_value
from tfe_bench.models.layers.base.passes import sum_axes as sum_axes
from tfe_bench.models.layers.base.passes import sum_to_shape as sum_to_shape
from tfe_bench.models.layers.base.planning import FEWEST_BITS as FEWEST_BITS
from tfe_bench.models.layers.base.planning import FEWEST_WEIGHT_BITS as FEWEST_WEIGHT_BITS
from tfe_bench.models.layers.base.planning import MOST_COMPARED as MOST_COMPARED
from tfe_bench.models.layers.base.planning import MOST_FACTOR_BITS as MOST_FACTOR_BITS
from tfe_bench.models.layers.base.planning import MOST_WEIGHT_BITS as MOST_WEIGHT_BITS
from tfe_bench.models.layers.base.planning import PRODUCT_BITS as PRODUCT_BITS
from tfe_bench.models.layers.base.planning import SIGNIFICANT_BITS as SIGNIFICANT_BITS
from tfe_bench.models.layers.base.planning import LayerFormatPlanner as LayerFormatPlanner
from tfe_bench.models.layers.base.planning import find_magnitude_exponent as find_magnitude_exponent
from tfe_bench.models.layers.base.public_randomness import draw_dropout_mask as draw_dropout_mask
from tfe_bench.models.layers.base.public_randomness import draw_layer_noise as draw_layer_noise
from tfe_bench.models.layers.base.reading import CallValue as CallValue
from tfe_bench.models.layers.base.reading import LayerCall as LayerCall
from tfe_bench.models.layers.base.reading import Reader as Reader
from tfe_bench.models.layers.base.reading import UnsupportedLayer as UnsupportedLayer
from tfe_bench.models.layers.base.reading import canonicalize_axis as canonicalize_axis
from tfe_bench.models.layers.base.reading import read_weights as read_weights
from tfe_bench.models.layers.base.windows import GlobalPooling as GlobalPooling
from tfe_bench.models.layers.base.windows import WindowPooling as WindowPooling
from tfe_bench.models.layers.base.windows import iterate_window_cells as iterate_window_cells
from tfe_bench.models.layers.base.windows import parse_layer_windows as parse_layer_windows
from tfe_bench.models.layers.base.windows import sum_window_cells as sum_window_cells
