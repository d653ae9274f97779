"""Draw the crop and mirroring of each training image, for whole batches at once.

The crop of an image depends on the seed, the epoch and the image alone. So it is the same in any worker,
process and batch.
"""

import numpy as np

ATTEMPTS = 10  # draws until a crop fits into the image, as in torchvision's RandomResizedCrop
RATIO = (3 / 4, 4 / 3)  # width over height (Szegedy et al. 2015)
DRAWS = 4 * ATTEMPTS + 1  # uniform numbers an image: area, ratio, top, left for each attempt, then mirror


def uniform(key: int, rows: np.ndarray, draws: int) -> np.ndarray:
    """Return float64 [n, draws] in [0, 1): row i of the stream `key`, whichever rows are requested.

    SplitMix64 (Steele et al. 2014), which computes any element of its sequence directly.
    """
    with np.errstate(over="ignore"):
        index = rows.astype(np.uint64)[:, None] * np.uint64(draws) + np.arange(1, draws + 1, dtype=np.uint64)
        state = np.uint64(key) + index * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)) * 2.0**-53


def draw(
    numbers: np.ndarray, heights: np.ndarray, widths: np.ndarray, *, min_crop_area: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes int64 [n, 4] (left, top, right, bottom) and which images [n] are mirrored.

    `numbers` are uniform [n, DRAWS], `heights` and `widths` [n] in pixels. A crop has `min_crop_area` to all
    of the image's area and a ratio in RATIO, uniform in area and in the ratio's logarithm. The first attempt
    that fits is taken. If none does, the largest centred crop with a ratio in RATIO (torchvision's rules).
    """
    area, ratio, top, left = numbers[:, :-1].reshape(len(numbers), 4, ATTEMPTS).transpose(1, 0, 2)
    area = (min_crop_area + (1 - min_crop_area) * area) * (heights * widths)[:, None]
    low, high = np.log(RATIO)
    ratio = np.exp(low + (high - low) * ratio)
    wide = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    tall = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (wide > 0) & (wide <= widths[:, None]) & (tall > 0) & (tall <= heights[:, None])
    first = fits.argmax(axis=1)
    each = np.arange(len(numbers))
    wide, tall = wide[each, first], tall[each, first]
    left = np.floor(left[each, first] * (widths - wide + 1)).astype(np.int64)
    top = np.floor(top[each, first] * (heights - tall + 1)).astype(np.int64)
    cropped = fits.any(axis=1)
    boxes = np.stack([left, top, left + wide, top + tall], axis=1)
    boxes = np.where(cropped[:, None], boxes, _centred(heights, widths))
    return boxes, numbers[:, -1] < 0.5


def _centred(heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    ratio = widths / heights
    tall = np.where(ratio < RATIO[0], np.rint(widths / RATIO[0]), heights).astype(np.int64)
    wide = np.where(ratio > RATIO[1], np.rint(heights * RATIO[1]), widths).astype(np.int64)
    left, top = (widths - wide) // 2, (heights - tall) // 2
    return np.stack([left, top, left + wide, top + tall], axis=1)
