"""An untyped module of TensorFlow."""

from typing import Any

def __getattr__(name: str) -> Any: ...
