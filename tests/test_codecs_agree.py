"""Model and engine, derived apart from docs/formats.md, agree about every byte of every format.

KVEXACT_CODEC_BATCHES says how many random batches of tokens a format gets, SEED which ones.
"""

import os
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pytest

from kvexact.impl.engine.cpu import CpuDevice
from kvexact.impl.engine.order import InOrder
from kvexact.impl.engine.planner import Planner
from kvexact.impl.engine.tables import RAW_ONLY
from kvexact.impl.engine.values import Codecs
from kvexact.impl.engine.views import Views
from kvexact.impl.target import Bytes
from kvexact.refmodel import codecs
from kvexact.refmodel.content import slot_values
from kvexact.refmodel.ops import VALUE_STYLES, VALUE_TYPES
from kvexact.refmodel.spec import PAGE_FORMATS, Geometry, Group, Host, LayerSet

BATCHES = int(os.environ.get("KVEXACT_CODEC_BATCHES", "500"))
SEED = int(os.environ.get("SEED", "0"))

FORMATS = [name for name in PAGE_FORMATS if name not in RAW_ONLY]

#: Sizes of key and value, by how the names of formats begin; the first that fits counts.
SIZES: dict[str, list[tuple[int, int]]] = {
    "fp8_ds_mla": [(576, 0)],
    "nvfp4_ds_mla": [(576, 0)],
    "deepseek": [(512, 0)],
    "indexer": [(128, 0)],
    "nvfp4_swizzled": [(64, 64), (192, 192), (576, 576)],
    "nvfp4": [(16, 16), (48, 48), (80, 80), (112, 112), (576, 576)],
    "ultraquant": [(32, 32), (64, 64), (256, 256), (1024, 1024)],
    "int4": [(2, 6), (46, 80), (96, 0), (112, 192), (576, 512)],
    "turboquant": [(1, 2), (45, 46), (80, 96), (7, 0), (192, 112)],
    "bf16_cpu_amx": [(32, 32), (96, 96)],
    "bf16_rocm": [(8, 8), (80, 80)],
    "bf16_aiter": [(8, 8), (80, 80)],
    "bf16_cpu_vec": [(1, 1), (46, 46)],
    "": [(1, 0), (3, 7), (46, 80), (96, 112), (192, 5), (576, 512)],
}
SCALES = (1.0, 0.5, float(np.float32(0.0137)), float(np.float32(3.7)), 2.0**-100, 2.0**100)
ROWS = 4

# Lanes of a warp as fibres: what lanes do together on a GPU, on the host. Its bytes are in a macro,
# so that kernels are built again when it changes.
FIBRES = Path(__file__).with_name("warp.cuh")
WARP = (f'KV_WARP="{FIBRES}"', f"KV_WARP_CRC={crc32(FIBRES.read_bytes())}")


class Shape(NamedTuple):
    """Layer sets of one format, in a group, and the engine's part that encodes them."""

    layer_sets: tuple[LayerSet, ...]
    codecs: Codecs


def shapes_of(name: str, device: CpuDevice, draw: np.random.Generator) -> list[Shape]:
    sizes = next(found for start, found in SIZES.items() if name.startswith(start))
    one_head = name.startswith(("fp8_ds", "nvfp4_ds", "deepseek", "indexer", "state"))
    shapes = []
    for k, v in sizes:
        for _ in range(3):
            layers = int(draw.integers(1, 3))
            heads = 1 if one_head else int(draw.integers(1, 4))
            k_scale, v_scale = draw.choice(SCALES, 2).tolist()
            one = LayerSet(layers, heads, k, v, name, k_scale=k_scale, v_scale=v_scale)
            # Behind one of odd bytes, cells start anywhere.
            sets = (LayerSet(1, 1, 1, 0, "fp8_e4m3"), one) if draw.integers(2) else (one,)
            plan = Planner().plan(Geometry((Group(4, 4, sets),), 1, Host(1 << 20)))
            shapes.append(Shape(sets, Codecs(plan, device, InOrder(Views(plan, device), device))))
    return shapes


def raw(draw: np.random.Generator, *size: int) -> Bytes:
    return draw.integers(0, 256, size, np.uint8)


def values_of(
    draw: np.random.Generator, sets: tuple[LayerSet, ...], value_type: str
) -> list[Bytes]:
    """Values of a style, of any bits at all, or of zeros of both signs and one other number."""
    style = (*VALUE_STYLES, "bits", "zeros")[draw.integers(4)]
    tag, first = (int(word) for word in draw.integers(0, 1 << 20, 2))
    found = []
    for s, one in enumerate(sets):
        shape = (one.layers, one.kv_heads, one.head_size_k, one.head_size_v)
        slots = range(first, first + ROWS)
        known = style if style in VALUE_STYLES else "plain"
        values = slot_values(tag, 0, s, slots, shape, value_type, known)
        if style == "bits":
            values = raw(draw, *values.shape)
        elif style == "zeros":
            element = 4 if value_type == "fp32" else 2
            values = np.zeros_like(values)
            highest = values[..., element - 1 :: element]
            highest[:] = draw.choice([0x00, 0x80, 0x3F], highest.shape)
        found.append(values)
    return found


def cells_in_scratch(shape: Shape, start: int) -> list[Bytes]:
    """Cells of each layer set as they lie in scratch memory from ``start`` on, as views."""
    found = []
    for one in shape.codecs.plan.groups[0].sets:
        size = (ROWS, one.shape.layers, one.shape.heads, one.shape.cell_bytes)
        end = start + int(np.prod(size))
        found.append(shape.codecs.device.scratch.bytes[start:end].reshape(size))
        start = end
    return found


def difference(shape: Shape, got: list[Bytes], want: list[Bytes], values: list[Bytes]) -> str:
    """What the first cell is in which they differ, but for a `pad` byte; nothing if none does."""
    plan = shape.codecs.plan.groups[0]
    for planned, one, ours, right, data in zip(
        plan.sets, shape.layer_sets, got, want, values, strict=True
    ):
        last = planned.shape.fields[-1]
        end = last.cell_offset if last.name == "pad" else None
        differs = (ours != right)[..., :end].any(axis=-1)
        if differs.any():
            where = tuple(np.argwhere(differs)[0])
            what = {"values": data, "engine": ours, "model": right}
            lines = [f"{name}: {bytes(cells[where]).hex()}" for name, cells in what.items()]
            return "\n".join([str(one), *lines])
    return ""


@pytest.mark.parametrize("name", FORMATS)
def test_model_and_engine_agree(name: str) -> None:
    agree(name, [CpuDevice(lanes=1), CpuDevice(lanes=32, reverse=True)], BATCHES)


@pytest.mark.parametrize("name", FORMATS)
def test_lanes_of_a_warp_agree(name: str) -> None:
    agree(name, [CpuDevice(WARP)], -(-BATCHES // 25))


def agree(name: str, devices: list[CpuDevice], batches: int) -> None:
    draw = np.random.default_rng([SEED, PAGE_FORMATS.index(name)])
    shapes = [shape for device in devices for shape in shapes_of(name, device, draw)]
    slots = range(ROWS)
    for _ in range(batches):
        shape = shapes[draw.integers(len(shapes))]
        sets = shape.layer_sets
        value_type = VALUE_TYPES[draw.integers(3)]
        values = values_of(draw, sets, value_type)
        start = shape.codecs.encode(0, slots, value_type, tuple(values))
        got = cells_in_scratch(shape, start)
        want = [
            codecs.encode(one, value_type, data) for one, data in zip(sets, values, strict=True)
        ]
        found = difference(shape, got, want, values)
        assert not found, f"encoded from {value_type}: {found}"

        places = shape.codecs.stage(0, slots)
        cells = cells_in_scratch(shape, places.cells)
        for data, encoded in zip(cells, want, strict=True):
            data[:] = encoded if draw.integers(2) else raw(draw, *data.shape)
        decoded = [codecs.decode(one, data) for one, data in zip(sets, cells, strict=True)]
        shape.codecs.decode(0, ROWS, places)
        read = shape.codecs.decoded(0, ROWS, places)
        for one, ours, right in zip(sets, read, decoded, strict=True):
            where = np.argwhere((ours != right).any(axis=-1))[:1].tolist()
            assert not where, f"decoded: {one}, cell {where}"
