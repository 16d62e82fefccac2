"""Conversion of Keras models to private models: `convert` and `PrivateModel`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfe_bench.cluster.requests import AnyInput, LazyInput, PrivateInput
from tfe_bench.errors import RangeError, UsageError
from tfe_bench.models.convert import (
    bound_analysis,
    calibration,
    from_keras,
    optimize,
    plaintext,
    precision,
    verify,
)
from tfe_bench.models.convert import graph as graphs
from tfe_bench.models.convert.calibration import MIN_STEPS
from tfe_bench.models.convert.graph import Array, Graph
from tfe_bench.models.inference import agreement, weights
from tfe_bench.models.inference import request as requests
from tfe_bench.models.inference.summary import Summary, summarize_plan
from tfe_bench.models.layers.base import registry
from tfe_bench.protocols.session.fixedpoint import FixedPoint

if TYPE_CHECKING:
    from tfe_bench.cluster.requests import JobResult

# Methods for smooth activations.
ACTIVATIONS = ("exact", "series")


class PrivateModel:
    """A converted model that can be shared; nothing has left this process yet.

    Attributes:
        plan: the architecture and its fixed-point formats, which are public.
        graph: the optimized layers; their weights are the secret of the model owner.
        bounds: largest magnitude of each input.
        calibrated: whether ranges are known; otherwise each layer accepts |v| < 2^14 (at 16 bits).
        samples: some of the public inputs that gave the ranges, by name, or None.
    """

    def __init__(
        self,
        plan: calibration.ModelPlan,
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
        """Name of the model."""
        return self.graph.name

    def until(self, layer: str) -> PrivateModel:
        """Return the part of the model up to a layer, which computes its features.

        Args:
            layer: the layer's name in Keras ("model/layer" for a model within the model).

        Raises:
            UsageError: there is no such layer, or the model was not converted in this process.
        """
        if self._cut is None:
            raise UsageError(
                "A model can be cut only in the process that converted it: "
                "convert(model).until(layer).",
                code="not-converted",
                operation="until",
            )
        return self._cut(layer)

    @property
    def fractional_bits(self) -> int:
        """Fractional bits of the inputs and, if they fit, of all values."""
        return self.plan.fraction

    @property
    def rescaled(self) -> dict[str, int]:
        """Layers with fewer fractional bits, because their values are large."""
        return calibration.rescaled_layers(self.plan)

    def summary(self, profile: str = "local", batch: int = 1) -> Summary:
        """Return the layers with predicted bytes, rounds and seconds; print it to see a table.

        For a model that was converted with samples, the table includes the error of each layer's
        values on them in fixed point, and a warning for errors above 1 % of a layer's range.

        Raises:
            UsageError: the network profile is unknown.
        """
        if type(batch) is not int or batch < 1:
            raise UsageError(
                f"Expected a positive integer as batch. Received: {batch!r}.",
                code="number-out-of-range",
                operation="batch",
                received=batch,
            )
        return summarize_plan(self.plan, profile, batch, self.errors)

    @functools.cached_property
    def errors(self) -> Mapping[str, precision.LayerError]:
        """Estimated errors of each layer's values on the samples; empty without samples."""
        return precision.estimate_layer_errors(self.plan, self.samples) if self.samples else {}

    def plain(self, images: Any) -> Any:
        """Return the outputs for public images in float64, as a reference for private outputs.

        Raises:
            UsageError: the model does not accept the images.
        """
        return _structure_keras_outputs(self.graph, plaintext.evaluate_graph(self.graph, images))

    def agreement(self, images: Any, private: Any) -> agreement.Agreement:
        """Compare private outputs for some images with the plaintext outputs."""
        return agreement.compare_outputs(self.plain(images), private)

    # ---- inputs of jobs

    def shared_weights(self) -> dict[str, AnyInput]:
        """Return the model owner's inputs, each encoded when it is sent.

        Raises:
            RangeError: a weight cannot be encoded; the text names the layer.
        """
        weight_inputs: dict[str, AnyInput] = {}
        for i, part in enumerate(weights.weight_parts(self.plan)):
            weights.check_weight_magnitude(part)
            encode = functools.partial(_encode_weight_input, part)
            weight_inputs[weights.weight_input_name(i)] = LazyInput(
                part.shape, part.fractional_bits, encode
            )
        return weight_inputs

    def shared_inputs(self, images: Any) -> dict[str, AnyInput]:
        """Return the data owner's inputs.

        A warning names inputs whose values are all so small that fixed point holds them coarsely.

        Raises:
            UsageError: the model does not accept the images.
            RangeError: values are NaN or exceed the model's ranges.
        """
        job_inputs: dict[str, AnyInput] = {}
        arrays = plaintext.scale_owner_inputs(self.graph, images)
        for model_input, name in zip(
            self.graph.inputs, requests.prediction_input_names(self.plan), strict=True
        ):
            array = arrays[model_input]
            # not >, which is false for NaN
            out_of_range = int((~(np.abs(array) <= self.bounds[model_input])).sum())
            if out_of_range:
                raise self._range_error(model_input, array, out_of_range)
            bits = self.plan.fraction_of(model_input)
            largest = float(np.abs(array).max(initial=0.0))
            if not self.calibrated and 0 < largest < MIN_STEPS * 2.0**-bits:
                warnings.warn(
                    f"The input {model_input!r} has no value beyond {largest:.2g}; {bits} "
                    f"fractional bits divide this into {round(largest * 2.0**bits)} steps. "
                    "Convert the model with samples of such values, for finer steps, or scale "
                    "the values.",
                    stacklevel=2,
                )
            job_inputs[name] = PrivateInput(FixedPoint(bits).encode(array), bits)
        return job_inputs

    def _range_error(self, name: str, array: Array, out_of_range: int) -> RangeError:
        """Return the error for an input outside its range; it states how many values, not which."""
        if unknown := int((~np.isfinite(array)).sum()):
            return RangeError(
                f"The input {name!r} has values that are NaN or infinite. Received: {unknown} of "
                f"{array.size}. Fill in missing values.",
                code="not-finite",
                operation=name,
                received=unknown,
            )
        first = "images" if len(self.graph.inputs[name]) == 3 else "values"
        scaled = " after the model's own Rescaling" if name in self.graph.scaling else ""
        return RangeError(
            f"The input {name!r} has values outside of the model's range{scaled}, |v| <= "
            f"{self.bounds[name]:g}. Received: {out_of_range} of {array.size}. Scale the {first} "
            "as for the model's training, or convert it with larger ranges.",
            code="value-out-of-range",
            operation=name,
            received=out_of_range,
        )

    def parameters(
        self, profile: str = "local", batch: int | None = None, check_range: bool | None = False
    ) -> dict[str, Any]:
        """Return parameters for a job of the program "predict".

        Args:
            batch, check_range: as for `asked`.
        """
        return {"plan": self.plan.to_header(), **self.asked(profile, batch, check_range)}

    def asked(
        self, profile: str = "local", batch: int | None = None, check_range: bool | None = None
    ) -> dict[str, Any]:
        """Return the options of a prediction request, without the model.

        Args:
            batch: number of samples in one graph; None: request.default_batch.
            check_range: have the workers detect, without learning it, whether a value left its
                planned range; None: if the plan allows it.

        Raises:
            UsageError: the values of this model cannot all be checked.
        """
        if check_range:
            bound_analysis.check_monitorable_layers(self.plan)
        elif check_range is None:
            try:
                bound_analysis.check_monitorable_layers(self.plan)
                check_range = True
            except UsageError:
                check_range = False
        options = {"profile": profile, "repeat": 1, "warm_up": 0, "check_range": check_range}
        return options if batch is None else {**options, "batch": batch}

    def left_range(self, result: JobResult) -> Array | None:
        """Return whether a value left its range, for each sample; None without range checks."""
        flags = result.outputs.get(requests.RANGE)
        return None if flags is None else np.asarray(flags != 0)

    def decode(self, result: JobResult, withhold: bool = True) -> Any:
        """Decode a job's outputs as reals: an array, or a list or dict if there are several.

        Args:
            withhold: return no outputs for samples in which a value left its range.

        Raises:
            RangeError: a value left its range; the text states in how many samples. The error's
                `outputs` are those of all samples, with NaN in place of these.
        """
        out_of_range = self.left_range(result)
        decoded = [
            FixedPoint(result.fractional_bits[name]).decode(result.outputs[name])
            for name in requests.prediction_output_names(self.plan)
        ]
        withholds = withhold and out_of_range is not None and bool(out_of_range.any())
        if withholds:
            for value in decoded:
                value[out_of_range] = np.nan
        outputs = _structure_keras_outputs(
            self.graph, plaintext.finish_model_outputs(self.graph, decoded)
        )
        if not withholds or out_of_range is None:
            return outputs
        # the error states how many, not which, as it may be logged
        error = RangeError(
            f"Values left their planned range, so that the outputs of {int(out_of_range.sum())} "
            f"of {out_of_range.size} samples may be wrong. They are withheld. Convert the model "
            "with samples like these or a larger margin, give each sequence a step that is not "
            "masked, or pass check_range=False. The other samples' outputs are the error's "
            "`outputs`, which have NaN in place of these.",
            code="left-planned-range",
            operation="predict",
            received=int(out_of_range.sum()),
        )
        error.outputs = outputs
        raise error

    def __repr__(self) -> str:
        inputs = {name: list(shape) for name, shape in self.graph.inputs.items()}
        return (
            f"PrivateModel({self.name!r}, {len(self.graph.layers)} layers, inputs={inputs}, "
            f"fractional_bits={self.fractional_bits}, calibrated={self.calibrated})"
        )


def _encode_weight_input(part: weights.WeightPart) -> PrivateInput:
    return PrivateInput(weights.encode_weight_part(part), part.fractional_bits)


def _structure_keras_outputs(graph: Graph, outputs: list[Array]) -> Any:
    """Return outputs in the structure of the Keras model: by name, in order, or a single one."""
    if graph.labels:
        return dict(zip(graph.labels, outputs, strict=True))
    return outputs[0] if len(outputs) == 1 else outputs


def check_activations(activations: str) -> None:
    """Reject an unknown method for activations.

    Raises:
        UsageError: the method is not one of ACTIVATIONS.
    """
    if activations not in ACTIVATIONS:
        raise UsageError(
            f"Expected one of {', '.join(ACTIVATIONS)} as activations. Received: {activations!r}.",
            code="unknown-name",
            operation="activations",
            received=activations,
            expected=", ".join(ACTIVATIONS),
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
    """Convert a Graph as `convert` does; `merge` is that of `optimize.optimize_graph`."""
    if samples is not None and stated_ranges is not None:
        raise UsageError(
            "Expected samples or ranges in convert. Received: both.",
            code="conflicting-options",
            operation="convert",
        )
    if type(fractional_bits) is not int or not 8 <= fractional_bits <= 20:
        raise UsageError(
            f"Expected 8 to 20 fractional bits. Received: {fractional_bits!r}.",
            code="number-out-of-range",
            operation="fractional_bits",
            received=fractional_bits,
        )
    if not (isinstance(margin, (int, float)) and 1 <= margin <= 1024):
        raise UsageError(
            f"Expected a number from 1 to 1024 as margin. Received: {margin!r}.",
            code="number-out-of-range",
            operation="margin",
            received=margin,
        )
    check_activations(activations)
    optimized = optimize.optimize_graph(graph, merge)
    if activations == "series":
        optimized = graphs.replace_layers(
            optimized, [registry.get_layer_kind(x.op).use_series(x) for x in optimized.layers]
        )
    for x in optimized.layers:
        warning = registry.get_layer_kind(x.op).describe_conversion_risk(
            x, [optimized.shapes[i] for i in x.inputs]
        )
        if warning:
            warnings.warn(warning, stacklevel=3)
    if samples is not None:
        samples = plaintext.check_model_inputs(optimized, samples)
        bounds = calibration.calibrate_ranges(optimized, samples, margin)
    else:
        default = calibration.default_layer_bound(fractional_bits)
        bounds = calibration.declare_layer_ranges(
            optimized, {} if stated_ranges is None else stated_ranges, default
        )
    final_plan = bound_analysis.add_reach(
        calibration.plan_fixed_point(optimized, bounds, fractional_bits), bounds
    )
    if vanishing_constants := calibration.find_vanishing_constants(final_plan):
        warnings.warn(
            f"{graph.name!r} uses numbers below the resolution of fixed point: "
            f"{'; '.join(vanishing_constants)}. There, logarithms or quotients of small values "
            "differ from Keras.",
            stacklevel=3,
        )
    public_samples = samples and {
        name: a[: precision.SAMPLES].copy() for name, a in samples.items()
    }

    def cut_model(layer: str) -> PrivateModel:
        part = graphs.subgraph_until_layer(graph, layer)
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
    """Convert a Keras model to a private model for predictions; nothing is sent yet.

    Args:
        model: a Keras 3 Sequential or functional model, or the path of a .keras file.
        samples: a few public inputs, from which the range of every value is derived: comparisons
            become as narrow as possible, and values too large for 16 fractional bits get fewer.
        ranges: in place of samples, the largest |v|: a number, or numbers by layer.  Without
            either, each layer accepts |v| < 2^14 (at 16 fractional bits); beyond, results are
            wrong.
        fractional_bits: 8 to 20.
        margin: factor by which private inputs may exceed the samples' ranges. Every value may be
            this factor times the largest on the samples, and as large as on the samples times
            +-margin.
        activations: "exact" with an error of an ulp or two, or "series": GELU, SiLU, softplus,
            mish, sigmoid, tanh and erf with an error up to 2^-10, for a quarter to a half of the
            bytes and rounds (protocols/nn/series.py). "series" also applies to recurrent layers,
            with a warning beyond 100 steps.
        shapes: shapes of inputs of unknown size, by name, without the batch, such as the length of
            a text.
        length: the value of every unknown size that shapes does not state, such as the length of
            texts.

    Error: each layer rounds its values by less than 2^-16, and its weights by 2^-17 or by 2^-15 of
    the largest, whichever is less; `PrivateModel.agreement` measures the resulting error.

    Raises:
        UsageError: layers are not supported (the text lists all of them), an argument is invalid,
            or the model's values would differ from Keras (models/convert/verify.py compares them).
        DataError: the file is not a Keras model.
        RangeError: weights are NaN, or values of a layer fit no fixed-point format.
    """
    if isinstance(model, Graph):
        if shapes or length is not None:
            raise UsageError(
                f"The sizes of a Graph are known. Received: shapes={shapes!r}, length={length!r}.",
                code="conflicting-options",
                operation="convert",
            )
        return build_private_model(
            model, samples, ranges, fractional_bits, margin, activations=activations
        )
    reading = from_keras.read_keras_model(model, shapes=shapes, length=length)
    private = build_private_model(
        reading.graph, samples, ranges, fractional_bits, margin, activations=activations
    )
    verify.compare_with_keras(reading, private.graph, samples)
    return private
