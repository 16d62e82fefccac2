"""Operations that move elements: shapes, slices, windows of images, and stored shares."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfe_bench.errors import UsageError
from tfe_bench.tf_encrypted.config import get_config
from tfe_bench.tf_encrypted.protocol.aby3.arithmetic import is_private, tfb
from tfe_bench.tf_encrypted.protocol.aby3.bits import Bits
from tfe_bench.tf_encrypted.protocol.aby3.definitions import to_numpy
from tfe_bench.tf_encrypted.protocol.aby3.tensors import ABY3PrivateTensor, ABY3PublicTensor


def _get_tensor_rank(x: Any) -> int:
    return len(x.shape)


def _positive_tensor_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def compute_window(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: str
) -> tuple[list[int], list[list[int]]]:
    """Return the number of windows and the padding of each axis, as TensorFlow defines them.

    Args:
        sizes, kernel, strides: of both axes of an image.

    Raises:
        UsageError: another padding, or a window that does not fit.
    """
    if padding.upper() not in ("SAME", "VALID"):
        raise UsageError(
            f"padding is SAME or VALID. Received: {padding!r}.",
            code="unsupported-argument",
            operation="padding",
            received=padding,
        )
    same = padding.upper() == "SAME"
    out, edges = [], []
    for n, k, s in zip(sizes, kernel, strides, strict=True):
        count = -(-n // s) if same else (n - k) // s + 1
        if count < 1:
            raise UsageError(
                f"A window of {k} does not fit into {n}.",
                code="shape-mismatch",
                operation="kernel",
                received=k,
                expected=n,
            )
        missing = max(0, (count - 1) * s + k - n) if same else 0
        out.append(count)
        edges.append([missing // 2, missing - missing // 2])
    return out, edges


class ShapeOperations(Bits):
    """Operations that move elements."""

    def _apply_to_elements(
        self, x: Any, private: Callable[[Any], Any], public: Callable[[Any], Any]
    ) -> Any:
        if not is_private(x):
            array = np.asarray(public(to_numpy(x)))
            like = x if isinstance(x, ABY3PublicTensor) else self.lift(x)
            return ABY3PublicTensor(self, array, like.is_scaled, like.backing_dtype)
        return x.like(private(x.array))

    def _apply_alike(
        self, x: Any, name: str, public: Callable[..., Any], argument: Any, word_axis: Any = ()
    ) -> Any:
        """Apply tfe_bench's operation or NumPy's of one argument, which words of bits extend."""
        word_argument = (
            [*argument, *word_axis] if word_axis and is_private(x) and x.is_word else argument
        )
        return self._apply_to_elements(
            x, lambda a: getattr(tfb, name)(a, word_argument), lambda v: public(v, argument)
        )

    def transpose(self, x: Any, perm: Any = None) -> Any:
        """Permute the axes."""
        rank = _get_tensor_rank(x)
        order = list(range(rank))[::-1] if perm is None else [int(p) for p in perm]
        return self._apply_alike(x, "transpose", np.transpose, order, [rank])

    def indexer(self, x: Any, slc: Any) -> Any:
        """Return x[slc]."""
        key = slc if isinstance(slc, tuple) else (slc,)
        extra: tuple[Any, ...] = ()
        if is_private(x) and x.is_word and ... in key:
            extra = (slice(None),)
        return self._apply_to_elements(x, lambda a: a[(*key, *extra)], lambda v: v[key])

    def strided_slice(self, x: Any, begin: Any, end: Any, strides: Any = None, **masks: Any) -> Any:
        """Return x from `begin` to `end` in steps."""
        if any(masks.values()):
            raise UsageError(
                f"strided_slice takes no {', '.join(masks)}. Write x[...].",
                code="unsupported-argument",
                operation=", ".join(masks),
            )
        steps = strides or [1] * len(begin)
        return self.indexer(x, tuple(itertools.starmap(slice, zip(begin, end, steps, strict=True))))

    def reshape(self, x: Any, axe: Any) -> Any:
        """Return x in another shape."""
        bits = [x.backing_dtype.nbits] if is_private(x) else []
        return self._apply_alike(x, "reshape", np.reshape, [int(n) for n in axe], bits)

    def expand_dims(self, x: Any, axis: int) -> Any:
        """Add an axis."""
        at = _positive_tensor_axis(axis, _get_tensor_rank(x) + 1)
        return self._apply_alike(x, "expand_dims", np.expand_dims, at)

    def squeeze(self, x: Any, axis: Any = None) -> Any:
        """Remove axes of one element."""
        sizes = x.shape.as_list()
        removed_axes = (
            [i for i, n in enumerate(sizes) if n == 1] if axis is None else np.atleast_1d(axis)
        )
        at = tuple(_positive_tensor_axis(int(i), len(sizes)) for i in removed_axes)
        return self._apply_alike(x, "squeeze", np.squeeze, at) if at else x

    def tile(self, x: Any, multiples: Any) -> Any:
        """Repeat x along each axis."""
        return self._apply_alike(x, "tile", np.tile, [int(n) for n in multiples], [1])

    def reverse(self, x: Any, axis: Any) -> Any:
        """Reverse the order along axes."""
        rank = _get_tensor_rank(x)
        at = tuple(_positive_tensor_axis(int(i), rank) for i in np.atleast_1d(axis))
        return self._apply_alike(x, "reverse", np.flip, at)

    def pad(self, x: Any, paddings: Any) -> Any:
        """Add zeros at the edges."""
        edges = [[int(n) for n in pair] for pair in paddings]
        return self._apply_alike(x, "pad", np.pad, edges, [[0, 0]])

    def gather(self, x: Any, indices: Any, axis: int = 0) -> Any:
        """Return the slices at public indices along an axis."""
        at, places = (
            _positive_tensor_axis(axis, _get_tensor_rank(x)),
            to_numpy(indices).astype(np.int64),
        )
        return self._apply_to_elements(
            x, lambda a: tfb.gather(a, places, axis=at), lambda v: np.take(v, places, at)
        )

    def scatter_nd(self, indices: Any, updates: Any, shape: Any) -> Any:
        """Return zeros with updates at public indices."""
        places, sizes = to_numpy(indices).astype(np.int64), [int(n) for n in shape]

        def scatter_public(v: npt.NDArray[Any]) -> npt.NDArray[Any]:
            scattered = np.zeros(sizes, v.dtype)
            np.add.at(scattered, tuple(np.moveaxis(places, -1, 0)), v)
            return scattered

        return self._apply_to_elements(
            updates, lambda a: tfb.scatter_nd(places, a, sizes), scatter_public
        )

    def expand(self, x: Any, stride: int) -> Any:
        """Insert zeros between the elements of the first two axes."""
        sizes = x.shape.as_list()
        wide = [(n - 1) * stride + 1 for n in sizes[:2]]
        places = np.stack(np.meshgrid(*[np.arange(0, n, stride) for n in wide], indexing="ij"), 2)
        return self.scatter_nd(places, x, [*wide, *sizes[2:]])

    def split(self, x: Any, num_split: int, axis: int = 0) -> list[Any]:
        """Split into equal parts along an axis."""
        at = _positive_tensor_axis(axis, _get_tensor_rank(x))
        if not is_private(x):
            size = int(x.shape[at]) // num_split
            return [
                self.gather(x, np.arange(k * size, (k + 1) * size), at) for k in range(num_split)
            ]
        return [x.like(a) for a in tfb.split(x.array, num_split, axis=at)]

    def _join_tensors(self, name: str, public: Any, xs: Any, at: int) -> Any:
        if not is_private(*xs):
            return self._wrap_public(
                public([to_numpy(x) for x in xs], at),
                any(isinstance(x, ABY3PublicTensor) and x.is_scaled for x in xs),
            )
        like = next(x for x in xs if is_private(x))
        if like.is_boolean():
            return like.like(getattr(tfb, name)([self._get_bits(x, like) for x in xs], at))
        operands = [self._to_operand(x) for x in xs]
        return self._wrap_private(getattr(tfb, name)(operands, at), like)

    def concat(self, xs: Any, axis: int) -> Any:
        """Concatenate tensors along an axis."""
        return self._join_tensors(
            "concat", np.concatenate, list(xs), _positive_tensor_axis(axis, _get_tensor_rank(xs[0]))
        )

    def stack(self, xs: Any, axis: int) -> Any:
        """Stack tensors along a new axis."""
        return self._join_tensors(
            "stack", np.stack, list(xs), _positive_tensor_axis(axis, _get_tensor_rank(xs[0]) + 1)
        )

    # ---- images, [batch, channels, height, width]

    def im2patches(
        self,
        x: Any,
        patch_size: Any,
        strides: Any = (1, 1),
        padding: str = "SAME",
        data_format: str = "NCHW",
    ) -> Any:
        """Return the elements of every window, [batch, window x channels, rows, columns]."""
        if data_format != "NCHW":
            x = self.transpose(x, [0, 3, 1, 2])
        n, channels, *sizes = x.shape.as_list()
        out, edges = compute_window(sizes, patch_size, strides, padding)
        padded = self.pad(x, [[0, 0], [0, 0], *edges]) if np.any(edges) else x
        height, width = padded.shape.as_list()[2:]
        rows = np.arange(out[0])[:, None] * strides[0] + np.arange(patch_size[0])
        columns = np.arange(out[1])[:, None] * strides[1] + np.arange(patch_size[1])
        flat = (
            rows.T[:, None, :, None] * width + columns.T[None, :, None, :]
        )  # [h, w, rows, columns]
        planes = np.arange(channels) * height * width
        places = flat[:, :, None] + planes[:, None, None]  # [h, w, channel, rows, columns]
        elements = self.gather(self.reshape(padded, [n, -1]), places.reshape(-1), axis=1)
        return self.reshape(elements, [n, -1, *out])

    def patches2im(
        self,
        x: Any,
        patch_size: Any,
        strides: Any = (1, 1),
        padding: str = "SAME",
        img_size: Any = None,
        consolidation: str = "SUM",
        data_format: str = "NCHW",
    ) -> Any:
        """Add windows [batch, window, rows, columns] to their places in images; overlaps add up."""
        if img_size is None or consolidation.upper() != "SUM":
            raise UsageError(
                "patches2im takes img_size, and consolidation='SUM'.",
                code="missing-argument",
                operation="img_size, consolidation",
            )
        n, _, *out = x.shape.as_list()
        height, width = (int(v) for v in list(img_size)[-2:])
        expected, edges = compute_window([height, width], patch_size, strides, padding)
        if expected != out:
            raise UsageError(
                f"patches2im takes {expected} windows. Received: {out}.",
                code="shape-mismatch",
                operation="x",
                received=out,
                expected=expected,
            )
        (top, bottom), (left, right) = edges
        wide = (height + top + bottom, width + left + right)
        parts = self.reshape(x, [n, *patch_size, *out])
        total: Any = None
        for i, j in itertools.product(range(patch_size[0]), range(patch_size[1])):
            one = self.transpose(self.indexer(parts, (slice(None), i, j)), [1, 2, 0])
            one = self._spread_elements(one, strides, (i, j), wide)
            total = one if total is None else self.add(total, one)
        image = self.transpose(total, [2, 0, 1])
        cut = (slice(None), slice(top, top + height), slice(left, left + width))
        return self.expand_dims(self.indexer(image, cut), 1)

    def _spread_elements(self, x: Any, strides: Any, start: Any, wide: Any) -> Any:
        """Place [rows, columns, ..] at every stride-th place of zeros."""
        rows, columns = (np.arange(x.shape[a]) * strides[a] + start[a] for a in (0, 1))
        places = np.stack(np.meshgrid(rows, columns, indexing="ij"), 2)
        return self.scatter_nd(places, x, [*wide, *x.shape.as_list()[2:]])

    def im2col(self, x: Any, h_filter: int, w_filter: int, strides: Any, padding: str) -> Any:
        """Return the elements of every window, [window x channels, rows x columns x batch]."""
        patches = self.im2patches(x, (h_filter, w_filter), strides, padding)
        n, depth, *out = patches.shape.as_list()
        return self.reshape(self.transpose(patches, [1, 2, 3, 0]), [depth, out[0] * out[1] * n])

    def conv2d(self, x: Any, w: Any, strides: Any, padding: str) -> Any:
        """Convolve images [batch, channels, height, width] by [height, width, channels, out]."""
        steps = [strides, strides] if isinstance(strides, int) else [int(s) for s in strides]
        like = x if is_private(x) else w
        image = self._to_operand(self.transpose(x, [0, 2, 3, 1]))
        if not is_private(x):
            image = get_config().cluster.private(
                np.asarray(to_numpy(x).transpose(0, 2, 3, 1), np.float64),
                kind="fixed",
                fractional_bits=self._fractional_bits,
            )
        kernel = self._to_operand(w)
        outputs = tfb.conv2d(image, kernel, steps, padding.upper())
        return self._wrap_private(tfb.transpose(outputs, [0, 3, 1, 2]), like)

    def maxpool2d(self, x: Any, pool_size: Any, strides: Any, padding: str) -> Any:
        """Return the largest of each window of images [batch, channels, height, width]."""
        images = tfb.transpose(self._to_operand(x), [0, 2, 3, 1])
        outputs = tfb.max_pool2d(images, list(pool_size), list(strides), padding.upper())
        return self._wrap_private(tfb.transpose(outputs, [0, 3, 1, 2]), x)

    def maxpool2d_with_argmax(self, x: Any, pool_size: Any, strides: Any, padding: str) -> Any:
        """Return the largest of each window, and bits of its place along a new last axis."""
        n, channels, *sizes = x.shape.as_list()
        out, edges = compute_window(sizes, pool_size, strides, padding)
        if np.any(edges):
            raise UsageError(
                "maxpool2d_with_argmax takes windows that fit: padding='VALID'.",
                code="unsupported-argument",
                operation="padding",
                received=padding,
            )
        planes = self.reshape(x, [n * channels, 1, *sizes])
        patches = self.im2patches(planes, pool_size, strides, padding)
        largest, is_largest = self.reduce_max_with_argmax(patches, axis=1)
        is_largest = self.reshape(self.transpose(is_largest, [0, 2, 3, 1]), [n, channels, *out, -1])
        return self.reshape(largest, [n, channels, *out]), is_largest

    def avgpool2d(self, x: Any, pool_size: Any, strides: Any, padding: str) -> Any:
        """Return the mean of each window of images [batch, channels, height, width].

        Raises:
            UsageError: windows over an edge: tf-encrypted counts the padding there, and TensorFlow
                does not.
        """
        _, edges = compute_window(x.shape.as_list()[2:], pool_size, strides, padding)
        if np.any(edges):
            raise UsageError(
                "avgpool2d takes windows that fit: at an edge tf-encrypted's means count zeros, "
                "and TensorFlow's do not. Pad the images first, or use "
                "keras.layers.AveragePooling2D, which follows TensorFlow.",
                code="unsupported-argument",
                operation="padding",
                received=padding,
            )
        images = tfb.transpose(self._to_operand(x), [0, 2, 3, 1])
        outputs = tfb.avg_pool2d(images, list(pool_size), list(strides), "VALID")
        return self._wrap_private(tfb.transpose(outputs, [0, 3, 1, 2]), x)

    # ---- stored shares

    @staticmethod
    def _stored_name(prefix: str) -> str:
        path = str(Path(prefix).absolute())
        return "tfe-" + hashlib.sha256(path.encode()).hexdigest()[:28]

    def write(self, x: ABY3PrivateTensor, filename_prefix: str, append: bool = False) -> None:
        """Store the shares at each worker, under a name derived from this path."""
        if append:
            raise UsageError(
                "write replaces. Received: append=True. Write under another name.",
                code="unsupported-argument",
                operation="append",
            )
        if not isinstance(x, ABY3PrivateTensor) or not x.is_arithmetic():
            raise UsageError(
                f"write takes arithmetic shares. Received: {x!r}.",
                code="wrong-share-type",
                operation="write",
            )
        x.array.keep(self._stored_name(filename_prefix), replace=True)

    def read(
        self, filenames_prefix: Any, file_batch: int, output_shape: Any, buffer_num: int = 1
    ) -> Iterator[Any]:
        """Yield stored tensors, `file_batch` names at a time, in an endless cycle."""
        names = [filenames_prefix] if isinstance(filenames_prefix, str) else list(filenames_prefix)
        cluster, stored_names = get_config().cluster, [self._stored_name(n) for n in names]
        loaded = [self._wrap_private(cluster.load(name)) for name in stored_names]
        cycle = itertools.cycle(loaded)

        def cycle_batches() -> Iterator[Any]:
            while True:
                parts = [next(cycle) for _ in range(file_batch)]
                joined = parts[0] if file_batch == 1 else self.concat(parts, 0)
                yield self.reshape(joined, output_shape)

        return cycle_batches()

    def iterate(
        self,
        x: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool = True,
        seed: int | None = None,
    ) -> Iterator[Any]:
        """Yield batches of rows, in a public order."""
        rng = np.random.default_rng(seed)
        count = int(x.shape[0])

        def draw_batches() -> Iterator[Any]:
            while True:
                order = rng.permutation(count) if shuffle else np.arange(count)
                for start in range(0, count - batch_size + 1, batch_size):
                    yield self.gather(x, order[start : start + batch_size])
                if not repeat:
                    return

        return draw_batches()
