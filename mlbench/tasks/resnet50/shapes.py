"""Generated substitutes for photographs: shapes with textures on noisy grounds, as real JPEG files.

A class is one of five shapes with one of two textures. Place, size, angle, colours and ground vary. So a
linear classifier on pixels learns next to nothing (a test shows it), and a small convolutional network most
of it.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image

SHAPES = ("disc", "square", "triangle", "ring", "cross")
TEXTURES = ("stripes", "dots")
CLASSES = [f"{texture}-{shape}" for shape in SHAPES for texture in TEXTURES]


class Drawn(NamedTuple):
    """One generated image as JPEG bytes."""

    data: bytes
    label: int
    width: int
    height: int


def images(count: int, *, seed: int, smallest: int, largest: int, quality: int) -> Iterator[Drawn]:
    """Yield `count` images, the classes in turn, with sides of `smallest` to `largest` pixels."""
    random = np.random.default_rng(seed)
    for number in range(count):
        label = number % len(CLASSES)
        height, width = random.integers(smallest, largest, 2, endpoint=True)
        pixels = draw(label, int(height), int(width), random=random)
        file = BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        yield Drawn(file.getvalue(), label, int(width), int(height))


def draw(label: int, height: int, width: int, *, random: np.random.Generator) -> np.ndarray:
    """Return an image uint8 [height, width, 3] of class `label`."""
    down, across = np.mgrid[:height, :width].astype(np.float64)
    side = min(height, width)
    radius = side * random.uniform(0.26, 0.36)
    x = across - width / 2 - random.uniform(-0.12, 0.12) * side
    y = down - height / 2 - random.uniform(-0.12, 0.12) * side
    angle = random.uniform(0, 2 * np.pi)
    u = (x * np.cos(angle) + y * np.sin(angle)) / radius
    v = (y * np.cos(angle) - x * np.sin(angle)) / radius
    inside = _inside(SHAPES[label // len(TEXTURES)], u, v)
    texture = _texture(TEXTURES[label % len(TEXTURES)], x, y, random=random)
    ground, light, dark = _colours(random)
    # The ground changes slowly across the image and is grainy, the texture has two colours.
    slope = (x * random.normal() + y * random.normal())[..., None] / side * 40
    picture = ground + slope + random.normal(0, 12, (height, width, 3))
    filled = np.where(texture[..., None], light, dark) + random.normal(0, 8, (height, width, 3))
    picture = np.where(inside[..., None], filled, picture)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _inside(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return which places are in a shape of radius about 1 around (0, 0)."""
    distance = np.hypot(u, v)
    if shape == "disc":
        return distance < 1
    if shape == "ring":
        return (distance < 1.15) & (distance > 0.6)
    if shape == "square":
        return np.maximum(abs(u), abs(v)) < 0.9
    if shape == "triangle":
        return (v > -0.6) & (v + np.sqrt(3) * abs(u) < 1.2)
    assert shape == "cross", shape
    return (np.minimum(abs(u), abs(v)) < 0.35) & (np.maximum(abs(u), abs(v)) < 1.15)


def _texture(name: str, x: np.ndarray, y: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
    """Return the mask of the light colour: half the places, in a pattern of some 8 pixels."""
    angle, phase, other = random.uniform(0, 2 * np.pi, 3)
    length = random.uniform(7, 10)
    along = 2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / length + phase
    if name == "stripes":
        return np.sin(along) > 0
    across = 2 * np.pi * (y * np.cos(angle) - x * np.sin(angle)) / length + other
    return np.sin(along) * np.sin(across) > 0


def _colours(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ground, light and dark: any colours whose brightness differs enough to be seen."""
    while True:
        colours = random.uniform(20, 235, (3, 3))
        grey = colours.mean(axis=1)
        if abs(grey[1] - grey[2]) > 60 and np.abs(colours[1:] - colours[0]).mean() > 40:
            return colours[0], colours[1], colours[2]
