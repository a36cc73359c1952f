"""Rows of one head that many share: latent elements with scales, then rotary ones; index keys."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvexact.refmodel.codecs.arithmetic import amax, clamp, exponent, greater
from kvexact.refmodel.codecs.elements import (
    E2M1,
    E4M3,
    UE8M0,
    Bytes,
    Element,
    Floats,
    Power,
    Single,
    bits_of,
)
from kvexact.refmodel.codecs.pack import (
    blocks,
    loaded,
    nibble_codes,
    nibbles,
    rows,
    stored,
    to_bytes,
)

_FRACTION = np.uint32(0x7FFFFF)
_MOST = np.float32(448)
_SIX = np.float32(6)
_LEAST_AMAX = 1e-4
_LEAST_E4M3 = 2.0**-9
_LEAST_NORMAL = 2.0**-126
_ROPE = 64


@dataclass(frozen=True)
class Latent:
    """Blocks of elements, each block divided by a scale of its own; then elements as they are.

    Attributes:
        block: elements that share a scale.
        element: e4m3, or e2m1 in half a byte.
        choose: the scales of blocks with these greatest magnitudes; stored without loss.
        scale: the type in which they are stored.
        places: of each block, where its scale lies among the scales.
        scales: how many there is room for; what no block uses is 0.
        rope: type of the 64 elements behind the blocks; None: there are none.
        rope_first: whether they lie before the scales, not behind them.
    """

    block: int
    element: Element
    choose: Callable[[Floats], Floats]
    scale: Element | Single | Power
    places: tuple[int, ...]
    scales: int
    rope: Element | None = None
    rope_first: bool = False

    @property
    def _data_bytes(self) -> int:
        return len(self.places) * self.block * self.element.size_bits // 8

    @property
    def _scale_bytes(self) -> int:
        return self.scales * self.scale.size_bytes

    @property
    def _rope_bytes(self) -> int:
        return _ROPE * self.rope.size_bytes if self.rope else 0

    def width_bytes(self, size: int) -> int:  # noqa: ARG002 - the format fixes the size
        """Bytes of a row."""
        return self._data_bytes + self._scale_bytes + self._rope_bytes

    def encode(self, x: Floats, scale: np.float32, value_type: str) -> Bytes:  # noqa: ARG002
        """Rows as bytes."""
        size = len(self.places) * self.block
        data, scales = self._encode_blocks(blocks(x[..., :size], self.block))
        parts = [data, scales]
        if self.rope:
            parts.insert(1 if self.rope_first else 2, stored(self.rope, x[..., size:]))
        return np.concatenate(parts, axis=-1)

    def _encode_blocks(self, x: Floats) -> tuple[Bytes, Bytes]:
        """Data and scales of blocks [..., blocks, block]."""
        s = self.choose(amax(x))
        codes = rows(self.element.encode(x / s))
        scales = np.zeros((*x.shape[:-2], self.scales, self.scale.size_bytes), np.uint8)
        scales[..., self.places, :] = stored(self.scale, s)
        return nibbles(codes) if self.element is E2M1 else to_bytes(codes), rows(scales)

    def decode(self, data: Bytes, scale: np.float32) -> Floats:  # noqa: ARG002
        """Bytes as rows."""
        codes, rest = np.split(data, [self._data_bytes], axis=-1)
        first = self._rope_bytes if self.rope_first else self._scale_bytes
        parts = np.split(rest, [first], axis=-1)
        rope, scales = parts if self.rope_first else parts[::-1]
        codes = nibble_codes(codes) if self.element is E2M1 else codes
        s = loaded(self.scale, blocks(scales, self.scale.size_bytes)[..., self.places, :])
        x = rows(self.element.decode(blocks(codes, self.block)) * s)
        return np.concatenate([x, loaded(self.rope, rope)], axis=-1) if self.rope else x


def fp32_scale(a: Floats) -> Floats:
    """Takes ``a`` to 448, in fp32 and no subnormal."""
    return greater(a / _MOST, _LEAST_NORMAL)


def index_scale(a: Floats) -> Floats:
    """Takes ``a``, or what is not too little, to 448, in fp32."""
    return greater(a, _LEAST_AMAX) / _MOST


def power_of_two(a: Floats) -> Floats:
    """The least power of two that is no less than `index_scale`."""
    s = index_scale(a)
    e = exponent(s) + ((bits_of(s) & _FRACTION) != 0)
    return UE8M0.decode(np.where(s == np.inf, 127, e) + 127)


def e4m3_up(a: Floats) -> Floats:
    """Takes ``a`` to 6, as the least e4m3 number that is not below; 448 where there is none."""
    s = greater(a / _SIX, _LEAST_E4M3)
    code = E4M3.encode(s)
    return E4M3.decode(np.minimum(code + (E4M3.decode(code) < s), E4M3.largest))


def e4m3_near(a: Floats) -> Floats:
    """Takes ``a`` to 6, as the nearest e4m3 number."""
    return E4M3.decode(E4M3.encode(clamp(a / _SIX, _LEAST_E4M3, 448)))
