"""Old names of interfaces, accepted for one release with a DeprecationWarning.

Layer kinds, losses and optimizers of others may still define or use them. The tables map old
names to new ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

KIND: Mapping[str, str] = {
    "classes": "find_keras_layers",
    "callables": "find_keras_functions",
    "read": "convert_layer",
    "activate": "convert_activation",
    "function": "map_activation_options",
    "shape": "infer_shape",
    "positions": "find_position_axis",
    "resized": "resize_positions",
    "predicted": "prepare_inference",
    "in_series": "use_series",
    "doubt": "describe_conversion_risk",
    "label": "describe_layer",
    "plain": "compute_plaintext",
    "approximated": "compute_approximation",
    "numbers": "plan_format",
    "check": "check_format",
    "limit": "bound_output",
    "reach": "bound_sum_bits",
    "compared": "bound_comparison_bits",
    "watchable": "can_check_range",
    "reads": "count_input_bits",
    "turns": "count_stages",
    "train": "forward_training",
    "predicts": "can_predict",
    "trains": "can_train",
    "untrained": "explain_untrainable",
    "keras": "keras_layers",
    "arguments": "call_arguments",
    "masks": "handles_masks",
    "functions": "keras_functions",
    "nothing": "is_identity",
    "pointwise": "is_pointwise",
    "moves": "is_reshape",
    "largest": "is_maximum",
    "fuses": "can_fuse",
    "heavy": "is_memory_heavy",
    "wide": "uses_wide_words",
    "bounded": "is_bounded",
    "local": "is_local",
    "placed": "has_positional_weights",
}

OPERATIONS: Mapping[str, str] = {
    "shape": "get_shape",
    "map": "apply_local",
    "call": "run_protocol",
    "reshaped": "reshape_value",
    "note": "check_range",
    "times": "mul_public",
    "shifted": "add_fractional_bits",
    "product": "sum_products",
    "truncated_product": "sum_truncated_products",
    "watch": "range_check",
}

CONTEXT: Mapping[str, str] = {
    "small": "accepts_small_ring",
    "kept": "saved",
    "found": "weight_gradients",
    "renewed": "new_statistics",
    "watches": "range_checks",
    "steep": "checks_gradients",
    "learning": "is_training",
    "weight": "get_weight",
    "weight_or_none": "get_optional_weight",
    "learns": "is_trained",
    "narrowed": "truncate_to_small_ring",
    "inside": "check_magnitude",
    "watch": "get_range_check",
    "settled": "rescale_gradient",
    "dropped": "rescale_activation",
    "batched": "add_batch_axis",
    "at_scale": "align_scales",
    "where_positive": "select_positive",
    "times_slope": "multiply_slope",
}

PLANNER: Mapping[str, str] = {
    "of": "get_fractional_bits",
    "finest": "choose_fractional_bits",
    "magnitude": "get_magnitude",
    "most": "get_input_format",
    "lost": "report_unfit",
    "capped": "cap_magnitude",
    "width": "choose_comparison_bits",
    "factor": "plan_factor",
    "differences": "plan_differences",
}

READER: Mapping[str, str] = {
    "unique": "make_unique",
    "emit": "add_layer",
    "looked_up": "add_lookup",
    "is_token": "add_token_test",
    "within": "convert_inner_layer",
    "activated": "add_layer_activation",
    "activate": "add_activation",
    "taken": "used_names",
    "compared": "token_tests",
}

NODE: Mapping[str, str] = {
    "given": "input_shapes",
    "scales": "input_scales",
    "bent": "has_fused",
    "moved": "align_limits",
    "last": "is_output",
    "wide": "used_bits",
    "watched": "is_range_checked",
    "limits": "input_limits",
}

CALL: Mapping[str, str] = {
    "others": "other_outputs",
    "kind": "class_name",
}

LOSS: Mapping[str, str] = {
    "answers": "count_answers",
    "terms": "count_terms",
    "share": "compute_share",
    "scale": "compute_scale",
    "header": "to_header",
    "options": "list_options",
    "plain": "build_keras_loss",
    "targets": "encode_labels",
    "shaped": "shape_labels",
    "unfit": "find_unfit_rows",
    "shared": "convert_labels",
    "slope": "compute_gradient",
    "folded": "folded_activation",
    "categorical": "is_categorical",
    "counted": "counts_answers",
    "by_row": "is_per_row",
    "small": "accepts_small_ring",
    "factor": "gradient_factor",
    "takes": "label_kinds",
    "keras": "keras_class",
}

OPTIMIZER: Mapping[str, str] = {
    "slots": "list_slots",
    "public": "compute_public_integers",
    "update": "update_weights",
    "check": "check_settings",
    "classes": "keras_classes",
    "only": "fixed_options",
    "header": "to_header",
    "own": "list_own_settings",
    "keras": "build_keras_optimizer",
    "clips": "clips_gradients",
    "heavy": "compares_weights",
    "adaptive": "is_adaptive",
}


class _OldName:
    """An attribute of a class under its old name."""

    def __init__(self, old: str, new: str, value: Any) -> None:
        self.old, self.new, self.value = old, new, value

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn_deprecated_name(f"{owner.__name__}.{self.old}", self.new, 3)
        bind = getattr(self.value, "__get__", None)
        return self.value if bind is None else bind(instance, owner)


def _warn_deprecated_name(old: str, new: str, level: int) -> None:
    text = f"{old} has the new name {new}. The next release drops the old one."
    warnings.warn(text, DeprecationWarning, level + 1)


def accept_deprecated_names(cls: type, names: Mapping[str, str]) -> None:
    """Accept old names in the body of a class, and keep its new ones reachable under them.

    Args:
        names: new names by old ones.
    """
    for old, new in names.items():
        attributes = vars(cls)
        if old in attributes and not isinstance(attributes[old], _OldName):
            _warn_deprecated_name(f"{cls.__module__}.{cls.__qualname__}.{old}", new, 3)
            if new not in attributes:
                setattr(cls, new, attributes[old])
        if new in vars(cls):
            setattr(cls, old, _OldName(old, new, vars(cls)[new]))


def accept_deprecated_attributes(cls: Any, names: Mapping[str, str]) -> None:
    """Accept old attribute names on instances of a class.

    Args:
        names: new names by old ones.
    """

    def get_old(instance: Any, name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
        _warn_deprecated_name(f"{cls.__name__}.{name}", names[name], 2)
        return getattr(instance, names[name])

    cls.__getattr__ = get_old


def find_deprecated_names(
    module: str, values: Mapping[str, Any], **names: str
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose classes or functions have new names.

    Args:
        module: the module's name.
        values: its globals.
        names: new names by old ones.
    """

    def get_old(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn_deprecated_name(f"{module}.{name}", names[name], 2)
        return values[names[name]]

    return get_old
