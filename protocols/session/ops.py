"""The compiled ops: found, checked and loaded at first use, never at import.

Everything that can be wrong with the library (missing, built for another
TensorFlow, a processor without AES) is explained here in words.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any

import tfe_bench
from tfe_bench.errors import OpsMissing
from tfe_bench.protocols.session.graph_ops import GraphOps

_ERROR_BYTES = 512
_MARK = re.compile(rb"tfe_bench ops built for TensorFlow ([0-9][0-9A-Za-z.+-]*)")

_i64 = ctypes.c_int64
_u64 = ctypes.c_uint64
_ptr = ctypes.c_void_p
_text = ctypes.c_char_p

# name -> (result, arguments); those that end in a text report errors there (Native.error_of).
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tfe_abi": (_i64, []),
    "tfe_cpu_check": (_i64, []),
    "tfe_available_memory": (_i64, []),
    "tfe_isa": (_text, []),
    "tfe_session_new": (_i64, [_i64, _text, _i64]),
    "tfe_session_drop": (None, [_i64]),
    "tfe_session_link": (_i64, [_i64, _i64, _i64, _text]),
    "tfe_session_fault": (_i64, [_i64, _i64, _text]),
    "tfe_session_replay": (_i64, [_i64, _i64, _text]),
    "tfe_session_alter": (_i64, [_i64, _u64, _u64, _ptr, _i64, _text]),
    "tfe_step_begin": (_i64, [_i64, _i64, _i64, _i64, _text]),
    "tfe_step_end": (None, [_i64, _i64]),
    "tfe_abort": (None, [_i64, _text]),
    "tfe_aborted": (_i64, [_i64, _text]),
    "tfe_next_due": (_i64, [_i64, _i64]),
    "tfe_next_blob": (_i64, [_i64, _i64, _ptr, _i64, _i64, _i64]),
    "tfe_set_wake": (None, [_i64, _i64, _i64]),
    "tfe_pop": (_i64, [_i64, _i64, _ptr, _i64]),
    "tfe_push": (_i64, [_i64, _i64, _text, _i64, _text]),
    "tfe_drain": (_i64, [_i64, _i64]),
    "tfe_shape": (None, [_i64, _i64, _i64, _i64]),
    "tfe_control_send": (_i64, [_i64, _i64, _i64, _text, _i64, _text]),
    "tfe_control_recv": (_i64, [_i64, _i64, _i64, _ptr, _i64, _text]),
    "tfe_counters": (None, [_i64, _ptr]),
    "tfe_reset_counters": (None, [_i64]),
    "tfe_depths": (_i64, [_i64, _ptr, _i64]),
    "tfe_observe": (None, [_i64, _i64]),
    "tfe_observed": (None, [_i64, _ptr]),
    "tfe_events": (_i64, [_i64, _ptr, _i64]),
    "tfe_now": (_i64, []),
    "tfe_record": (None, [_i64, _i64]),
    "tfe_records": (_i64, [_i64, _ptr, _i64]),
    "tfe_plan_new": (_ptr, [_i64, _i64, _i64, ctypes.c_double]),
    "tfe_plan_drop": (None, [_ptr]),
    "tfe_plan_next": (_i64, [_ptr, _ptr, _ptr]),
    "tfe_plan_answer": (_i64, [_ptr, _ptr]),
    "tfe_plan_order": (_ptr, [_ptr]),
}


def library_path() -> Path:
    """Where the compiled library belongs."""
    return Path(tfe_bench.__file__).resolve().parent / "_ops.so"


def built_for(path: Path) -> str:
    """The TensorFlow version that the library was compiled for, read without loading it.

    Raises:
        OpsMissing: there is no library, or it is not ours.
    """
    if not path.is_file():
        raise OpsMissing(
            f"The compiled ops are missing. Received: no file {path}. "
            "Run `pip install .` in the checkout (it needs g++), then try again."
        )
    match = _MARK.search(path.read_bytes())
    if not match:
        raise OpsMissing(
            f"The compiled ops are damaged. Received: {path}, which names no TensorFlow version. "
            "Run `pip install --force-reinstall .` in the checkout."
        )
    return match.group(1).decode()


def _same_minor(a: str, b: str) -> bool:
    return a.split(".")[:2] == b.split(".")[:2]


class Native:
    """The library's C functions, with an exception for an error text."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._dll, name)
            function.restype = result
            function.argtypes = arguments
            setattr(self, name.removeprefix("tfe_"), function)

    def __getattr__(self, name: str) -> Any:  # for type checkers: set in __init__
        raise AttributeError(name)

    def call_for_error(self, name: str, *arguments: object) -> str:
        """Calls a function that reports errors; returns the text, '' for success."""
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        if getattr(self, name)(*arguments, text) == 0:
            return ""
        return text.value.decode(errors="replace") or "unknown error"


@functools.cache
def native() -> Native:
    """The library's C functions.

    Raises:
        OpsMissing: the library is missing, does not fit, or cannot run on this processor.
    """
    module()
    return Native(library_path())


@functools.cache
def module() -> GraphOps:
    """The TensorFlow ops, as functions.

    Raises:
        OpsMissing: the library is missing, does not fit, or cannot run on this processor.
    """
    # TensorFlow greets on stderr unless told not to before it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    path = library_path()
    version = built_for(path)
    if not _same_minor(version, tf.__version__):
        raise OpsMissing(
            f"The compiled ops fit TensorFlow {version}. Received: TensorFlow {tf.__version__}. "
            "Install the matching TensorFlow, or compile the ops again with "
            "`pip install --force-reinstall .`"
        )
    try:
        library = tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        raise OpsMissing(
            f"The compiled ops cannot be loaded. Received: {str(error).splitlines()[0]}. "
            "Compile them again with `pip install --force-reinstall .`"
        ) from error
    missing = Native(path).cpu_check()
    if missing == 1:
        raise OpsMissing(
            "This processor has no AES instructions, on which every mask rests, and there is no "
            "slower substitute. Use an x86-64 host with AES-NI (any since about 2013)."
        )
    if missing == 2:
        raise OpsMissing(
            "This processor lacks AVX2 or BMI2. Use an x86-64 host that has both (Intel since "
            "2013, AMD since 2017)."
        )
    return GraphOps(library)


def abi() -> int:
    """Version of the ops and of the wire format; equal at all three workers."""
    return int(native().abi())
