"""How much longer a training image takes to prepare on a core of this machine than to decode.

Decoding alone, against what PyTorch's and other loaders do with an image for training: decode, crop
at random and resize, flip, convert and normalise (torchvision, Pillow). The image has the mean size
of ImageNet's (500 x 375 pixels) and noise with the spectrum of photographs.

    python benchmarks/host_input.py
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

HEIGHT, WIDTH, QUALITY = 375, 500, 92
REPEATS, IMAGES = 9, 40


def photograph(seed: int = 0) -> bytes:
    """Return noise whose amplitudes fall with the frequency, as a JPEG file."""
    spectrum = np.fft.rfft2(
        np.random.default_rng(seed).normal(size=(HEIGHT, WIDTH, 3)), axes=(0, 1)
    )
    y, x = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    spectrum /= (np.hypot(x, y) + 0.01)[..., None]
    pixels = np.fft.irfft2(spectrum, s=(HEIGHT, WIDTH), axes=(0, 1))
    pixels = (pixels - pixels.min()) / np.ptp(pixels) * 255
    file = io.BytesIO()
    Image.fromarray(pixels.astype("uint8")).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of a call."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(IMAGES):
            work()
        found.append((time.process_time() - start) / IMAGES)
    return min(found)


def main() -> None:
    """Print both times and their ratio."""
    import torch
    from torchvision import transforms

    torch.set_num_threads(1)
    data = photograph()
    prepare = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )

    def decode() -> Image.Image:
        return Image.open(io.BytesIO(data)).convert("RGB")

    decoding, whole = seconds(decode), seconds(lambda: prepare(decode()))
    print(f"{len(data)} B: decoding {decoding * 1e3:.2f} ms, prepared {whole * 1e3:.2f} ms")
    print(f"{whole / decoding:.2f} times")


if __name__ == "__main__":
    main()
