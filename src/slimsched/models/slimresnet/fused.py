"""Triton kernels for CUDA: group norm with its residual sum and ReLU, weight standardization, raw images.

PyTorch's group norm gives up the channels_last layout and needs several kernels for norm, sum and ReLU. These
kernels read each tensor once. One program holds all pixels of one image for a block of whole channel groups:
32 channels of 32 x 32 pixels are 32,768 numbers, which fit into the registers of 8 warps.
"""

# mypy: ignore-errors

import torch
import triton
import triton.language as tl
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# -- Raw images become the stem's input in one pass.

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


# -- Group norm and weight standardization, forward and backward.

LARGE_IMAGE_PIXELS = 1024
TILE_CHANNELS = 128


@triton.jit
def _over_group(sums, BLOCK_C: tl.constexpr, GROUP: tl.constexpr):
    """Sum over each group of channels, repeated for each channel of the group."""
    by_group = tl.sum(tl.reshape(sums, (BLOCK_C // GROUP, GROUP)), axis=1)
    repeated = tl.broadcast_to(by_group[:, None], (BLOCK_C // GROUP, GROUP))
    return tl.reshape(repeated, (BLOCK_C,))


@triton.jit
def _norm_forward(
    x_ptr, residual_ptr, y_ptr, affine_ptr, mean_ptr, rstd_ptr, C, HW, C_MAX, eps,
    GROUP: tl.constexpr, BLOCK_HW: tl.constexpr, BLOCK_C: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """y = relu(gamma (x - mean) rstd + beta + residual) for one image and one block of channels."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    pixel = tl.arange(0, BLOCK_HW)
    at = (n * HW + pixel[:, None]) * C + c[None, :]
    inside = (pixel < HW)[:, None]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    count = GROUP * HW
    mean = _over_group(tl.sum(x, axis=0), BLOCK_C, GROUP) / count
    centred = tl.where(inside, x - mean[None, :], 0.0)
    variance = _over_group(tl.sum(centred * centred, axis=0), BLOCK_C, GROUP) / count
    rstd = 1.0 / tl.sqrt(variance + eps)
    tl.store(mean_ptr + n * C + c, mean)
    tl.store(rstd_ptr + n * C + c, rstd)
    gamma = tl.load(affine_ptr + c)
    beta = tl.load(affine_ptr + C_MAX + c)
    y = centred * (rstd * gamma)[None, :] + beta[None, :]
    if RESIDUAL:
        y += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.maximum(y, 0.0)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    x_ptr, y_ptr, dy_ptr, affine_ptr, mean_ptr, rstd_ptr, dx_ptr, dresidual_ptr, partial_ptr, N, C, HW,
    GROUP: tl.constexpr, BLOCK_HW: tl.constexpr, BLOCK_C: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Gradients of `_norm_forward`; gamma and beta get one partial sum per image."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    pixel = tl.arange(0, BLOCK_HW)
    at = (n * HW + pixel[:, None]) * C + c[None, :]
    inside = (pixel < HW)[:, None]
    dz = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        dz = tl.where(tl.load(y_ptr + at, mask=inside, other=0.0) > 0, dz, 0.0)
    if RESIDUAL:
        tl.store(dresidual_ptr + at, dz.to(dresidual_ptr.dtype.element_ty), mask=inside)
    mean = tl.load(mean_ptr + n * C + c)
    rstd = tl.load(rstd_ptr + n * C + c)
    gamma = tl.load(affine_ptr + c)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x_hat = tl.where(inside, (x - mean[None, :]) * rstd[None, :], 0.0)
    dbeta = tl.sum(dz, axis=0)
    dgamma = tl.sum(dz * x_hat, axis=0)
    tl.store(partial_ptr + n * C + c, dgamma)
    tl.store(partial_ptr + (N + n) * C + c, dbeta)
    count = GROUP * HW
    shift = _over_group(gamma * dbeta, BLOCK_C, GROUP) / count
    slope = _over_group(gamma * dgamma, BLOCK_C, GROUP) / count
    dx = rstd[None, :] * (gamma[None, :] * dz - shift[None, :] - x_hat * slope[None, :])
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _affine_gradient(
    partial_ptr, out_ptr, N, C, C_MAX, ROW,
    BLOCKS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum the partial sums (2, N, C) over the images into row ROW of (rows, 2, C_MAX); zero elsewhere."""
    row, which = tl.program_id(0) // 2, tl.program_id(0) % 2
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_C,), tl.float32)
    if row == ROW:
        for block in range(BLOCKS):
            n = block * BLOCK_N + tl.arange(0, BLOCK_N)
            inside = (n < N)[:, None] & (c < C)[None, :]
            at = partial_ptr + (which * N + n)[:, None] * C + c[None, :]
            total += tl.sum(tl.load(at, mask=inside, other=0.0), axis=0)
    tl.store(out_ptr + (row * 2 + which) * C_MAX + c, total, mask=c < C_MAX)


@triton.jit
def _standardize_forward(
    w_ptr, gain_ptr, out_ptr, IN, IN_MAX, K, eps, BLOCK_K: tl.constexpr, BLOCK_I: tl.constexpr
):  # fmt: skip
    """One output channel of gain (w - mean) / sqrt(sum((w - mean)^2) + eps)."""
    o = tl.program_id(0).to(tl.int64)
    k, i = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_I)[None, :]
    inside = (k < K) & (i < IN)
    w = tl.load(w_ptr + (o * K + k) * IN_MAX + i, mask=inside, other=0.0)
    centred = tl.where(inside, w - tl.sum(w) / (K * IN), 0.0)
    scale = tl.load(gain_ptr + o) / tl.sqrt(tl.sum(centred * centred) + eps)
    tl.store(out_ptr + (o * K + k) * IN + i, (centred * scale).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _standardize_backward(
    w_ptr, gain_ptr, g_ptr, dw_ptr, dgain_ptr, OUT, IN, IN_MAX, K, eps,
    BLOCK_K: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Gradient of one output channel; zero outside the slice.

    z = c / sqrt(sum c^2 + eps), c = w - mean;  dw = r (dz - mean(dz) - z sum(dz z)),  dgain = sum(g z).
    """
    o = tl.program_id(0).to(tl.int64)
    k, i = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_I)[None, :]
    inside = (k < K) & (i < IN) & (o < OUT)
    w = tl.load(w_ptr + (o * K + k) * IN_MAX + i, mask=inside, other=0.0)
    centred = tl.where(inside, w - tl.sum(w) / (K * IN), 0.0)
    r = 1.0 / tl.sqrt(tl.sum(centred * centred) + eps)
    z = centred * r
    g = tl.load(g_ptr + (o * K + k) * IN + i, mask=inside, other=0.0).to(tl.float32)
    dgain = tl.sum(g * z)
    gain = tl.load(gain_ptr + o)
    dw = gain * r * (g - tl.sum(g) / (K * IN) - z * dgain)
    tl.store(dw_ptr + (o * K + k) * IN_MAX + i, tl.where(inside, dw, 0.0), mask=(k < K) & (i < IN_MAX))
    tl.store(dgain_ptr + o, dgain)


def fits(x: torch.Tensor, group: int) -> bool:
    """Whether one program can hold all pixels of one group."""
    pixels = triton.next_power_of_2(x.shape[2] * x.shape[3])
    return pixels <= LARGE_IMAGE_PIXELS and x.shape[1] % group == 0 and group & (group - 1) == 0


def _tile(channels: int, pixels: int, *, large: int, per_thread: int) -> dict[str, int]:
    """Block sizes: the largest power of two that divides the channels and keeps the tile small.

    Measured on an H200 with 512 images: large images run fastest with a large tile and much work per thread
    (`large` numbers, `per_thread` each), small images with 8,192 numbers in 8 warps.
    """
    block_hw = triton.next_power_of_2(pixels)
    elements, per_thread = (large, per_thread) if block_hw == LARGE_IMAGE_PIXELS else (8192, 32)
    block_c = min(channels & -channels, TILE_CHANNELS, elements // block_hw)
    warps = max(4, block_hw * block_c // (32 * per_thread))
    return {"BLOCK_HW": block_hw, "BLOCK_C": block_c, "num_warps": warps}


class FusedNorm(Function):
    """Group norm by one row of `affine` (rows, 2, C_max), plus residual, then ReLU; channels_last."""

    @staticmethod
    def forward(ctx, x, residual, affine, row, group, eps, relu):
        x = x.contiguous(memory_format=torch.channels_last)
        n, c, h, w = x.shape
        tile = _tile(c, h * w, large=32_768, per_thread=128)
        y = torch.empty_like(x)
        mean, rstd = torch.empty((2, n, c), device=x.device, dtype=torch.float32)
        if residual is not None:
            residual = residual.contiguous(memory_format=torch.channels_last)
        _norm_forward[(n, c // tile["BLOCK_C"])](
            x, x if residual is None else residual, y, affine[row], mean, rstd,
            c, h * w, affine.shape[2], eps, GROUP=group, RESIDUAL=residual is not None, RELU=relu, **tile,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu else x, affine, mean, rstd)
        ctx.row, ctx.group, ctx.relu, ctx.residual = row, group, relu, residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, y, affine, mean, rstd = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        n, c, h, w = x.shape
        tile = _tile(c, h * w, large=16_384, per_thread=64)
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if ctx.residual else None
        partial = torch.empty((2, n, c), device=x.device, dtype=torch.float32)
        _norm_backward[(n, c // tile["BLOCK_C"])](
            x, y, dy, affine[ctx.row], mean, rstd, dx, dx if dresidual is None else dresidual, partial,
            n, c, h * w, GROUP=ctx.group, RESIDUAL=ctx.residual, RELU=ctx.relu, **tile,
        )  # fmt: skip
        daffine = torch.empty_like(affine)
        rows, c_max = affine.shape[0], affine.shape[2]
        _affine_gradient[(rows * 2, triton.cdiv(c_max, 32))](
            partial, daffine, n, c, c_max, ctx.row, BLOCKS=triton.cdiv(n, 128), BLOCK_N=128, BLOCK_C=32
        )
        return dx, dresidual, daffine, None, None, None, None


class FusedStandardize(Function):
    """The standardized slice of a channels_last weight, in the given precision."""

    @staticmethod
    def forward(ctx, weight, gain, out_channels, in_channels, eps, dtype):
        k = weight.shape[2] * weight.shape[3]
        shape = (out_channels, in_channels, *weight.shape[2:])
        sliced = torch.empty(shape, device=weight.device, dtype=dtype, memory_format=torch.channels_last)
        _standardize_forward[(out_channels,)](
            weight, gain, sliced, in_channels, weight.shape[1], k, eps,
            BLOCK_K=triton.next_power_of_2(k), BLOCK_I=max(64, triton.next_power_of_2(in_channels)),
        )  # fmt: skip
        ctx.save_for_backward(weight, gain)
        ctx.slice, ctx.eps = shape, eps
        return sliced

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        weight, gain = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        k = weight.shape[2] * weight.shape[3]
        dweight, dgain = torch.empty_like(weight), torch.empty_like(gain)
        _standardize_backward[(weight.shape[0],)](
            weight, gain, g, dweight, dgain, ctx.slice[0], ctx.slice[1], weight.shape[1], k, ctx.eps,
            BLOCK_K=triton.next_power_of_2(k), BLOCK_I=max(64, triton.next_power_of_2(weight.shape[1])),
        )  # fmt: skip
        return dweight, dgain, None, None, None, None
