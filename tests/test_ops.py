"""Operators: every form equals the naive one, outputs and gradients, also where the numbers are hard."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from icll.jit import kernel
from icll.mixers.rotary import rotate
from icll.ops import (
    attention_linear_attend,
    chunked_linear_attend,
    chunked_selective_scan,
    diagonal_filter,
    linear_attend,
    long_convolve,
    naive_diagonal_filter,
    naive_linear_attend,
    naive_long_convolve,
    naive_rms_norm,
    naive_selective_scan,
    naive_swiglu,
    naive_wkv,
    parallel_wkv,
    rms_norm,
    selective_scan,
    short_convolve,
    swiglu,
    wkv,
    wkv_weights,
)
from icll.ops.attention import _BlockedAttention, causal_attention
from icll.ops.convolution import _quick_length
from icll.ops.cpu import exp


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agree(
    reference: Callable[..., torch.Tensor], other: Callable[..., torch.Tensor], inputs: list, tolerance: float = 1e-9
) -> None:
    """Outputs and the gradients of all inputs."""
    a, b = ([None if t is None else t.clone().requires_grad_() for t in inputs] for _ in range(2))
    left, right = reference(*a), other(*b)
    assert left.isfinite().all() and right.isfinite().all()
    torch.testing.assert_close(right, left, rtol=tolerance, atol=tolerance)
    weight = noise(*left.shape, seed=99)
    gradients = [
        torch.autograd.grad((y * weight).sum(), [t for t in x if t is not None], allow_unused=True)
        for y, x in ((left, a), (right, b))
    ]
    for one, two in zip(*gradients, strict=True):
        if one is None:  # a single token has no past: what only acts over time does not matter
            assert two is None or not two.any()
            continue
        assert two.isfinite().all()
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance * max(1.0, float(one.abs().max())))


def scan_inputs(L: int, D: int = 9, N: int = 3, dt: float = 0.0) -> list[torch.Tensor]:
    return [noise(2, L, D), F.softplus(noise(2, L, D, seed=1) + dt), -torch.exp(noise(D, N, seed=2)),
            noise(2, L, N, seed=3), noise(2, L, N, seed=4)]  # fmt: skip


@pytest.mark.parametrize("form", [selective_scan, chunked_selective_scan])
@pytest.mark.parametrize("L", [1, 2, 31, 32, 33, 65])
def test_selective_scan(form, L):
    agree(naive_selective_scan, form, scan_inputs(L))


@pytest.mark.parametrize("D", [1, 64, 65])
def test_selective_scan_at_block_borders(D):
    agree(naive_selective_scan, selective_scan, scan_inputs(40, D))


@pytest.mark.parametrize("dt", [-30.0, 30.0, 300.0])
def test_selective_scan_with_gates_near_one_and_zero(dt):
    agree(naive_selective_scan, selective_scan, scan_inputs(70, dt=dt))


def wkv_inputs(L: int, D: int = 9, k: float = 1.0, w: float = 0.0) -> list[torch.Tensor]:
    return [torch.exp(noise(D) + w), noise(D, seed=1), k * noise(2, L, D, seed=2), noise(2, L, D, seed=3)]


@pytest.mark.parametrize("form", [wkv, parallel_wkv, lambda w, u, k, v: torch.einsum("bdts,bsd->btd", wkv_weights(w, u, k), v)])
@pytest.mark.parametrize("L", [1, 2, 31, 32, 33, 65])
def test_wkv(form, L):
    agree(naive_wkv, form, wkv_inputs(L))


@pytest.mark.parametrize(("k", "w"), [(300.0, 0.0), (1.0, -20.0), (1.0, 6.0), (1000.0, 5.0)])
def test_wkv_with_huge_keys_and_extreme_decay(k, w):
    for form in (wkv, parallel_wkv):
        agree(naive_wkv, form, wkv_inputs(70, D=70, k=k, w=w))


def attend_inputs(L: int, decay: str, gate: float = 0.0, B: int = 2) -> list[torch.Tensor | None]:
    H, K, V = 3, 4, 5
    q, k, v = noise(B, L, H, K), noise(B, L, H, K, seed=1), noise(B, L, H, V, seed=2)
    log_decay = {
        "none": None, "head": -torch.exp(noise(H, seed=3) + gate), "key": F.logsigmoid(noise(B, L, H, K, seed=4) - gate),
        "both": F.logsigmoid(noise(B, L, H, K, seed=4) - gate),
    }[decay]  # fmt: skip
    return [q, k, v, log_decay, F.logsigmoid(noise(B, L, H, V, seed=5) - gate) if decay == "both" else None]


@pytest.mark.parametrize("form", [linear_attend, chunked_linear_attend, attention_linear_attend])
@pytest.mark.parametrize("decay", ["none", "head", "key", "both"])
@pytest.mark.parametrize("L", [1, 2, 15, 16, 17, 65])
def test_linear_attention(form, decay, L):
    agree(naive_linear_attend, form, attend_inputs(L, decay))


@pytest.mark.parametrize("form", [linear_attend, chunked_linear_attend, attention_linear_attend])
@pytest.mark.parametrize("decay", ["head", "key", "both"])
@pytest.mark.parametrize("gate", [-30.0, 30.0])
def test_linear_attention_with_gates_near_one_and_zero(form, decay, gate):
    agree(naive_linear_attend, form, attend_inputs(50, decay, gate))


def test_chunks_of_any_size():
    inputs = attend_inputs(37, "key")
    for chunk in (1, 5, 37, 100):
        agree(naive_linear_attend, lambda *x, c=chunk: chunked_linear_attend(*x, chunk=c), inputs)


@pytest.mark.slow
@pytest.mark.parametrize("gate", [-8.0, 0.0, 40.0])
def test_long_texts_with_strong_decay(gate):
    """L = 4,096: nothing overflows, and the forms agree."""
    L = 4096
    for decay in ("head", "key", "both"):
        inputs = attend_inputs(L, decay, gate, B=1)
        with torch.no_grad():
            expected = naive_linear_attend(*inputs)
            for form in (linear_attend, chunked_linear_attend):
                torch.testing.assert_close(form(*inputs), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    agree(naive_wkv, wkv, wkv_inputs(L, D=3, k=5.0, w=gate / 8))
    agree(naive_selective_scan, selective_scan, scan_inputs(L, D=3, dt=gate))


def test_single_precision_is_close_to_double():
    for op, inputs in (
        (selective_scan, scan_inputs(300)), (wkv, wkv_inputs(300)), (linear_attend, attend_inputs(300, "key")),
    ):  # fmt: skip
        exact = op(*inputs)
        single = op(*(None if t is None else t.float() for t in inputs))
        assert single.dtype == torch.float32
        assert (single - exact).abs().max() < 2e-6 * exact.abs().max()


def test_half_precision_is_computed_in_single():
    inputs = [t.bfloat16() for t in scan_inputs(50)]
    out = selective_scan(*inputs)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, selective_scan(*(t.float() for t in inputs)).bfloat16())


def test_results_do_not_depend_on_threads():
    inputs = [t.float() for t in scan_inputs(60)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = selective_scan(*inputs)
        torch.set_num_threads(2)
        assert torch.equal(selective_scan(*inputs), one)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-7), (np.float64, 5e-16)])
def test_exponential(dtype, tolerance):
    @kernel
    def over(x, y):
        for i in range(x.size):
            y[i] = exp(x[i])

    x = np.concatenate([np.linspace(-80, 80, 100_001), np.linspace(-1e-6, 1e-6, 101), [0.0]]).astype(dtype)
    y = np.empty_like(x)
    over(x, y)
    assert np.abs(y / np.exp(x.astype(np.longdouble)) - 1).max() < tolerance
    ends = np.array([-1e30, 1e30], dtype)
    out = np.empty_like(ends)
    over(ends, out)
    assert 0 <= out[0] < 1e-37 and np.isfinite(out[1])


@pytest.mark.parametrize("L", [1, 2, 7, 64, 101])
def test_long_convolution(L):
    for n in (L, max(1, L // 2), L + 3):
        agree(naive_long_convolve, long_convolve, [noise(2, L, 3), noise(3, n, seed=1)])


def test_convolutions_by_hand():
    x = torch.tensor([1.0, 2.0, 0.0, 4.0])[None, :, None]
    filters = torch.tensor([[1.0, 10.0]])
    for convolve in (long_convolve, naive_long_convolve, short_convolve):
        torch.testing.assert_close(convolve(x, filters)[0, :, 0], torch.tensor([1.0, 12.0, 20.0, 4.0]))


def test_quick_lengths_have_small_factors():
    for least in range(1, 3000):
        n = _quick_length(least)
        assert least <= n <= 2 * least
        for factor in (2, 3, 5):
            while n % factor == 0:
                n //= factor
        assert n == 1
    assert _quick_length(799) == 800


@pytest.mark.parametrize("L", [1, 2, 3, 99, 100, 101])
def test_diagonal_filter(L):
    rate = torch.complex(-torch.exp(noise(3, 4)), 3 * noise(3, 4, seed=1))
    weight = torch.complex(noise(3, 4, seed=2), noise(3, 4, seed=3))
    torch.testing.assert_close(diagonal_filter(rate, weight, L), naive_diagonal_filter(rate, weight, L), rtol=1e-12, atol=1e-12)


def test_rotary_products_depend_on_the_distance_alone():
    q, k = noise(1, 1, 1, 8), noise(1, 1, 1, 8, seed=1)
    products = [float((rotate(q, at + 5) * rotate(k, at)).sum()) for at in (0, 3, 1000)]
    assert max(products) - min(products) < 1e-9
    assert abs(products[0] - float((rotate(q, 6) * rotate(k, 0)).sum())) > 1e-3


@pytest.mark.parametrize(
    ("file", "function", "names"),
    [
        ("linear_attn/chunk.py", "chunk_linear_attn", ["q", "k", "v", "scale", "normalize"]),
        ("simple_gla/chunk.py", "chunk_simple_gla", ["q", "k", "v", "g_gamma", "scale"]),
        ("gla/chunk.py", "chunk_gla", ["q", "k", "v", "g", "scale"]),
        ("rwkv4/fused_recurrent.py", "fused_recurrent_rwkv4", ["w", "u", "k", "v", "state"]),
    ],
)
def test_the_gpu_kernels_take_what_we_give(file, function, names):
    """Their package cannot be imported without Triton, but its source can be read."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("fla-core is not installed")
    tree = ast.parse((Path(package.origin).parent / "ops" / file).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    assert set(names) <= {argument.arg for argument in found.args.args}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("decay", ["none", "head", "key"])
def test_gpu_forms_equal_the_cpus(decay):
    inputs = [None if t is None else t.float() for t in attend_inputs(130, decay)]
    on_gpu = linear_attend(*(None if t is None else t.cuda() for t in inputs))
    torch.testing.assert_close(on_gpu.cpu(), linear_attend(*inputs), rtol=2e-2, atol=2e-2)
    inputs = [t.float() for t in wkv_inputs(130)]
    torch.testing.assert_close(wkv(*(t.cuda() for t in inputs)).cpu(), wkv(*inputs), rtol=1e-3, atol=1e-3)


def test_retention_weights_by_hand():
    q = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    v = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)[None, :, None, None]
    out = linear_attend(q, q, v, torch.tensor([math.log(0.5)]))
    torch.testing.assert_close(out.flatten(), torch.tensor([1.0, 10.5, 105.25], dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 127, 128, 300])
def test_blocked_attention(length):
    inputs = [noise(2, 3, length, 8, seed=i) for i in range(3)]
    agree(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), _BlockedAttention.apply, inputs)


def test_attention_in_bfloat16():
    """As exact as bfloat16 is, beside torch's own kernel, inside autocast and outside."""
    exact = [noise(2, 2, 200, 16, seed=i).float() for i in range(3)]
    reference = F.scaled_dot_product_attention(*exact, is_causal=True)
    qkv = [t.bfloat16().requires_grad_() for t in exact]
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            ours = causal_attention(*qkv)
        assert "BlockedAttention" in type(ours.grad_fn).__name__ and ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.float(), reference, rtol=0.05, atol=0.02)
    theirs = F.scaled_dot_product_attention(*qkv, is_causal=True)
    assert (ours.float() - reference).abs().mean() < 2 * (theirs.float() - reference).abs().mean()
    gradients = [torch.autograd.grad(y.float().square().sum(), qkv) for y in (ours, theirs)]
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one.float(), two.float(), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("shape", [(1,), (7,), (5, 1), (2, 3, 64), (1, 130, 9)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_rms_norm(shape, size):
    inputs = [size * noise(*shape), noise(shape[-1], seed=1)]
    agree(lambda x, w: naive_rms_norm(x, w, 1e-5), lambda x, w: rms_norm(x, w, 1e-5), inputs)


@pytest.mark.parametrize("shape", [(2,), (3, 10), (2, 70, 6)])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_swiglu(shape, size):
    agree(naive_swiglu, swiglu, [size * noise(*shape)])


def test_norm_and_gate_in_other_precisions_and_layouts():
    x, weight = noise(4, 6, 3, 8).float().transpose(0, 2), noise(8, seed=1).float()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), naive_rms_norm(x, weight, 1e-5))
    torch.testing.assert_close(swiglu(x), naive_swiglu(x))
    half = x.bfloat16()  # torch's own
    assert torch.equal(swiglu(half), naive_swiglu(half)) and rms_norm(half, weight.bfloat16(), 1e-5).dtype == torch.bfloat16
    assert swiglu(x.to("meta")).shape == (3, 6, 4, 4)
    nothing = x[:0].requires_grad_()
    (rms_norm(nothing, weight, 1e-5).sum() + swiglu(nothing).sum()).backward()
    assert nothing.grad is not None and nothing.grad.shape == nothing.shape
