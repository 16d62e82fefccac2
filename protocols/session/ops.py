"""The compiled ops: located, checked and loaded at first use, never at import.

Each defect of the library (missing, built for another TensorFlow, a processor without AES) has its
own error text.
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
from tfe_bench.lazy_tensorflow import tf
from tfe_bench.protocols.session.graph_ops import GraphOps

_ERROR_BYTES = 512
_MARK = re.compile(rb"tfe_bench ops built for TensorFlow ([0-9][0-9A-Za-z.+-]*)")

_i64 = ctypes.c_int64
_u64 = ctypes.c_uint64
_ptr = ctypes.c_void_p
_text = ctypes.c_char_p

# Receives a message that was taken aside: its bytes, their number, and the numbers of its place.
CollectedMessage = ctypes.CFUNCTYPE(None, _ptr, _i64, ctypes.POINTER(_i64))

# name -> (result, arguments); functions with a text as last argument report errors there
# (Native.call_for_error).
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "tfe_abi": (_i64, []),
    "tfe_cpu_check": (_i64, []),
    "tfe_available_memory": (_i64, []),
    "tfe_isa": (_text, []),
    "tfe_wrong_isa": (_text, []),
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
    "tfe_masks_keep": (_i64, [_i64, _i64]),
    "tfe_masks_use": (_i64, [_i64, _i64, _i64, _text]),
    "tfe_masks_drop": (None, [_i64]),
    "tfe_collect": (_i64, [_i64, _i64, _i64, CollectedMessage]),
    "tfe_feed": (_i64, [_i64, _i64, _i64, _ptr, _text, _i64, _text]),
    "tfe_wait_fed": (_i64, [_i64, _i64, _i64, _i64]),
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


def compiled_ops_library_path() -> Path:
    """Return the path of the compiled library."""
    return Path(tfe_bench.__file__).resolve().parent / "_ops.so"


def read_built_tensorflow_version(path: Path) -> str:
    """Return the TensorFlow version of the compiled library, read without loading it.

    Raises:
        OpsMissing: there is no library, or it is damaged.
    """
    if not path.is_file():
        raise OpsMissing(
            f"The compiled ops are missing. Received: no file {path}. "
            "Run `pip install .` in the checkout (it needs g++), then try again.",
            code="ops-missing",
            received=path,
        )
    match = _MARK.search(path.read_bytes())
    if not match:
        raise OpsMissing(
            f"The compiled ops are damaged. Received: {path}, which names no TensorFlow version. "
            "Run `pip install --force-reinstall .` in the checkout.",
            code="ops-damaged",
            received=path,
        )
    return match.group(1).decode()


def _same_minor(a: str, b: str) -> bool:
    return a.split(".")[:2] == b.split(".")[:2]


class Native:
    """C functions of the library; an error text becomes an exception."""

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
        """Call a function that reports errors; return the text, '' for success."""
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        if getattr(self, name)(*arguments, text) == 0:
            return ""
        return text.value.decode(errors="replace") or "unknown error"


@functools.cache
def native() -> Native:
    """Return the library's C functions.

    Raises:
        OpsMissing: the library is missing, does not fit, or cannot run on this processor.
    """
    module()
    return Native(compiled_ops_library_path())


@functools.cache
def module() -> GraphOps:
    """Return the TensorFlow ops as functions.

    Raises:
        OpsMissing: the library is missing, does not fit, or cannot run on this processor; or its
            ring products are wrong here.
    """
    # TensorFlow writes to stderr unless this is set before its import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    path = compiled_ops_library_path()
    version = read_built_tensorflow_version(path)
    if not _same_minor(version, tf.__version__):
        raise OpsMissing(
            f"The compiled ops fit TensorFlow {version}. Received: TensorFlow {tf.__version__}. "
            "Install the matching TensorFlow, or compile the ops again with "
            "`pip install --force-reinstall .`",
            code="ops-version-mismatch",
            received=tf.__version__,
            expected=version,
        )
    try:
        library = tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, OSError) as error:
        raise OpsMissing(
            f"The compiled ops cannot be loaded. Received: {str(error).splitlines()[0]}. "
            "Compile them again with `pip install --force-reinstall .`",
            code="ops-not-loadable",
        ) from error
    missing = Native(path).cpu_check()
    if missing == 1:
        raise OpsMissing(
            "This processor has no AES instructions, which generate every mask, and there is no "
            "slower substitute. Use an x86-64 host with AES-NI (any since about 2013).",
            code="processor-not-supported",
            expected="AES-NI",
        )
    if missing == 2:
        raise OpsMissing(
            "This processor lacks AVX2 or BMI2. Use an x86-64 host that has both (Intel since "
            "2013, AMD since 2017).",
            code="processor-not-supported",
            expected="AVX2, BMI2",
        )
    if wrong := Native(path).wrong_isa():
        isa = wrong.decode()
        raise OpsMissing(
            f"Expected the ring products of {isa} to equal those of portable code. Received: other "
            f"products, so this processor computes wrong results. {_advise_on_wrong_isa(isa)}",
            code="processor-not-supported",
            received=isa,
        )
    return GraphOps(library)


def _advise_on_wrong_isa(isa: str) -> str:
    """Return the remedy for an instruction set that gives wrong products."""
    weaker = {"amx": "ifma", "ifma": "avx512", "avx512": "avx2"}.get(isa)
    if weaker is None:
        return "Use another host."
    return f"Use another host, or start with TFE_BENCH_ISA={weaker}, which hides {isa}."


def abi() -> int:
    """Return the version of the ops and of the wire format, which is equal at all three workers."""
    return int(native().abi())
