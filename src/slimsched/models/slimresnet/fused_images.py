# mypy: ignore-errors
"""A Triton kernel that turns raw images into the stem's input in one pass."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _normalize(
    raw_ptr, out_ptr, scale_ptr, shift_ptr, PIXELS, TOTAL,
    COLOURS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """uint8 (N, COLOURS, PIXELS) -> (N, PIXELS, CHANNELS), with zeros in the channels after the colours."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, pixel = o % CHANNELS, o // CHANNELS
    coloured = (o < TOTAL) & (c < COLOURS)
    at = (pixel // PIXELS * COLOURS + c) * PIXELS + pixel % PIXELS
    raw = tl.load(raw_ptr + at, mask=coloured, other=0).to(tl.float32)
    scale = tl.load(scale_ptr + c, mask=coloured, other=0.0)
    shift = tl.load(shift_ptr + c, mask=coloured, other=0.0)
    tl.store(out_ptr + o, (raw * scale + shift).to(out_ptr.dtype.element_ty), mask=o < TOTAL)


def normalize(raw, out, scale, shift):
    """Write raw (N, 3, H, W), normalized, into channels_last `out` (N, channels, H, W)."""
    pixels = raw.shape[2] * raw.shape[3]
    _normalize[(triton.cdiv(out.numel(), BLOCK),)](
        raw, out, scale, shift, pixels, out.numel(), COLOURS=raw.shape[1], CHANNELS=out.shape[1], BLOCK=BLOCK
    )
