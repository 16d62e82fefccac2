"""Secure three-party computation as TensorFlow graphs, and what it costs."""

from pathlib import Path as _Path

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "protocols").is_dir():  # a checkout without symbolic links
    __path__.append(str(_HERE.parent))

__version__ = "0.1.0"
