"""Mixers: all forms equal, the state-space and Hyena equations as textbooks have them, and the contract of conformance."""

from __future__ import annotations

import math
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F

from icll import IcllError, build_model
from icll.conformance import SUITE, check_mixer
from icll.mixers import ARCHITECTURES, H3, S4, Hyena, Mixer, Retention, architecture, find_architecture, make_mixer
from icll.mixers.state_space import SPECTRA, initial_spectrum, legs

GIVEN = {"d_model": 16, "n_heads": 2, "n_layers": 2, "layer": 1, "max_length": 128, "dropout": 0.0}
VARIANTS = [(name, {}) for name in ARCHITECTURES] + [
    ("gla", {"value_gate": True}),
    ("s4", {"structure": "dplr"}),
    ("s4", {"spectrum": "inv"}),
    ("h3", {"spectrum": "legs", "states": 8}),
    ("hyena", {"order": 3}),
    ("mamba", {"states": 4, "expand": 1, "short": 2}),
]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(name: str, **options):
    torch.manual_seed(0)
    return make_mixer(find_architecture(name), GIVEN, options).double()


def test_all_of_the_papers_architectures_are_there():
    paper = {"transformer", "llama", "linear_transformer", "retnet", "lstm", "rwkv", "gla", "mamba", "s4", "h3", "hyena"}
    assert paper <= set(ARCHITECTURES)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("L", [1, 17, 67])
def test_forms_are_equal(name, options, L):
    mixer = make(name, **options)
    x = noise(2, L, 16)
    weight = noise(2, L, 16, seed=1)
    results = []
    for form in mixer.forms:
        mixer.form = form
        inputs = x.clone().requires_grad_()
        y = mixer(inputs)
        # A single token leaves no gradient for what only acts over time; that counts as zero.
        gradients = torch.autograd.grad((y * weight).sum(), [inputs, *mixer.parameters()], allow_unused=True)
        filled = [
            torch.zeros_like(p) if g is None else g for g, p in zip(gradients, [inputs, *mixer.parameters()], strict=True)
        ]
        results.append((form, y, filled))
    for form, y, gradients in results[1:]:
        torch.testing.assert_close(y, results[0][1], rtol=1e-9, atol=1e-9, msg=form)
        for a, b in zip(gradients, results[0][2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * max(1.0, float(b.abs().max())), msg=form)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_our_own_mixers_conform(name, options):
    checks = check_mixer(name, options)
    assert [c.name for c in checks] == [title for title, _ in SUITE]
    assert not [str(c) for c in checks if c.passed is False]


@pytest.mark.parametrize(("name", "channels"), [
    ("transformer", 2), ("llama", 2), ("linear_transformer", 2), ("retnet", 2),
    ("gla", 2), ("rwkv", 16), ("s4", 16), ("h3", 16), ("hyena", 16), ("mamba", 32),
])  # fmt: skip
def test_mixing_matrices_have_the_shapes_promised(name, channels):
    mixing = make(name).mixing(noise(3, 12, 16))
    assert mixing.weights.shape == (3, channels, 12, 12) and mixing.mean.shape == (3, 12, 12)


# --- textbook forms, from the equations ---


def test_s4_is_its_recurrence_with_matrix_exponentials():
    """h' = A h + B x by zero-order hold: A_bar = e**(dt A), B_bar = A**-1 (A_bar - 1) B, with full complex matrices."""
    mixer = make("s4", states=6)
    ssm, x = mixer.ssm, noise(2, 20, 16)
    with torch.no_grad():
        y = torch.zeros_like(x)
        for d in range(16):
            half = torch.complex(-torch.exp(ssm.log_rate[d]), ssm.frequency[d])
            A = torch.diag(torch.cat([half, half.conj()]))
            C = torch.view_as_complex(ssm.weight[d])
            C = torch.cat([C, C.conj()])
            A_bar = torch.linalg.matrix_exp(torch.exp(ssm.log_dt[d]) * A)
            B_bar = torch.linalg.inv(A) @ (A_bar - torch.eye(6)) @ torch.ones(6, 1, dtype=A.dtype)
            for b in range(2):
                h = torch.zeros(6, 1, dtype=A.dtype)
                for t in range(20):
                    h = A_bar @ h + B_bar * x[b, t, d]
                    y[b, t, d] = (C @ h).real[0] + ssm.skip[d] * x[b, t, d]
        expected = F.glu(F.gelu(y) @ mixer.out.weight.T + mixer.out.bias)
        torch.testing.assert_close(mixer(x), expected, rtol=1e-9, atol=1e-9)


def test_dplr_starts_as_hippo_legs_itself():
    """The filter of A = diag - p p* in complex pairs is that of the real HiPPO-LegS matrix, by the bilinear rule."""
    N, L = 8, 30
    ssm = S4(3, states=N, structure="dplr").double().ssm
    A, _, B = legs(N)
    assert torch.allclose(A, torch.tensor([
        [-math.sqrt(2 * n + 1) * math.sqrt(2 * k + 1) if n > k else -(n + 1.0) if n == k else 0.0 for k in range(N)]
        for n in range(N)
    ], dtype=torch.float64))  # fmt: skip
    p, C = torch.sqrt(torch.arange(N, dtype=torch.float64) + 0.5), noise(3, N)
    normal = A + torch.outer(p, p)
    frequencies, basis = torch.linalg.eigh((normal + 0.5 * torch.eye(N)) * -1j)
    basis, frequencies = basis[:, frequencies > 0], frequencies[frequencies > 0]
    with torch.no_grad():
        # The start, made in float32. An eigenvector's phase is free: what does not depend on it must agree.
        ours = [torch.view_as_complex(w) for w in (ssm.low_rank, ssm.into)]
        theirs = [basis.conj().T @ vector.to(basis.dtype) for vector in (p, B)]
        torch.testing.assert_close(ssm.frequency[0], frequencies, rtol=1e-5, atol=1e-5)
        for i, j in ((0, 0), (0, 1), (1, 1)):
            torch.testing.assert_close((ours[i] * ours[j].conj())[0], theirs[i] * theirs[j].conj(), rtol=1e-5, atol=1e-5)
        # The rest in float64.
        dt = torch.exp(ssm.log_dt)
        ssm.log_rate.fill_(math.log(0.5))
        ssm.frequency.copy_(frequencies.expand(3, -1))
        ssm.weight.copy_(torch.view_as_real((C.to(basis.dtype) @ basis).contiguous()))
        for parameter, vector in ((ssm.low_rank, p), (ssm.into, B)):
            changed = torch.view_as_real(basis.conj().T @ vector.to(basis.dtype)).expand(3, -1, -1)
            parameter.copy_(changed)
        ssm.skip.zero_()
        filters = ssm.filters(L)
        for d in range(3):
            back = torch.linalg.inv(torch.eye(N, dtype=torch.float64) - dt[d] / 2 * A)
            A_bar, h = back @ (torch.eye(N) + dt[d] / 2 * A), dt[d] * (back @ B)
            for length in range(L):
                assert abs(float(filters[d, length] - C[d] @ h)) < 1e-9
                h = A_bar @ h


def test_spectra():
    torch.testing.assert_close(initial_spectrum("lin", 3).imag, torch.tensor([0, math.pi, 2 * math.pi], dtype=torch.float64))
    inverse = initial_spectrum("inv", 2)  # N = 4: 4/pi (4/(2n+1) - 1) for n = 1, 0
    torch.testing.assert_close(inverse.imag, torch.tensor([4 / math.pi / 3, 12 / math.pi], dtype=torch.float64))
    for kind in SPECTRA:
        assert torch.all(initial_spectrum(kind, 5).real == -0.5) and initial_spectrum(kind, 5).shape == (5,)
    with pytest.raises(IcllError, match="did you mean 'legs'"):
        initial_spectrum("leg", 2)


def test_h3_is_its_sums():
    mixer = make("h3", states=4)
    assert isinstance(mixer, H3)
    x = noise(1, 12, 16)
    with torch.no_grad():
        q, k, v = (x @ mixer.qkv.weight.T + mixer.qkv.bias).chunk(3, -1)
        shifted = torch.zeros_like(k)
        for t in range(12):
            for i in range(min(4, t + 1)):
                shifted[:, t] += mixer.shift[:, i] * k[:, t - i]
            shifted[:, t] += mixer.shift_skip * k[:, t]
        u = shifted * v
        A = torch.complex(-torch.exp(mixer.ssm.log_rate), mixer.ssm.frequency)
        dt = torch.exp(mixer.ssm.log_dt)[:, None]
        C = torch.view_as_complex(mixer.ssm.weight)
        z = mixer.ssm.skip * u
        for t in range(12):
            for s in range(t + 1):
                response = C * (torch.exp(dt * A) - 1) / A * torch.exp(dt * A * (t - s))
                z[:, t] += 2 * response.sum(-1).real * u[:, s]
        expected = (q * z) @ mixer.out.weight.T + mixer.out.bias
        torch.testing.assert_close(mixer(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [2, 3])
def test_hyena_is_its_sums(order):
    mixer = make("hyena", order=order)
    assert isinstance(mixer, Hyena)
    L, x = 10, noise(1, 10, 16)
    with torch.no_grad():
        maps = x @ mixer.maps.weight.T + mixer.maps.bias
        short = torch.zeros_like(maps) + mixer.short_bias
        for t in range(L):
            for i in range(min(3, t + 1)):
                short[:, t] += mixer.short[:, i] * maps[:, t - i]
        parts = short.split(16, -1)
        z = parts[-1]
        for n, gate in enumerate(reversed(parts[1:-1])):
            u, out = gate * z, torch.zeros_like(z)
            for t in range(L):
                for s in range(t + 1):
                    at = t - s
                    time = at / 127
                    angles = [2 * math.pi * at / 128 * band for band in (1e-4, 1.0)]
                    features = [time, *(math.cos(a) for a in angles), *(-math.sin(a) for a in angles)]
                    hidden = torch.tensor(features, dtype=torch.float64)
                    for layer in (0, 2, 4):
                        linear, sine = mixer.filter[layer], mixer.filter[layer + 1]
                        hidden = torch.sin(sine.frequency * (linear.weight @ hidden + linear.bias))
                    made = (mixer.filter_out.weight @ hidden).view(order - 1, 16)[n]
                    window = torch.exp(-time * -math.log(0.01) * torch.linspace(1 / 1.5, 1 / 0.3, 16))
                    out[:, t] += made * window * u[:, s]
                out[:, t] += mixer.skip[n] * u[:, t]
            z = out
        expected = (parts[0] * z) @ mixer.out.weight.T + mixer.out.bias
        torch.testing.assert_close(mixer(x), expected, rtol=1e-7, atol=1e-7)


def test_retnet_decays_are_those_of_its_paper():
    assert torch.allclose(torch.exp(Retention(8, 4).log_decay), 1 - 2.0 ** -torch.arange(5.0, 9.0).double())


# --- plug-ins ---


GOOD = """
import torch
from torch import nn

class Average(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self.out(x.cumsum(1) / count[:, None])

class Peeks(Average):
    def forward(self, x):
        return self.out(x.flip(1).cumsum(1).flip(1))

class Bare(nn.Module):
    def __init__(self, d_model):
        super().__init__()

    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]

class Nothing(Average):
    def forward(self, x):
        return self.out(x)

class WrongShape(Average):
    def forward(self, x):
        return self.out(x)[:, :-1] if x.shape[1] > 1 else self.out(x)

class WrongStep(Average):
    def initial_state(self, batch_size):
        return torch.zeros(batch_size, self.out.in_features, dtype=self.out.weight.dtype)

    def step(self, x, total):
        return self.out(total + x), total + x

class OverLength(Average):
    def forward(self, x):
        return self.out(x.cumsum(1) / x.shape[1])

class OverBatch(Average):
    def forward(self, x):
        return self.out(x.cumsum(1) - x.cumsum(1).mean(0, keepdim=True))

class OnCpu(Average):
    def forward(self, x):
        return self.out(x.cumsum(1) + torch.ones(x.shape[2], dtype=x.dtype))

class Explodes(Average):
    def forward(self, x):
        return self.out((x.cumsum(1) * 1e4).exp())

class Tuple(Average):
    def forward(self, x):
        return self.out(x.cumsum(1)), None

class Switch(Average):
    def __init__(self, d_model, gate=False):
        assert gate is False, "no gate yet"
        super().__init__(d_model)

class Needs(nn.Module):
    def __init__(self, d_model, width):
        super().__init__()

not_a_class = 3
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "plugins_of_a_user.py").write_text(GOOD)
    (tmp_path / "broken_plugin.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "plugins_of_a_user"
    sys.modules.pop("plugins_of_a_user", None)


@pytest.mark.parametrize("mixer", ["Average", "Bare"])
def test_a_plugin_conforms_and_is_used_by_name(plugins, mixer):
    checks = check_mixer(f"{plugins}:{mixer}")
    assert not [str(c) for c in checks if c.passed is False]
    model = build_model(f"{plugins}:{mixer}", d_model=8, n_layers=2)
    tokens = torch.randint(1, 20, (2, 9))
    logits, state = model(tokens), model.initial_state(2)
    for t in range(9):
        out, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(out, logits[:, t])
    assert model.flops_per_token(9) > 0 and model.state_bytes(9) == 9 * model.state_bytes(1)


@pytest.mark.parametrize(("mixer", "fails"), [
    ("Peeks", {"causal, by perturbation", "causal, by gradient", "independent of the length"}),
    ("Nothing", {"uses the past"}),
    ("WrongShape", {"shapes"}),
    ("WrongStep", {"one token at a time"}),
    ("OverLength", {"independent of the length"}),
    ("OverBatch", {"independent of the batch"}),
    ("OnCpu", {"devices"}),
    ("Explodes", {"shapes"}),
    ("Tuple", {"shapes"}),
])  # fmt: skip
def test_every_fault_is_found(plugins, mixer, fails):
    failed = {c.name for c in check_mixer(f"{plugins}:{mixer}") if c.passed is False}
    assert fails <= failed and ("shapes" not in fails or failed == {"shapes"})  # after which there is nothing to ask


@pytest.mark.parametrize(("name", "message"), [
    ("plugins_of_a_user:Avrage", "has no 'Avrage'"),
    ("plugins_of_a_user:not_a_class", "is not a torch.nn.Module class"),
    ("plugins_of_a_user:Needs", "width.*it was given d_model.*--option NAME=VALUE"),
    ("broken_plugin:Mixer", "cannot import 'broken_plugin'.*ModuleNotFoundError.*a_module_that_is_not_there"),
    ("no_such_package:Mixer", "cannot import 'no_such_package'"),
    ("retnett", "did you mean 'retnet'"),
])  # fmt: skip
def test_plugins_that_cannot_be_used_get_one_clear_line(plugins, name, message):
    with pytest.raises(IcllError, match=message) as error:
        build_model(name)
    assert "\n" not in str(error.value)


def test_options_of_a_plugin_that_cannot_be(plugins):
    with pytest.raises(IcllError, match="gate of Switch is true or false, not 'no'"):
        build_model(f"{plugins}:Switch", d_model=8, gate="no")
    with pytest.raises(IcllError, match="cannot build Switch: AssertionError: no gate yet"):
        build_model(f"{plugins}:Switch", d_model=8, gate=True)


def test_registering_by_decorator():
    try:

        @architecture("my_average", norm="rms", feed_forward=None)
        class MyAverage(Mixer):
            def __init__(self, d_model: int):
                super().__init__()
                self.out = torch.nn.Linear(d_model, d_model)

            def forward(self, x):
                return self.out(x.cumsum(1))

        model = build_model("my_average", d_model=8)
        assert model.blocks[0].feed_forward is None and isinstance(model.final_norm, torch.nn.RMSNorm)
    finally:
        ARCHITECTURES.pop("my_average", None)


def test_entry_points_are_found(tmp_path, monkeypatch):
    (tmp_path / "their_package.py").write_text(textwrap.dedent(GOOD))
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[icll.mixers]\naverage = their_package:Average\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert build_model("average", d_model=8)(torch.ones(1, 3, dtype=torch.long)).shape == (1, 3, 20)
    sys.modules.pop("their_package", None)
