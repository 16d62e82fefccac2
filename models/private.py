"""From a Keras model to private predictions: `convert`, and what it gives."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.requests import AnyInput, LazyInput, PrivateInput
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models import (
    agreement,
    bound_analysis,
    calibration,
    from_keras,
    optimize,
    plaintext,
    precision,
    verify,
    weights,
)
from tfe_bench.models import graph as graphs
from tfe_bench.models.calibration import MIN_STEPS
from tfe_bench.models.graph import Array, Graph
from tfe_bench.models.kinds import registry
from tfe_bench.models.layers.series import FourierSeries
from tfe_bench.models.programs import predict as program
from tfe_bench.models.summary import Summary, summarize_plan
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.requests import JobResult

# How smooth activations are computed.
ACTIVATIONS = ("exact", "series")


class PrivateModel:
    """A model that is ready to be shared; nothing has left this process yet.

    Attributes:
        plan: the architecture and its fixed point: public.
        graph: the optimized layers, whose weights are the model owner's secret.
        bounds: the largest magnitude that each input may have.
        calibrated: whether ranges are known; else each layer takes |v| < 2^14 (at 16 bits).
        samples: some of the public inputs from which they are known, by name, or none.
    """

    def __init__(
        self,
        plan: calibration.Plan,
        bounds: Mapping[str, float],
        calibrated: bool,
        samples: Mapping[str, Array] | None = None,
        cut: Callable[[str], PrivateModel] | None = None,
    ) -> None:
        self._cut = cut
        self.plan = plan
        self.samples = samples
        self.graph = plan.graph
        self.bounds = {name: float(bounds[name]) for name in plan.graph.inputs}
        self.calibrated = calibrated

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.graph.name

    def until(self, layer: str) -> PrivateModel:
        """The part of the model that ends with a layer: what makes its features.

        Args:
            layer: its name in Keras ("model/layer" of a model within the model).

        Raises:
            UsageError: there is none, or the model was not converted here.
        """
        if self._cut is None:
            raise UsageError("A model is cut where it was converted: convert(model).until(layer).")
        return self._cut(layer)

    @property
    def fractional_bits(self) -> int:
        """Fractional bits of the inputs and, where they fit, of all values."""
        return self.plan.fraction

    @property
    def rescaled(self) -> dict[str, int]:
        """Layers with fewer fractional bits, because their values are large."""
        return calibration.rescaled_layers(self.plan)

    def summary(self, profile: str = "local", batch: int = 1) -> Summary:
        """The layers with their predicted bytes, rounds and seconds; print it for the table.

        Of a model that was converted with samples also how far each layer's values are off on
        them, in fixed point, and a warning where that is more than 1 % of their range.

        Raises:
            UsageError: there is no such network profile.
        """
        if type(batch) is not int or batch < 1:
            raise UsageError(f"batch is a positive integer. Received: {batch!r}.")
        return summarize_plan(self.plan, profile, batch, self.errors)

    @functools.cached_property
    def errors(self) -> Mapping[str, precision.LayerError]:
        """How far the values of each layer are off on the samples; nothing without samples."""
        return precision.estimate_errors(self.plan, self.samples) if self.samples else {}

    def plain(self, images: Any) -> Any:
        """The outputs on public images, in float64: what private ones are compared with.

        Raises:
            UsageError: images that the model does not take.
        """
        return _structure_outputs(self.graph, plaintext.evaluate_graph(self.graph, images))

    def agreement(self, images: Any, private: Any) -> agreement.Agreement:
        """How far private outputs for some images are from the public ones."""
        return agreement.compare_outputs(self.plain(images), private)

    # ---- what is shared

    def shared_weights(self) -> dict[str, AnyInput]:
        """The model owner's inputs, each encoded when it leaves.

        Raises:
            RangeError: a weight that does not fit; the layer is named.
        """
        weight_inputs: dict[str, AnyInput] = {}
        for i, part in enumerate(weights.weight_parts(self.plan)):
            weights.check_magnitude(part)
            encode = functools.partial(_encode_part, part)
            weight_inputs[weights.weight_input_name(i)] = LazyInput(
                part.shape, part.fractional_bits, encode
            )
        return weight_inputs

    def shared_inputs(self, images: Any) -> dict[str, AnyInput]:
        """The data owner's inputs.

        A warning names inputs whose values are all so small that fixed point holds them coarsely.

        Raises:
            UsageError: images that the model does not take.
            RangeError: values that are NaN or larger than the model's ranges allow.
        """
        job_inputs: dict[str, AnyInput] = {}
        arrays = plaintext.scale_owner_inputs(self.graph, images)
        for model_input, name in zip(
            self.graph.inputs, program.input_names(self.plan), strict=True
        ):
            array = arrays[model_input]
            # (not >, which NaN would pass)
            out_of_range = int((~(np.abs(array) <= self.bounds[model_input])).sum())
            if out_of_range:
                raise self._range_error(model_input, array, out_of_range)
            bits = self.plan.fraction_of(model_input)
            largest = float(np.abs(array).max(initial=0.0))
            if not self.calibrated and 0 < largest < MIN_STEPS * 2.0**-bits:
                warnings.warn(
                    f"The input {model_input!r} has no value beyond {largest:.2g}, of which {bits} "
                    f"fractional bits make {round(largest * 2.0**bits)} steps. Convert the model "
                    "with samples of such values, which plans finer steps, or scale the values.",
                    stacklevel=2,
                )
            job_inputs[name] = PrivateInput(FixedPoint(bits).encode(array), bits)
        return job_inputs

    def _range_error(self, name: str, array: Array, out_of_range: int) -> RangeError:
        """What is said of an input that leaves its range: how many, and not which."""
        if unknown := int((~np.isfinite(array)).sum()):
            return RangeError(
                f"The input {name!r} has values that are NaN or infinite. Received: {unknown} of "
                f"{array.size}. Fill in what is missing."
            )
        first = "images" if len(self.graph.inputs[name]) == 3 else "values"
        scaled = " after the model's own Rescaling" if name in self.graph.scaling else ""
        return RangeError(
            f"The input {name!r} has values outside of the model's range{scaled}, "
            f"|v| <= {self.bounds[name]:g}. Received: {out_of_range} of {array.size}. Scale the "
            f"{first} as the model was trained, or convert it with larger ranges."
        )

    def parameters(
        self, profile: str = "local", batch: int | None = None, check_range: bool | None = False
    ) -> dict[str, Any]:
        """Parameters of a job of the program "predict".

        Args:
            batch, check_range: as for `asked`.
        """
        return {"plan": self.plan.header(), **self.asked(profile, batch, check_range)}

    def asked(
        self, profile: str = "local", batch: int | None = None, check_range: bool | None = None
    ) -> dict[str, Any]:
        """What a request for predictions says besides the model.

        Args:
            batch: samples of one graph; None: as many as program.default_batch says.
            check_range: have the workers find out, without learning it, whether a value left the
                range that the model was planned for; None: where the plan admits it.

        Raises:
            UsageError: the values of this model cannot all be checked.
        """
        if check_range:
            bound_analysis.check_monitorable(self.plan)
        elif check_range is None:
            try:
                bound_analysis.check_monitorable(self.plan)
                check_range = True
            except UsageError:
                check_range = False
        options = {"profile": profile, "repeat": 1, "warm_up": 0, "check_range": check_range}
        return options if batch is None else {**options, "batch": batch}

    def left_range(self, result: JobResult) -> Array | None:
        """For each sample of a job whether a value left its range; None if it was not asked for."""
        flags = result.outputs.get(program.RANGE)
        return None if flags is None else np.asarray(flags != 0)

    def decode(self, result: JobResult, withhold: bool = True) -> Any:
        """The outputs of a job as reals: an array, or as the model gives several, a list or a dict.

        Args:
            withhold: give none where a value left its range.

        Raises:
            RangeError: one did, in the samples that it counts; its `outputs` are those of all
                samples, with NaN in place of these.
        """
        out_of_range = self.left_range(result)
        decoded = [
            FixedPoint(result.fractional_bits[name]).decode(result.outputs[name])
            for name in program.output_names(self.plan)
        ]
        withholds = withhold and out_of_range is not None and bool(out_of_range.any())
        if withholds:
            for value in decoded:
                value[out_of_range] = np.nan
        outputs = _structure_outputs(self.graph, plaintext.finish_outputs(self.graph, decoded))
        if not withholds or out_of_range is None:
            return outputs
        # how many, and not which: an error may end in a log
        error = RangeError(
            "Values left the range that the model was planned for, so that the outputs of "
            f"{int(out_of_range.sum())} of {out_of_range.size} samples may be wrong. They are withheld: convert "
            "the model with samples like these or a larger margin, give each sequence a step "
            "that is not masked, or ask with check_range=False. The other samples' outputs are "
            "the error's `outputs`, which have NaN in place of these."
        )
        error.outputs = outputs
        raise error

    def __repr__(self) -> str:
        inputs = {name: list(shape) for name, shape in self.graph.inputs.items()}
        return (
            f"PrivateModel({self.name!r}, {len(self.graph.layers)} layers, inputs={inputs}, "
            f"fractional_bits={self.fractional_bits}, calibrated={self.calibrated})"
        )


def _encode_part(part: weights.WeightPart) -> PrivateInput:
    return PrivateInput(weights.encode_part(part), part.fractional_bits)


def _structure_outputs(graph: Graph, outputs: list[Array]) -> Any:
    """Outputs as the model of Keras gives them: by name, or in order, or the one."""
    if graph.labels:
        return dict(zip(graph.labels, outputs, strict=True))
    return outputs[0] if len(outputs) == 1 else outputs


def check_activations(activations: str) -> None:
    """Refuses another way of computing activations.

    Raises:
        UsageError: it is none of ACTIVATIONS.
    """
    if activations not in ACTIVATIONS:
        raise UsageError(
            f"activations is one of {', '.join(ACTIVATIONS)}. Received: {activations!r}."
        )


def build_private_model(
    graph: Graph,
    samples: Any,
    stated_ranges: Any,
    fractional_bits: int,
    margin: float,
    merge: bool = True,
    activations: str = "exact",
) -> PrivateModel:
    """`convert` for a Graph; `merge` as `optimize.optimize` has it."""
    if samples is not None and stated_ranges is not None:
        raise UsageError("convert takes samples or ranges, not both.")
    if type(fractional_bits) is not int or not 8 <= fractional_bits <= 20:
        raise UsageError(f"A model has 8 to 20 fractional bits. Received: {fractional_bits!r}.")
    if not (isinstance(margin, (int, float)) and 1 <= margin <= 1024):
        raise UsageError(f"margin is a number from 1 to 1024. Received: {margin!r}.")
    check_activations(activations)
    optimized = optimize.optimize_graph(graph, merge)
    if activations == "series":
        optimized = graphs.replace_layers(
            optimized, [FourierSeries.replace_activation(x) for x in optimized.layers]
        )
    for x in optimized.layers:
        warning = registry.get_kind(x.op).describe_conversion_risk(
            x, [optimized.shapes[i] for i in x.inputs]
        )
        if warning:
            warnings.warn(warning, stacklevel=3)
    if samples is not None:
        samples = plaintext.check_model_inputs(optimized, samples)
        bounds = calibration.calibrate_ranges(optimized, samples, margin)
    else:
        default = calibration.default_bound(fractional_bits)
        bounds = calibration.declare_ranges(
            optimized, {} if stated_ranges is None else stated_ranges, default
        )
    final_plan = bound_analysis.add_reach(
        calibration.plan_fixed_point(optimized, bounds, fractional_bits), bounds
    )
    if vanishing_constants := calibration.find_vanishing(final_plan):
        warnings.warn(
            f"{graph.name!r} computes with numbers below the resolution of fixed point: "
            f"{'; '.join(vanishing_constants)}. What a logarithm or a quotient makes of small values differs "
            "from Keras there.",
            stacklevel=3,
        )
    public_samples = samples and {
        name: a[: precision.SAMPLES].copy() for name, a in samples.items()
    }

    def cut_model(layer: str) -> PrivateModel:
        part = graphs.subgraph_until(graph, layer)
        return build_private_model(
            part, samples, stated_ranges, fractional_bits, margin, merge, activations
        )

    return PrivateModel(
        final_plan,
        bounds,
        samples is not None or stated_ranges is not None,
        public_samples,
        cut_model,
    )


def convert(
    model: Any,
    samples: Any = None,
    ranges: Any = None,
    fractional_bits: int = 16,
    margin: float = calibration.MARGIN,
    activations: str = "exact",
    shapes: Mapping[str, Sequence[int]] | None = None,
    length: int | None = None,
) -> PrivateModel:
    """A Keras model, ready for private predictions; nothing is sent yet.

    Args:
        model: a Keras 3 Sequential or functional model, or the path of a .keras file.
        samples: a few public inputs, from which the range of every value is taken: comparisons
            get as narrow as they may, and values that are too large for 16 fractional bits get
            fewer.
        ranges: instead of samples, the largest |v|: a number, or numbers by layer.  Without
            either, each layer takes |v| < 2^14 (at 16 fractional bits); beyond, results are wrong.
        fractional_bits: 8 to 20.
        margin: private inputs may exceed the samples' ranges by this factor: every value may be so
            many times the largest on the samples, and as large as on the samples times +-margin.
        activations: "exact", off by an ulp or two, or "series": GELU, SiLU, softplus, mish,
            sigmoid, tanh and erf off by up to 2^-10, for a quarter to a half of the bytes and
            rounds (protocols/nn/series.py); also in recurrent layers, with a warning beyond 100
            steps.
        shapes: of inputs whose sizes the model leaves open, by name, without the batch: the
            length of a text.
        length: that of texts, for every size that the model leaves open and shapes does not say.

    Error: each layer rounds its values by less than 2^-16 and its weights by 2^-17 or 2^-15 of the
        largest, whichever is less; `PrivateModel.agreement` measures what becomes of that.
    Raises:
        UsageError: unsupported layers, all of them listed, arguments that do not fit, or a model
            that would give other values than in Keras (models/verify.py compares them).
        DataError: a file that is no Keras model.
        RangeError: weights that are NaN, or layers whose values fit no fixed point.
    """
    if isinstance(model, Graph):
        if shapes or length is not None:
            raise UsageError(
                f"The sizes of a Graph are known. Received: shapes={shapes!r}, length={length!r}."
            )
        return build_private_model(
            model, samples, ranges, fractional_bits, margin, activations=activations
        )
    reading = from_keras.read_model(model, shapes=shapes, length=length)
    private = build_private_model(
        reading.graph, samples, ranges, fractional_bits, margin, activations=activations
    )
    verify.compare_with_keras(reading, private.graph, samples)
    return private
