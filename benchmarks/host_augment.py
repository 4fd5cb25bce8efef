"""How much longer an image takes to augment on a core of this machine than to decode.

What the programs of EfficientNets do with an image of ImageNet before it goes to the device:
decode, crop and resize, flip, AutoAugment (E. Cubuk et al., CVPR 2019, arXiv:1805.09501), once with
Pillow, as PyTorch's loaders do, and once with the ops of TensorFlow. Each operation is timed alone;
those of AutoAugment count as often as its policy for ImageNet applies them.

    python benchmarks/host_augment.py
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from host_input import photograph, seconds

SIZES = (224, 380)
BOX = (60, 40, 400, 330)  # a crop of an image of 500 x 375
# How often an operation is applied to an image: its probabilities over the 25 pairs of the policy
# for ImageNet (tensorflow/tpu, efficientnet/autoaugment.py, policy_v0).
APPLIED: Mapping[str, float] = {
    "equalize": 8.0 / 25, "color": 5.0 / 25, "rotate": 4.6 / 25, "solarize": 4.6 / 25,
    "shear": 2.8 / 25, "add": 1.4 / 25, "posterize": 1.2 / 25, "autocontrast": 1.0 / 25,
    "translate": 0.8 / 25, "invert": 0.4 / 25,
}  # fmt: skip


def with_pillow(data: bytes, size: int) -> tuple[float, float]:
    """Return the time of preparing an image without AutoAugment, and of AutoAugment."""

    def prepare() -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return image.resize((size, size), Image.Resampling.BICUBIC, box=BOX)

    image: Any = prepare()
    pixels = np.asarray(image)
    grey, bicubic = (128, 128, 128), Image.Resampling.BICUBIC
    affine = Image.Transform.AFFINE
    operations: Mapping[str, Callable[[], object]] = {
        "equalize": lambda: ImageOps.equalize(image),
        "rotate": lambda: image.rotate(17),
        "color": lambda: ImageEnhance.Color(image).enhance(1.4),
        "solarize": lambda: ImageOps.solarize(image, 128),
        "shear": lambda: image.transform(
            image.size, affine, (1, 0.1, 0, 0, 1, 0), bicubic, fillcolor=grey
        ),
        "add": lambda: ImageOps.solarize(image, 128),
        "posterize": lambda: ImageOps.posterize(image, 4),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "translate": lambda: image.transform(image.size, affine, (1, 0, 9, 0, 1, 0)),
        "invert": lambda: ImageOps.invert(image),
    }
    flipped = Image.Transpose.FLIP_LEFT_RIGHT
    prepared = seconds(lambda: np.asarray(prepare().transpose(flipped)))
    normalised = seconds(lambda: (pixels.transpose(2, 0, 1) / np.float32(255) - 0.4) / 0.2)
    return prepared + normalised, _applied(operations)


def with_tensorflow(data: bytes, size: int) -> tuple[float, float]:
    """Return the same of TensorFlow, whose images are fp32 but for AutoAugment."""
    encoded = tf.constant(data)

    @tf.function
    def prepare() -> Any:
        start, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded), tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.1, aspect_ratio_range=[0.75, 1.33], area_range=[0.05, 1.0],
            max_attempts=100, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        window = tf.concat([start[:2], extent[:2]], 0)
        image = tf.image.random_flip_left_right(
            tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        )
        return tf.compat.v1.image.resize(image, [size, size])

    image = prepare()
    operations = {name: _compiled(work, tf.cast(image, tf.uint8)) for name, work in _OPS.items()}
    to_bytes = _compiled(lambda x: tf.cast(tf.cast(x, tf.uint8), tf.float32), image)
    return seconds(prepare) + seconds(to_bytes), _applied(operations)


def _compiled(work: Callable[[Any], Any], image: Any) -> Callable[[], object]:
    graph = tf.function(work, autograph=False)
    graph(image)
    return lambda: graph(image)


def _applied(operations: Mapping[str, Callable[[], object]]) -> float:
    return sum(times * seconds(operations[name]) for name, times in APPLIED.items())


def _equalize(image: Any) -> Any:
    channels = []
    for channel in tf.unstack(tf.cast(image, tf.int32), axis=2):
        counts = tf.histogram_fixed_width(channel, [0, 255], 256)
        step = tf.maximum((tf.reduce_sum(counts) - counts[-1]) // 255, 1)
        table = tf.clip_by_value((tf.cumsum(counts, exclusive=True) + step // 2) // step, 0, 255)
        channels.append(tf.cast(tf.gather(table, channel), tf.uint8))
    return tf.stack(channels, 2)


def _autocontrast(image: Any) -> Any:
    channels = []
    for channel in tf.unstack(tf.cast(image, tf.float32), axis=2):
        least, most = tf.reduce_min(channel), tf.reduce_max(channel)
        channels.append(tf.cast((channel - least) * (255.0 / (most - least)), tf.uint8))
    return tf.stack(channels, 2)


def _moved(*matrix: float) -> Callable[[Any], Any]:
    """Return a projection that fills with grey what comes from outside of the image."""

    def project(image: Any) -> Any:
        known = tf.concat([image, tf.ones_like(image[..., :1])], 2)[None]
        moved = tf.raw_ops.ImageProjectiveTransformV3(
            images=known, transforms=tf.constant([matrix]), output_shape=tf.shape(known)[1:3],
            fill_value=0.0, interpolation="NEAREST",
        )[0]  # fmt: skip
        grey = tf.constant([128, 128, 128, 1], tf.uint8)
        return tf.where(moved[..., 3:] == 0, grey, moved)[..., :3]

    return project


def _color(image: Any) -> Any:
    grey = tf.cast(tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image)), tf.float32)
    mixed = grey + 1.4 * (tf.cast(image, tf.float32) - grey)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def _add(image: Any) -> Any:
    added = tf.clip_by_value(tf.cast(image, tf.int64) + 30, 0, 255)
    return tf.where(image < 128, tf.cast(added, tf.uint8), image)


_OPS: Mapping[str, Callable[[Any], Any]] = {
    "equalize": _equalize,
    "rotate": _moved(0.95, -0.3, 20.0, 0.3, 0.95, -20.0, 0.0, 0.0),
    "color": _color,
    "solarize": lambda image: tf.where(image < 128, image, 255 - image),
    "shear": _moved(1.0, 0.1, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    "add": _add,
    "posterize": lambda image: tf.bitwise.left_shift(tf.bitwise.right_shift(image, 4), 4),
    "autocontrast": _autocontrast,
    "translate": _moved(1.0, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    "invert": lambda image: 255 - image,
}


def main() -> None:
    """Print both times of both libraries, over the time of decoding."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = photograph()
    decoding = math.inf  # the least: what else runs here slows some of the measurements
    found = []
    for name, work in (("Pillow", with_pillow), ("TensorFlow", with_tensorflow)):
        for size in SIZES:
            decoding = min(decoding, seconds(lambda: Image.open(io.BytesIO(data)).convert("RGB")))
            found.append((name, size, *work(data, size)))
    print(f"decoding {decoding * 1e3:.2f} ms")
    for name, size, prepared, augmented in found:
        print(
            f"{name}, {size} x {size}: prepared {prepared / decoding:.2f} times,"
            f" augmented {augmented / decoding:.2f}"
        )


if __name__ == "__main__":
    main()
