# For pyright, as mypy has it: Keras says nothing of its types.
from typing import Any

def __getattr__(name: str) -> Any: ...
