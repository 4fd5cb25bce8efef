"""What two programs in TensorFlow compute on a core of this machine in the middle of a step.

Columns of categories of wide-and-deep (NVIDIA DeepLearningExamples, trainer/features.py:
up to six numbers of a sample in a column, which TensorFlow 1's feature columns write as text,
hash, complete and make unique; 131,072 samples), and the proposals of Mask R-CNN (TensorFlow2,
mrcnn_tf2/ops/roi_ops.py: non-maximum suppression under `tf.device('CPU:0')`, of which the finest
level of images of 832 x 1344 pixels takes longest). Columns, levels and images are computed beside
each other, so that the longest counts. Each op is timed alone, the least of a few runs.

    python benchmarks/host_between.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from host_input import seconds

SAMPLES, VALUES, BUCKETS = 131_072, 6, 10_000
STRIDE, SHAPES = 4, ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))  # anchors of eight strides
PIXELS = (832, 1344)


def columns() -> Mapping[str, float]:
    """Return the time of each op on one column, a sample."""
    numbers = np.random.default_rng(0).integers(0, 200_000, (SAMPLES, VALUES), dtype=np.int32)
    dense = tf.constant(numbers)
    flat = tf.reshape(dense, [-1])
    text = tf.strings.as_string(flat)
    hashed = tf.strings.to_hash_bucket_fast(text, BUCKETS)
    places = tf.where(tf.not_equal(dense, -1))
    sparse = tf.SparseTensor(places, hashed, dense.shape)
    ops: Mapping[str, Callable[[], object]] = {
        "those that are given": lambda: tf.gather_nd(dense, tf.where(tf.not_equal(dense, -1))),
        "as text": lambda: tf.strings.as_string(flat),
        "hashed": lambda: tf.strings.to_hash_bucket_fast(text, BUCKETS),
        "empty rows filled": lambda: tf.sparse.fill_empty_rows(sparse, np.int64(0)),
        "unique": lambda: tf.unique(hashed),
    }
    return {name: seconds(op) / SAMPLES for name, op in ops.items()}


def boxes() -> tuple[Any, Any]:
    """Return boxes around the anchors of the finest level, and their scores."""
    random = np.random.default_rng(0)
    rows, width = (pixels // STRIDE for pixels in PIXELS)
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(width), indexing="ij"), axis=-1)
    centre = np.repeat((places.reshape(-1, 2) + 0.5) * STRIDE, len(SHAPES), axis=0)
    size = 8 * STRIDE * np.tile(np.array(SHAPES), (rows * width, 1))
    size *= np.exp(random.normal(0, 0.3, size.shape))
    centre += random.normal(0, 0.3, size.shape) * size
    corners = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    scores = 1 / (1 + np.exp(-random.normal(-4, 2, len(corners))))
    return np.clip(corners / np.tile(PIXELS, 2), 0, 1), scores


def proposals() -> float:
    """Return the time of suppressing what overlaps more on the finest level of an image."""
    corners, scores = (tf.constant(part, tf.float32) for part in boxes())
    return seconds(
        lambda: tf.image.combined_non_max_suppression(
            corners[None, :, None, :], scores[None, :, None], 2000, 1000, 0.7, 0.0
        )
    )


def main() -> None:
    """Print both."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    found = columns()
    for name, time_s in found.items():
        print(f"column of {VALUES} values, {name}: {time_s * 1e6:.2f} us a sample")
    print(f"together: {sum(found.values()) * 1e6:.2f} us a sample")
    print(f"proposals of the finest level: {proposals() * 1e3:.0f} ms a step")


if __name__ == "__main__":
    main()
