"""Layout of a store's file: where the parts of each value lie, in terms of safetensors."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfe_bench import atomic
from tfe_bench.cluster.stored import StoredTensor, lies_within_stored_file, parse_stored_tensor_row

PARTS = ("m", "l1", "l2")


@dataclass(frozen=True)
class StoreFileLayout:
    """Numbers of a file and the rows of its header.

    Attributes:
        blobs: the numbers in their order.
        places: type, shape and offsets of each part in `blobs`, by "value/part".
        tensor_rows: dealer, scale and limbs of each value.
        digests: SHA-256 of all numbers of each part.
    """

    blobs: list[memoryview]
    places: dict[str, Any]
    tensor_rows: dict[str, Any]
    digests: dict[str, str]


def lay_out_stored_values(tensors: Mapping[str, StoredTensor]) -> StoreFileLayout:
    """Place the parts of all values one after the other."""
    blobs: list[memoryview] = []
    places: dict[str, Any] = {}
    tensor_rows: dict[str, Any] = {}
    offset = 0
    digests = {part: hashlib.sha256() for part in PARTS}
    for name, tensor in tensors.items():
        for part, words in tensor.parts.items():
            if part not in PARTS or words.dtype != np.int64:
                raise AssertionError("a stored value has fields of int64 words")
            blob = np.ascontiguousarray(words).reshape(-1).view(np.uint8).data
            digests[part].update(blob)
            end = offset + blob.nbytes
            places[f"{name}/{part}"] = {
                "dtype": "I64",
                "shape": list(words.shape),
                "data_offsets": [offset, end],
            }
            blobs.append(blob)
            offset = end
        tensor_rows[name] = {
            "dealer": tensor.dealer,
            "fractional_bits": tensor.fractional_bits,
            "limbs": tensor.limbs,
            **({} if tensor.shape is None else {"shape": list(tensor.shape)}),
        }
    stored_parts = {part for tensor in tensors.values() for part in tensor.parts}
    return StoreFileLayout(
        blobs,
        places,
        tensor_rows,
        {part: digests[part].hexdigest() for part in PARTS if part in stored_parts},
    )


def parse_stored_places(header: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the shape and the offsets of each part, by "value/part".

    Args:
        header: an untrusted header without its metadata.
        size: bytes of all numbers.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the header is malformed.
    """
    places = {key: (tuple(row["shape"]), row["data_offsets"]) for key, row in header.items()}
    for (shape, (begin, end)), row in zip(places.values(), header.values(), strict=True):
        if row["dtype"] != "I64" or not lies_within_stored_file(shape, begin, end, size):
            raise ValueError("a part that lies elsewhere")
    return places


def parse_stored_tensors(rows: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of each value.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: a row is malformed.
    """
    return {
        str(k): parse_stored_tensor_row(
            row, {p: places[f"{k}/{p}"][0] for p in PARTS if f"{k}/{p}" in places}
        )
        for k, row in rows.items()
    }


@dataclass(frozen=True)
class PreparedStoreFile:
    """A complete file that is not yet in its place."""

    path: Path
    temporary: Path

    def commit(self) -> None:
        """Move the file to its place and replace a previous one."""
        os.replace(self.temporary, self.path)
        atomic.sync_folder_to_disk(self.path.parent)

    def discard(self) -> None:
        """Remove the file, if it was not committed."""
        with contextlib.suppress(FileNotFoundError):
            self.temporary.unlink()
