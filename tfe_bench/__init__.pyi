"""The public names, once each: what type checkers read, `tfe_bench.NAME` loads and docs list."""
# ruff: noqa: I001 (one statement for each module)

from tfe_bench.cluster.jobs import (
    Context as Context,
    InputSpec as InputSpec,
    Program as Program,
)
from tfe_bench.cluster.requests import (
    JobResult as JobResult,
    PrivateInput as PrivateInput,
)
from tfe_bench.cluster.simulate import (
    Simulation as Simulation,
    simulate as simulate,
)
from tfe_bench.arrays.folding import foldl as foldl
from tfe_bench.clusters import Client as Client, Cluster as Cluster, LocalCluster as LocalCluster
from tfe_bench.models.inference.generation import generate as generate
from tfe_bench.models.inference.private import PrivateModel as PrivateModel, convert as convert
from tfe_bench.private_tables import tables as tables
from tfe_bench.models.training.trainable import Trainable as Trainable, trainable as trainable
from tfe_bench.protocols.session.party import Party as Party
from tfe_bench.protocols.api.bitwise import (
    bit_extract as bit_extract,
    bitwise_and as bitwise_and,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    invert as invert,
    left_shift as left_shift,
    pack_bits as pack_bits,
    popcount as popcount,
    right_shift as right_shift,
    unpack_bits as unpack_bits,
)
from tfe_bench.protocols.api.contractions import (
    einsum as einsum,
    matvec as matvec,
    tensordot as tensordot,
)
from tfe_bench.protocols.api.elementary import (
    atan2 as atan2,
    cos as cos,
    erf as erf,
    exp as exp,
    log as log,
    polyval as polyval,
    reciprocal as reciprocal,
    rsqrt as rsqrt,
    sin as sin,
    sqrt as sqrt,
)
from tfe_bench.protocols.api.indexing import (
    gather as gather,
    one_hot as one_hot,
    scatter_nd as scatter_nd,
    tensor_scatter_nd_update as tensor_scatter_nd_update,
)
from tfe_bench.protocols.api.neural import (
    avg_pool2d as avg_pool2d,
    conv2d as conv2d,
    depthwise_conv2d as depthwise_conv2d,
    gelu as gelu,
    leaky_relu as leaky_relu,
    max_pool2d as max_pool2d,
    relu as relu,
    relu_derivative as relu_derivative,
    scaled_dot_product_attention as scaled_dot_product_attention,
    sigmoid as sigmoid,
    silu as silu,
    softmax as softmax,
    tanh as tanh,
)
from tfe_bench.protocols.api.operators import (
    abs as abs,
    add as add,
    divide as divide,
    matmul as matmul,
    multiply as multiply,
    negative as negative,
    square as square,
    subtract as subtract,
)
from tfe_bench.protocols.api.pooling import (
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_max_pool2d as adaptive_max_pool2d,
    max_pool_with_argmax as max_pool_with_argmax,
)
from tfe_bench.protocols.api.powers import pow as pow
from tfe_bench.protocols.api.predicates import (
    cast as cast,
    equal as equal,
    greater as greater,
    greater_equal as greater_equal,
    in_range as in_range,
    less as less,
    less_equal as less_equal,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    not_equal as not_equal,
    where as where,
)
from tfe_bench.protocols.api.ranking import (
    argmax as argmax,
    argmin as argmin,
    clip_by_value as clip_by_value,
    maximum as maximum,
    median as median,
    minimum as minimum,
    quantile as quantile,
    reduce_max as reduce_max,
    reduce_min as reduce_min,
    sign as sign,
    sort as sort,
    top_k as top_k,
)
from tfe_bench.protocols.api.rounding import (
    ceil as ceil,
    floor as floor,
    floor_div as floor_div,
    floordiv as floordiv,
    floormod as floormod,
    mod as mod,
    round as round,
)
from tfe_bench.protocols.api.scans import (
    cummax as cummax,
    cumprod as cumprod,
    reduce_prod as reduce_prod,
)
from tfe_bench.protocols.api.statistics import (
    bincount as bincount,
    histogram_fixed_width as histogram_fixed_width,
    norm as norm,
    reduce_std as reduce_std,
    reduce_variance as reduce_variance,
)
from tfe_bench.protocols.api.tensors import (
    add_n as add_n,
    bitcast as bitcast,
    concat as concat,
    pad as pad,
    reduce_mean as reduce_mean,
    reveal as reveal,
    stack as stack,
    unstack as unstack,
)
from tfe_bench.protocols.ring.reductions import (
    cumsum as cumsum,
    reduce_sum as reduce_sum,
)
from tfe_bench.protocols.ring.shapes import (
    broadcast_to as broadcast_to,
    expand_dims as expand_dims,
    reshape as reshape,
    reverse as reverse,
    slice as slice,
    split as split,
    squeeze as squeeze,
    tile as tile,
    transpose as transpose,
)
from tfe_bench.protocols.session.fixedpoint import (
    FixedPoint as FixedPoint,
)
from tfe_bench.protocols.session.sharing import (
    Shared as Shared,
)

__all__: list[str]
__version__: str
