"""The engine's encoders and decoders through its own ops: known bytes, refusals, pads, ranges."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from test_engine import ENGINES

from kvexact.impl.engine import build
from kvexact.impl.engine.cpu import CpuDevice
from kvexact.impl.engine.device import COMPUTE
from kvexact.impl.engine.engine import CpuEngine
from kvexact.impl.engine.tables import RAW_ONLY
from kvexact.impl.target import DeviceLost, OutOfBounds, Rows
from kvexact.refmodel.ops import Allocate, Free, Read, ReadValues, Slot, WriteValues
from kvexact.refmodel.spec import PAGE_FORMATS, Geometry, Group, Host, LayerSet, Refused

Floats = npt.NDArray[np.float32]

FORMATS = [name for name in PAGE_FORMATS if name not in RAW_ONLY]
SIZES = {
    "fp8_ds_mla": (576, 0),
    "nvfp4_ds_mla": (576, 0),
    "deepseek_v4": (512, 0),
    "deepseek_v41_mxfp8": (512, 0),
    "deepseek_v41_nvfp4": (512, 0),
    "indexer_fp8": (128, 0),
    "indexer_fp8_ue8m0": (128, 0),
}
CLAIM = Allocate(0, 0, (0, 1))


def layers_of(name: str, layers: int = 1, heads: int = 1, **scales: float) -> LayerSet:
    return LayerSet(layers, heads, *SIZES.get(name, (64, 64)), name, **scales)


def opened(*sets: LayerSet, engine_type: type[CpuEngine] = CpuEngine) -> CpuEngine:
    """An engine with blocks of 32 tokens, of which the group owns two."""
    engine = engine_type()
    engine.open(Geometry((Group(32, 32, sets),), 3, Host(1 << 22)))
    draw = np.random.default_rng(7)
    engine.load("pool", draw.integers(1, 255, len(engine.view("pool")), np.uint8))
    engine.apply(CLAIM, None)
    return engine


def as_type(values: Floats, value_type: str) -> npt.NDArray[np.uint8]:
    """Values that bf16 holds, as bytes of a type."""
    if value_type == "bf16":
        return np.ascontiguousarray(values.view(np.uint16)[..., 1::2]).view(np.uint8)
    return values.astype(np.float16 if value_type == "fp16" else np.float32).view(np.uint8)


def encoded(one: LayerSet, key: list[float], value: list[float], value_type: str) -> str:
    """The cell of one token, as hexadecimal digits."""
    engine = opened(one)
    row = np.array(key + value, np.float32)
    rows = as_type(row, value_type).reshape(1, 1, 1, -1)
    slots = (Slot(1, 0 if one.page_format.startswith("state") else 3),)
    engine.apply(WriteValues(1, 0, slots, 0, value_type), (rows,))
    read = engine.apply(Read(2, 0, slots), None)
    assert read is not None
    return bytes(read[0].reshape(-1)).hex()


# Known bytes. X is one row of eight values; "·" stands between what makes up a cell.

X = [0.5, -1.0, 0.25, 2.0, -2.0, 0.0, 1.5, -0.75]
HALF_X = [x / 2 for x in X]
INT8 = "20c0107f81005fd0·0402813c"
FP8 = "6ef6667efe007af2·2549923b"
INT4 = "2ef93a10·9699193f"
LEAST = "bd378635"  # 1e-6
ONE_HOT = [3.0] + [0.0] * 7

VECTORS: list[tuple[str, list[float], list[float], str]] = [
    ("int8_per_token_head", X, X, f"{INT8}·{INT8}"),
    ("int8_per_token_head", [0.0] * 4, [], f"00000000·{LEAST}·{LEAST}"),
    ("fp8_per_token_head", X, X, f"{FP8}·{FP8}"),
    ("int4_per_token_head", X, X, f"{INT4}·{INT4}"),
    ("int4_per_token_head", [0.0] * 8, [], "00000000·b0378635·b0378635"),
    # A constant row, once rotated, has no extent: all that is left is its sign.
    ("int4_per_token_head", ONE_HOT, [-x for x in ONE_HOT], "ffffffff·b0378635·00000000·bf378635"),
    ("nvfp4", X + HALF_X, [0.0] * 16, "d3710fc6b1510da4·2b·0000000000000000·00"),
    ("turboquant_k8v4", [1.0, -448.0], list(range(16)), "38fe·1032547698badcfe·003c·0000"),
    ("turboquant_k8v4", [500.0], [-0.0, 0.0], "7e·00·0000·0080"),
    ("indexer_fp8", [0.0] * 128, [], f"{'00' * 128}·adac6f34"),
    ("indexer_fp8_ue8m0", [448.0] + [0.0] * 127, [], f"7e{'00' * 127}·0000803f"),
    (
        "fp8_ds_mla",
        [448.0] + [0.0] * 575,
        [],
        f"7e{'00' * 511}·0000803f{'00008000' * 3}·{'00' * 128}",
    ),
    # The second block of 16 has its scale at byte 8; a scale is rounded up, so 6.5 / 1.125.
    (
        "nvfp4_ds_mla",
        [0.0] * 16 + [6.5] + [0.0] * 495 + [1.0] + [0.0] * 63,
        [],
        f"{'00' * 8}07{'00' * 247}·38{'00' * 63}·{'01' * 8}39{'01' * 23}",
    ),
    ("deepseek_v41_nvfp4", [6.0] + [0.0] * 511, [], f"07{'00' * 255}·38{'01' * 31}"),
    (
        "deepseek_v4",
        [1.0] + [0.0] * 63 + [448.0] + [0.0] * 63 + [450.0] + [0.0] * 319 + [1.0] + [0.0] * 63,
        [],
        f"78{'00' * 63}7e{'00' * 63}76{'00' * 319}·803f{'00' * 126}·777f80{'69' * 4}00",
    ),
    ("deepseek_v41_mxfp8", [1.0] + [0.0] * 511, [], f"78{'00' * 511}·77{'69' * 15}"),
    ("state_bf16_fp32", [1.0, 0.5], [-2.0], "803f003f·000000c0"),
    ("state_fp32", [float("nan")], [float("inf")], "0000c07f·0000807f"),
]


@pytest.mark.parametrize("value_type", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("name", "key", "value", "cell"), VECTORS)
def test_known_bytes(
    name: str, key: list[float], value: list[float], cell: str, value_type: str
) -> None:
    one = LayerSet(1, 1, len(key), len(value), name)
    assert encoded(one, key, value, value_type) == cell.replace("·", "")


CASTS = [
    ("fp8_e4m3", 0.3, "2a"),
    ("fp8_e4m3_truncated", 0.3, "29"),
    ("fp8_e4m3", -0.3, "aa"),
    ("fp8_e4m3_truncated", -0.3, "a9"),
    ("fp8_e4m3", 449.0, "7e"),
    ("fp8_e4m3_truncated", 449.0, "7e"),
    ("fp8_e4m3", float("nan"), "7f"),
    ("fp8_e4m3_truncated", float("nan"), "7e"),
    ("fp8_e4m3", -0.0, "80"),
    ("fp8_e4m3_truncated", -0.0, "00"),
    ("fp8_e4m3fnuz", -0.0, "00"),
    ("fp8_e4m3fnuz", float("nan"), "80"),
    ("fp8_e4m3fnuz", 1.0, "40"),
    ("fp8_e5m2", 0.7, "3a"),
    ("fp8_e5m2_truncated", 0.7, "39"),
    ("fp8_e5m2", 1.9, "40"),
    ("fp8_e5m2_truncated", 1.9, "3f"),
    ("fp8_e5m2", 1e9, "7b"),
    ("fp8_e5m2_truncated", 1e9, "7b"),
    ("fp16", 1e9, "007c"),
    ("bf16", 1.00390625, "803f"),
    ("bf16", 1.01171875, "823f"),
]


@pytest.mark.parametrize(("name", "value", "element"), CASTS)
def test_casts(name: str, value: float, element: str) -> None:
    assert encoded(LayerSet(1, 1, 1, 0, name), [value], [], "fp32") == element


@pytest.mark.parametrize(("largest", "byte"), [(1.0, 124), (6.4, 127), (10.0, 128), (0.0, 0)])
def test_exponents_of_ultraquant(largest: float, byte: int) -> None:
    row = [largest] + [0.0] * 31
    cell = bytes.fromhex(encoded(LayerSet(1, 1, 32, 32, "ultraquant_4bit"), row, row, "fp32"))
    assert cell[-1] == byte


def test_halves_have_scales_of_their_own() -> None:
    one = LayerSet(1, 1, 1, 1, "fp8_e4m3", k_scale=0.5, v_scale=4.0)
    assert encoded(one, [1.0], [1.0], "fp32") == "4028"


def test_fp16_rounds_as_numpy_does() -> None:
    draw = np.random.default_rng(3)
    values = draw.integers(0, 1 << 32, (32, 1, 1, 512), np.uint32).view(np.float32)
    values[~np.isfinite(values)] = 0
    with np.errstate(over="ignore"):
        want = np.abs(values) * np.float32(2.0**-80)  # few of all bits lie in reach of fp16
        values = np.where(draw.integers(2, size=values.shape), want, values)
        want = values.astype(np.float16)
    engine = opened(LayerSet(1, 1, 512, 0, "fp16"))
    slots = tuple([Slot(0, token) for token in range(32)])
    engine.apply(WriteValues(1, 0, slots, 0), (values.view(np.uint8),))
    read = engine.apply(Read(2, 0, slots), None)
    assert read is not None
    assert read[0].tobytes() == want.tobytes()


# Reading back: close to what was written, where rows are not rotated.

ROTATED = {"int4_per_token_head": (0, 128), "ultraquant_4bit": (0, 64)}


def tolerance(name: str) -> float:
    """The largest error that a format may have, as part of the largest value."""
    if name.startswith(("int8", "fp16", "bf16", "fp32", "state")):
        return 1 / 200
    return 1 / 4 if "fp4" in name or "4bit" in name else 1 / 7


@pytest.mark.parametrize("engine_type", ENGINES)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_is_near_what_was_written(name: str, engine_type: type[CpuEngine]) -> None:
    heads = 1 if name in SIZES or name.startswith("state") else 3
    one = layers_of(name, 2, heads, k_scale=0.125, v_scale=0.25)
    engine = opened(one, engine_type=engine_type)
    draw = np.random.default_rng(5)
    elements = one.head_size_k + one.head_size_v
    values = draw.uniform(-4, 4, (3, 2, heads, elements)).astype(np.float32)
    slots = (Slot(0, 0),) if name.startswith("state") else (Slot(1, 9), Slot(0, 0), Slot(1, 31))
    values = values[: len(slots)]
    engine.apply(WriteValues(1, 0, slots, 0), (values.view(np.uint8),))
    read = engine.apply(ReadValues(2, 0, slots), None)
    assert read is not None
    got = read[0].view(np.float32)
    assert got.shape == values.shape
    first, last = ROTATED.get(name, (0, 0))
    error = np.abs(got - values)
    error[..., first:last] = 0
    assert error.max() <= 4 * tolerance(name)


@pytest.mark.parametrize("name", FORMATS)
def test_pads_write_nothing_and_read_zeros(name: str) -> None:
    one = layers_of(name)
    engine = opened(one)
    before = engine.view("pool").tobytes()
    values = np.ones((2, 1, 1, one.head_size_k + one.head_size_v), np.float32)
    engine.apply(WriteValues(1, 0, (None, None), 0), (values.view(np.uint8),))
    engine.apply(WriteValues(1, 0, (), 0), (values[:0].view(np.uint8),))
    assert engine.view("pool").tobytes() == before
    read = engine.apply(ReadValues(2, 0, (None, Slot(1, 0), None)), None)
    assert read is not None
    assert not read[0][[0, 2]].any()
    empty = engine.apply(ReadValues(2, 0, ()), None)
    assert empty is not None
    assert empty[0].shape == (0, *read[0].shape[1:])


def test_the_pad_byte_is_left_alone() -> None:
    one = LayerSet(2, 3, 2, 2, "turboquant_k8v4")
    engine = opened(one)
    slots = (Slot(0, 0), Slot(1, 5))
    old = engine.apply(Read(1, 0, slots), None)
    engine.apply(WriteValues(1, 0, slots, 0), (np.ones((2, 2, 3, 16), np.uint8),))
    new = engine.apply(Read(2, 0, slots), None)
    assert old is not None
    assert new is not None
    assert (old[0][..., 7] == new[0][..., 7]).all()
    assert (old[0][..., :7] != new[0][..., :7]).any(axis=-1).all()


@pytest.mark.parametrize("engine_type", ENGINES)
def test_layer_sets_of_a_group_are_encoded_each_as_alone(engine_type: type[CpuEngine]) -> None:
    sets = (
        LayerSet(2, 3, 7, 3, "fp8_e4m3"),
        LayerSet(1, 2, 48, 80, "int8_per_token_head", page_bytes=32 * 2 * 136 + 4),
        LayerSet(1, 1, 576, 0, "nvfp4_ds_mla", side=True),
        LayerSet(3, 2, 16, 16, "nvfp4", k_scale=0.5),
    )
    slots = (Slot(0, 31), None, Slot(1, 0))
    draw = np.random.default_rng(2)
    rows = tuple(
        [
            draw.normal(size=(3, s.layers, s.kv_heads, s.head_size_k + s.head_size_v))
            .astype(np.float16)
            .view(np.uint8)
            for s in sets
        ]
    )

    def cells(*some: LayerSet, of: Rows) -> tuple[list[bytes], list[bytes]]:
        engine = opened(*some, engine_type=engine_type)
        engine.apply(WriteValues(1, 0, slots, 0, "fp16"), of)
        raw, decoded = (engine.apply(kind(2, 0, slots), None) for kind in (Read, ReadValues))
        launched = {name: n for name, n in engine.launches().items() if " " not in name}
        assert launched == {"encode": len(some), "write": 1, "read": 2, "decode": len(some)}
        return [data.tobytes() for data in raw or ()], [data.tobytes() for data in decoded or ()]

    together = cells(*sets, of=rows)
    alone = [cells(one, of=(data,)) for one, data in zip(sets, rows, strict=True)]
    assert together == ([raw[0] for raw, _ in alone], [decoded[0] for _, decoded in alone])


# Refusals.

RAW = LayerSet(1, 1, 16, 16, "turboquant_3bit_nc")
PLAIN = LayerSet(1, 1, 16, 16, "bf16")


@pytest.mark.parametrize(
    ("group", "slots", "reason"),
    [
        (2, (), "range"),
        (1, (Slot(3, 0),), "range"),
        (1, (Slot(0, 4),), "range"),
        (1, (), "format"),
        (1, (Slot(0, 0), Slot(0, 0)), "format"),
        (0, (Slot(2, 0), Slot(2, 0)), "duplicate"),
        (0, (Slot(0, 0), Slot(2, 0)), "owner"),
    ],
)
def test_refusals_in_their_order(group: int, slots: tuple[Slot, ...], reason: str) -> None:
    groups = Group(4, 4, (PLAIN,)), Group(4, 4, (PLAIN, RAW))
    engine = CpuEngine()
    engine.open(Geometry(groups, 3, Host(1 << 16), "BLNHC"))
    engine.apply(Allocate(0, 0, (0, 1)), None)
    before = engine.view("pool").tobytes()
    row = np.ones((len(slots), 1, 1, 128), np.uint8)
    rows = (row,) if group == 0 else (row, row)
    with pytest.raises(Refused) as written:
        engine.apply(WriteValues(1, group, slots, 0), rows)
    assert written.value.reason == reason
    if reason != "duplicate":
        with pytest.raises(Refused) as read:
            engine.apply(ReadValues(1, group, slots), None)
        assert read.value.reason == reason
    assert engine.view("pool").tobytes() == before
    assert "encode" not in engine.launches()


def test_a_slot_may_be_read_twice_but_not_after_it_is_free() -> None:
    engine = opened(PLAIN)
    read = engine.apply(ReadValues(1, 0, (Slot(0, 1), Slot(0, 1))), None)
    assert read is not None
    assert read[0][0].tobytes() == read[0][1].tobytes()
    engine.apply(Free(2, 0, (0,)), None)
    with pytest.raises(Refused, match="owner"):
        engine.apply(ReadValues(3, 0, (Slot(0, 1),)), None)


# Ranges: a launch that would leave scratch memory does nothing at all.


@pytest.mark.parametrize("reverse", [False, True])
def test_launches_stay_in_scratch_memory(reverse: bool) -> None:
    device = CpuDevice(reverse=reverse)
    scratch = device.scratch
    end = len(scratch.bytes)
    int8 = PAGE_FORMATS.index("int8_per_token_head")

    def launch(kernel: str, values: int, cells: int) -> None:
        # Three cells of 8 + 4 bytes twice, and 16 values each; scales are those of 1.0.
        sizes = 8, 8, 0x3F800000, 0x3F800000, 24, 3
        places = scratch.device + values, scratch.device + cells
        if kernel == "encode":
            device.launch(COMPUTE, "encode", int8, 0, *sizes, *places)
        else:
            device.launch(COMPUTE, "decode", int8, *sizes, *reversed(places))

    for kernel in ("encode", "decode"):
        launch(kernel, 0, end - 72)
        launch(kernel, end - 192, 1)
        scratch.bytes[:] = 3
        for values, cells in ((0, end - 71), (end - 188, 0), (-16, 512), (256, -1)):
            with pytest.raises(OutOfBounds, match=f"{kernel}: .* are outside registered memory"):
                launch(kernel, values, cells)
        with pytest.raises(DeviceLost, match="misaligned"):
            launch(kernel, 2, 512)
        assert (scratch.bytes == 3).all()


def test_formats_have_the_numbers_of_the_specification() -> None:
    text = build.SOURCE.with_name("formats.cuh").read_text()
    listed = re.search(r"enum class Format \{(.*?)\};", text, re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r"\w+", listed[1])) == PAGE_FORMATS


def test_kernels_are_built_again_for_another_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.name for path in build.HEADERS} >= {"codecs.cuh", "numbers.cuh"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    header, source = tmp_path / "one.cuh", tmp_path / "one.cu"
    source.write_text('#include "one.cuh"\n')
    monkeypatch.setattr(build, "HEADERS", (header,))
    built = []
    for text in ("int one() { return 1; }", "int one() { return 2; }"):
        header.write_text(text)
        built.append(build.host_library([], source))
    assert built[0] != built[1]
