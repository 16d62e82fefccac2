"""Images and labels as TFRecord files, and back."""

from __future__ import annotations

from typing import Any

from tfe_bench.lazy_tensorflow import tf


def _encode_image_example(image: Any = None, label: Any = None) -> bytes:
    features = {}
    if image is not None:
        features["image"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()]))
    if label is not None:
        features["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)]))
    record: bytes = tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()
    return record


def _write_image_records(filename: str, records: Any) -> None:
    with tf.io.TFRecordWriter(filename) as writer:
        for record in records:
            writer.write(record)


def save_data(images: Any, labels: Any, filename: str) -> None:
    """Write images with labels."""
    _write_image_records(
        filename, (_encode_image_example(x, y) for x, y in zip(images, labels, strict=True))
    )


def save_image(images: Any, filename: str) -> None:
    """Write images."""
    _write_image_records(filename, (_encode_image_example(image=x) for x in images))


def save_label(labels: Any, filename: str) -> None:
    """Write labels."""
    _write_image_records(filename, (_encode_image_example(label=y) for y in labels))


_IMAGE = {"image": tf.io.FixedLenFeature([], tf.string)}
_LABEL = {"label": tf.io.FixedLenFeature([], tf.int64)}


def decode_image(record: Any) -> Any:
    """Decode an image's bytes."""
    features = tf.io.parse_single_example(record, features=_IMAGE)
    return tf.io.decode_raw(features["image"], tf.uint8)


def decode_label(record: Any) -> Any:
    """Decode a label."""
    return tf.cast(tf.io.parse_single_example(record, features=_LABEL)["label"], tf.int32)


def decode_data(record: Any) -> tuple[Any, Any]:
    """Decode an image's bytes and its label."""
    features = tf.io.parse_single_example(record, features={**_IMAGE, **_LABEL})
    return tf.io.decode_raw(features["image"], tf.uint8), tf.cast(features["label"], tf.int32)
