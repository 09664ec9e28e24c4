import itertools
import math
from dataclasses import replace

import mpmath
import numba
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from spinwave import SpinWaveParameters, bessel, compiled, effective, effective_weights, neuron
from spinwave.effective import MODELS, grid
from spinwave.ladder import RUNGS, partial_readout, read_in
from spinwave.parameters import MODE_NORMALISATION


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- against the oracle


def test_grid_model_gives_the_oracles_outputs_and_gradients(case):
    w = case.w.requires_grad_()
    h = effective_weights(w, case.physics, "discretized")
    output = case.x @ h
    output.backward()
    assert abs(output.item() - case.output) < 1e-10 * h.abs().max()
    assert (w.grad - case.gradient_w).abs().max() < 1e-9 * case.gradient_w.abs().max()


def test_continuum_model_gives_the_oracles_limit(case):
    h = effective_weights(case.w, case.physics)
    assert abs((case.x @ h).item() - case.continuum_output) < 1e-10 * h.abs().max()


@pytest.mark.parametrize(("model", "fact"), [("discretized", "output"), ("continuum", "continuum_output")])
def test_float32_is_good_to_1e5(case, model, fact):
    h = effective_weights(case.w.float(), case.physics, model)
    assert h.dtype == torch.float32
    assert abs((case.x.float() @ h).item() - case.facts[fact]) < 1e-5 * h.abs().max()


def test_spin_wave_is_the_oracles(case):
    z, q = grid(case.physics.points)
    B = torch.zeros(len(z), dtype=torch.complex128)
    for x, a in zip(case.x, case.w * case.physics.mode_coupling(case.modes), strict=True):
        B = B + x * read_in(a, z, q, case.physics) - partial_readout(a, z, q, case.physics).to(B.dtype) @ B
    assert (B.real - case.spin_wave_real).abs().max() < 1e-12
    assert (B.imag - case.spin_wave_imag).abs().max() < 1e-12


def test_the_questions_own_gradient_is_wrong_at_strong_coupling(case):
    """The fault that this project repairs: torch's Bessel functions are constants to autograd."""
    error = (case.question_gradient_w - case.gradient_w).abs().max() / case.gradient_w.abs().max()
    assert (error > 0.05) == (case.coupling_total / case.modes > 0.2)


# ---- against independent arithmetic


@pytest.mark.parametrize(
    "physics",
    [
        SpinWaveParameters(coupling_total=12),
        SpinWaveParameters(coupling_total=3, readout_coupling=0.01),
        SpinWaveParameters(coupling_total=6, readout_coupling=1.3, detuning=-200_000.0),
        SpinWaveParameters(coupling_total=0.02, readout_coupling=50, detuning=0),
    ],
    ids=["strong", "faint read-out", "far detuned", "resonant"],
)
def test_continuum_model_is_its_integral(physics):
    w = random(4)
    with mpmath.workdps(30):
        R, phi = mpmath.mpf(physics.readout_coupling), mpmath.mpf(physics.stark_phase)
        a = [mpmath.mpf(v) * mpmath.mpf(physics.coupling_total) / 4 for v in w.tolist()]
        expected = []
        for i, a_i in enumerate(a):
            later, b = sum((v**2 for v in a[i + 1 :]), mpmath.mpf(0)), a_i**2

            def C0(c):
                return mpmath.hyp0f1(1, -c)

            def integrand(u, b=b, later=later):
                c = later + b * u
                return (C0(c) - C0(c + R**2)) * mpmath.cos(phi * b * (1 - u))

            expected.append(float(a_i / R * mpmath.quad(integrand, mpmath.linspace(0, 1, 12))))
    expected = MODE_NORMALISATION * torch.tensor(expected, dtype=torch.float64)
    assert (effective_weights(w, physics) - expected).abs().max() < 1e-11 * expected.abs().max()


@pytest.mark.parametrize(
    "physics",
    [
        SpinWaveParameters(coupling_total=25, points=40),
        SpinWaveParameters(coupling_total=8, points=30, detuning=-30_000.0, readout_coupling=0.3),
        SpinWaveParameters(coupling_total=4, points=25, detuning=0, steepness=math.inf),
        SpinWaveParameters(points=2),
    ],
    ids=["five per mode", "far detuned", "sharp step", "two points"],
)
def test_grid_model_is_the_loop(physics):
    w, x = random(3, 6).clamp(-1.2, 1.2), random(2, 6, seed=1)
    w[0, 0] = 1.2  # with C_total = 25 a coupling of 5
    loop = RUNGS["looped"](x, w, physics)
    h = effective_weights(w, physics, "discretized")
    assert (x @ h.T - loop).abs().max() < 1e-10 * h.abs().max()


def test_grid_converges_to_the_continuum_at_second_order():
    w, errors = random(5, 10), []
    for points in (50, 100, 200):
        physics = SpinWaveParameters(coupling_total=10, readout_coupling=1.0, points=points, steepness=math.inf)
        difference = effective_weights(w, physics, "discretized") - effective_weights(w, physics)
        errors.append(difference.abs().max().item())
    orders = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert all(1.9 < order < 2.1 for order in orders), (errors, orders)


# ---- what both models share


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


@pytest.mark.parametrize("coupling_total", [0.1, 3.0, 30.0])
def test_derivatives(model, coupling_total):
    physics = SpinWaveParameters(coupling_total=coupling_total, readout_coupling=2.0, points=12)
    w = random(2, 3).requires_grad_()
    # scaled to order one: gradcheck's tolerances are absolute
    scale = 1 / effective_weights(w.detach(), physics, model).abs().max()
    assert torch.autograd.gradcheck(lambda w: scale * effective_weights(w, physics, model), w)
    assert torch.autograd.gradgradcheck(lambda w: scale * effective_weights(w, physics, model), w)


def test_is_odd_in_w_and_zero_at_zero(model):
    physics = SpinWaveParameters(coupling_total=20, points=20)
    w = random(3, 10)
    assert torch.equal(effective_weights(-w, physics, model), -effective_weights(w, physics, model))
    assert torch.equal(effective_weights(0 * w, physics, model), torch.zeros_like(w))


def test_a_mode_sees_later_modes_through_their_squares_only():
    physics = SpinWaveParameters(coupling_total=20)
    w = random(10)
    shuffled = torch.cat([w[:3], -w[3:].flip(0)])
    h, h_shuffled = effective_weights(w, physics), effective_weights(shuffled, physics)
    assert torch.allclose(h[:3], h_shuffled[:3], rtol=0, atol=1e-14)


def test_the_last_weight_enters_every_mode_and_the_first_only_its_own(model):
    physics = SpinWaveParameters(coupling_total=20, points=20)
    jacobian = jacrev(lambda w: effective_weights(w, physics, model))(random(6))
    assert (jacobian.triu() != 0).sum() == 21
    assert (jacobian.tril(-1) == 0).all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # PyTorch's own forward mode
def test_forward_and_second_derivatives_agree_with_reverse_mode(model):
    physics = SpinWaveParameters(coupling_total=5, points=15)

    def energy(w):
        return effective_weights(w, physics, model).square().sum()

    w = random(6)
    jacobian = jacrev(lambda w: effective_weights(w, physics, model))(w)
    assert torch.allclose(jacfwd(lambda w: effective_weights(w, physics, model))(w), jacobian, rtol=1e-12, atol=1e-14)
    assert torch.allclose(hessian(energy)(w), jacrev(jacrev(energy))(w), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(1,), (7,), (1, 7), (2, 3, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_keeps_shape_and_dtype(model, shape, dtype):
    h = effective_weights(random(*shape, dtype=dtype), SpinWaveParameters(points=10), model)
    assert h.shape == shape
    assert h.dtype == dtype
    assert h.isfinite().all()


def test_leading_dimensions_are_independent_neurons(model):
    physics = SpinWaveParameters(coupling_total=5, points=15)
    w = random(2, 3, 7)
    alone = torch.stack([effective_weights(v, physics, model) for v in w.flatten(0, 1)]).view_as(w)
    # The strongest neuron chooses the tables of all, which are good to 1e-13 each.
    assert torch.allclose(effective_weights(w, physics, model), alone, rtol=0, atol=1e-12)


def test_noncontiguous_weights(model):
    physics = SpinWaveParameters(coupling_total=5, points=15)
    w = random(7, 4).T
    assert torch.equal(effective_weights(w, physics, model), effective_weights(w.contiguous(), physics, model))


@pytest.mark.parametrize("coupling_total", [1e-3, 0.1, 1.0, 10.0, 30.0])
def test_without_a_look_at_the_weights_the_result_is_the_same(model, coupling_total):
    """Where the values are out of reach, as on a GPU, the tables serve |a| <= 5."""
    physics = SpinWaveParameters(coupling_total=coupling_total, points=15)
    w = random(4, 8).clamp(-1.3, 1.3)
    seen = effective_weights(w, physics, model)
    unseen = effective.compute(w, physics, model, look=False)
    assert (seen - unseen).abs().max() < 1e-10 * seen.abs().max()
    together = grad(lambda w: effective_weights(w, physics, model).sum())(w)
    out_of_sight = grad(lambda w: effective.compute(w, physics, model, look=False).sum())(w)
    assert (out_of_sight - together).abs().max() < 1e-9 * together.abs().max()


@pytest.mark.parametrize("detuning", [0.0, 10.0, 300.0, 6000.0, -60_000.0])
@pytest.mark.parametrize("readout", [0.05, 1.0, 10.0, 1000.0])
def test_the_table_for_weights_that_stay_unseen(readout, detuning):
    """As a GPU has it, of every strength: neighbouring sums of squares that nearly agree, and some that hardly do."""
    for modes, coupling_total in [(1, 2.0), (3, 1e-4), (50, 0.1), (50, 7.0), (50, 120.0), (784, 0.1), (784, 1900.0)]:
        physics = SpinWaveParameters(coupling_total, readout, detuning=detuning)
        w, g = random(2, 2, modes, dtype=torch.float32).clamp(-2, 2), random(2, 2, modes, seed=1, dtype=torch.float32)
        w[0, 0, ::3] *= 1e-3
        exact = w.double().requires_grad_()
        h_exact = effective_weights(exact, physics)
        (expected,) = torch.autograd.grad(h_exact, exact, g.double())
        w.requires_grad_()
        assert effective._has_table(w, physics)
        h = effective.compute(w, physics, "continuum", look=False)
        (found,) = torch.autograd.grad(h, w, g)
        assert (h - h_exact).abs().max() < 1e-6 * h_exact.abs().max()
        assert (found - expected).abs().max() < 2e-6 * expected.abs().max()


def test_the_table_takes_a_fifth_of_the_operators(monkeypatch):
    """On a GPU a step is as long as its list of operators, and none may wait for a value."""

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            started.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    counts = []
    for has_table in (True, False):
        monkeypatch.setattr(effective, "_has_table", lambda *_, has_table=has_table: has_table)
        w = random(3, 4, dtype=torch.float32).requires_grad_()
        for _ in range(2):  # the first makes the tables
            started = []
            with Count():
                effective.compute(w, SpinWaveParameters(), "continuum", look=False).sum().backward()
        assert not has_table or "aten::_local_scalar_dense" not in started
        counts.append(len(started))
    assert 10 * counts[0] < 2 * counts[1]


def test_the_table_and_what_it_does_not_serve():
    physics = SpinWaveParameters(coupling_total=3)
    w, unseen = random(2, 3, dtype=torch.float32), {"parameters": physics, "model": "continuum", "look": False}
    w[0] = torch.tensor([1.0, math.nan, 1.0])
    for strong, first in ((5.1, False), (40.0, True), (math.inf, True)):
        w[1] = torch.tensor([1.0, strong, 1.0])  # 40 is more than the table holds
        asked = w.clone().requires_grad_()
        h = effective.compute(asked, **unseen)
        assert h.isnan().tolist() == [[True, True, False], [first, True, False]]
        for again in (False, True):  # the derivative of the table, and of the formula
            (slope,) = torch.autograd.grad(h.sum(), asked, retain_graph=True, create_graph=again)
            assert slope.isnan().any(1).all()
    fine, strange = random(2, 784, dtype=torch.float32), SpinWaveParameters(detuning=2e5)
    assert effective._has_table(fine, physics)
    assert not effective._has_table(fine.double(), physics)
    assert not effective._has_table(torch.ones(1, 1).expand(1, 2**20), physics)
    assert not effective._has_table(fine, strange)
    h = effective.compute(fine, strange, "continuum", look=False)
    assert torch.allclose(h, effective_weights(fine, strange), rtol=0, atol=1e-5 * h.abs().max().item())


def test_the_table_mixes_no_devices(monkeypatch):
    """Tensors without values in place of a GPU."""
    cpu = effective._table(10, 10.0, 0.6, torch.device("cpu"))
    monkeypatch.setattr(effective, "_table", lambda *key: torch.empty_like(cpu, device=key[-1]))
    w = torch.ones(3, 5, device="meta", requires_grad=True)
    h = effective._Tabled.apply(w, torch.ones((), device="meta"), SpinWaveParameters())
    (of_w,) = torch.autograd.grad(h.sum(), w)
    assert h.is_meta
    assert of_w.is_meta


def test_second_derivatives_of_unseen_weights():
    physics, w = SpinWaveParameters(coupling_total=4), random(2, 3, dtype=torch.float32)
    curvatures = []
    for look, weights in ((False, w.requires_grad_()), (True, w.detach().double().requires_grad_())):
        h = effective.compute(weights, physics, "continuum", look)
        (slope,) = torch.autograd.grad(h.sin().sum(), weights, create_graph=True)
        curvatures.append(torch.autograd.grad(slope.square().sum(), weights)[0])
    assert (curvatures[0] - curvatures[1]).abs().max() < 1e-5 * curvatures[1].abs().max()


def test_unseen_couplings_beyond_the_tables_are_nan_not_wrong(model):
    physics = SpinWaveParameters(coupling_total=1, points=15)
    w = torch.tensor([[6.0], [1.0]], dtype=torch.float64)
    assert effective.compute(w, physics, model, look=False).isnan().tolist() == [[True], [False]]
    assert effective_weights(w, physics, model).isfinite().all()
    assert vmap(lambda v: effective_weights(v, physics, model))(w).isnan().any() == (model == "discretized")


@pytest.mark.parametrize("gain", [None, torch.tensor(3.0, dtype=torch.float64)])
@pytest.mark.parametrize("coupling_total", [0.1, 5.0, 40.0])  # of the short series, a long one, and some rows of none
def test_torch_func_gives_what_a_plain_call_gives(coupling_total, gain):
    physics = SpinWaveParameters(coupling_total)
    w, g = random(3, 4, 5), random(3, 4, 5, seed=1)

    def h(w):
        return effective.compute(w, physics, "continuum", True, gain)

    def slopes(w, g):
        return grad(lambda w: (h(w) * g).sum())(w)

    def close(found, expected, tolerance=1e-12):
        return (found - expected).abs().max() <= tolerance * expected.abs().max()

    asked = w.clone().requires_grad_()
    expected = h(asked)
    (of_w,) = torch.autograd.grad(expected, asked, g)
    for axis in range(2):
        assert close(vmap(h, axis, axis)(w), expected)
        assert close(vmap(slopes, axis, axis)(w, g), of_w)
    assert close(vmap(vmap(h))(w), expected)
    assert close(slopes(w, g), of_w)
    assert close(vmap(slopes, (0, None))(w, g[0]), torch.stack([slopes(v, g[0]) for v in w]))
    assert close(vmap(slopes, (None, 0))(w[0], g), torch.stack([slopes(w[0], v) for v in g]))

    row = asked[0, 0]
    jacobian = torch.autograd.functional.jacobian(h, row)
    assert close(jacrev(h)(row), jacobian)
    assert close(torch.autograd.functional.jacobian(h, row, vectorize=True), jacobian)
    assert close(vmap(jacrev(h))(w[0])[0], jacobian)
    curvature = torch.autograd.functional.hessian(lambda w: h(w).sin().sum(), row)
    assert close(grad(lambda w: h(w).sin().sum())(row), jacobian.T @ h(row).cos())
    assert close(jacrev(grad(lambda w: h(w).sin().sum()))(row), curvature, 1e-9)
    mapped = vmap(jacrev(grad(lambda w: h(w).sin().sum())))(w[0])[0]
    assert close(mapped, curvature, 1e-9) if coupling_total <= 5 else mapped.isnan().any()


def test_second_derivatives_inside_vmap_of_many_couplings_that_are_not_strong():
    """Their sum of squares, a thousand here, says little of the strongest one."""
    physics = SpinWaveParameters(250.0, detuning=60_000)

    def product(w, v):
        return grad(lambda w: (grad(lambda w: effective_weights(w, physics).sum())(w) * v).sum())(w)

    w = random(2, 100).clamp(-2, 2)
    expected = torch.stack([product(v, v) for v in w])
    assert (vmap(product)(w, w) - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("coupling_total", [5.0, 60.0])
def test_what_is_saved_for_backward_may_lie_elsewhere(coupling_total):
    """torch.func refuses to work where somebody watches what autograd saves."""
    w = random(4, 3).clamp(-2, 2).requires_grad_()

    def slope():
        h = effective_weights(w, SpinWaveParameters(coupling_total))
        return torch.autograd.grad(h.sin().sum(), w, create_graph=True)[0]

    plain = slope()
    with torch.autograd.graph.save_on_cpu():
        watched = slope()
        (curvature,) = torch.autograd.grad(watched.square().sum(), w)
        effective_weights(w, SpinWaveParameters(coupling_total)).sum().backward()
    assert torch.equal(watched, plain)
    assert torch.equal(curvature, torch.autograd.grad(plain.square().sum(), w)[0])


def test_a_batch_of_neurons_by_vmap_takes_the_compiled_loop(monkeypatch):
    """By the formula it once took a thousand times as long."""
    monkeypatch.setattr(effective, "_continuum", None)
    w = random(2, 3, 5)
    vmap(vmap(grad(lambda w: effective_weights(w).sum())))(w)


def test_an_empty_batch_inside_torch_func(model):
    def h(w):
        return effective_weights(w, SpinWaveParameters(points=6), model)

    assert vmap(h)(torch.ones(0, 3)).shape == (0, 3)
    assert vmap(grad(lambda w: h(w).sum()))(torch.ones(0, 2, 3)).shape == (0, 2, 3)


def test_tables_made_inside_torch_func_serve_later_calls(model):
    physics = SpinWaveParameters(4.32, 3.21, points=14)  # like no other test's
    w = random(4)
    twice = [jacrev(jacrev(lambda w: effective_weights(w, physics, model)))(w) for _ in range(2)]
    assert torch.equal(*twice)
    jacrev(lambda w: effective_weights(w, physics, model))(w)
    effective_weights(w, physics, model)


@pytest.mark.slow
def test_compiled_call_agrees(model, compile_whole):
    # The sweep is unrolled over its modes, and every further one costs the compiler half a minute.
    w = random(3, 5 if model == "continuum" else 2).requires_grad_()
    for coupling_total in (3.0, 60.0) if model == "continuum" else (3.0,):
        physics = SpinWaveParameters(coupling_total, points=15)
        compiled = compile_whole(lambda w, physics=physics: effective_weights(w, physics, model))(w)
        plain = effective_weights(w, physics, model)
        assert (compiled - plain).abs().max() < 1e-12
        gradients = [torch.autograd.grad(h.sin().sum(), w)[0] for h in (compiled, plain)]
        assert (gradients[0] - gradients[1]).abs().max() < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiled_call_serves_any_layout(dtype, compile_whole):
    w = random(5, 2, 3).to(dtype).movedim(0, -1).requires_grad_()  # (2, 3, modes), not contiguous
    physics = SpinWaveParameters(coupling_total=3)
    with torch.autocast("cpu", torch.bfloat16):
        compiled = compile_whole(lambda w: effective_weights(w, physics))(w)
    plain = effective_weights(w, physics)
    assert compiled.dtype == dtype
    assert torch.equal(compiled, plain)
    gradients = [torch.autograd.grad(h.sum(), w)[0] for h in (compiled, plain)]
    assert torch.equal(*gradients)


def test_autocast_does_not_degrade_h(model):
    w = random(20, 10, dtype=torch.float32)
    physics = SpinWaveParameters(coupling_total=5, points=15)
    with torch.autocast("cpu", torch.bfloat16):
        h = effective_weights(w, physics, model)
    assert torch.equal(h, effective_weights(w, physics, model))


@pytest.mark.parametrize("coupling_total", [5.0, 200.0])
def test_autocast_does_not_degrade_what_the_formula_gives(coupling_total):
    """For couplings of no series, and for derivatives that are to be derived once more."""
    w, physics, results = random(4, 10, dtype=torch.float32).requires_grad_(), SpinWaveParameters(coupling_total), []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            h = effective_weights(w, physics)
            results.append((h, torch.autograd.grad(h.sin().sum(), w, create_graph=True)[0]))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("switch", ["short series", 64.0, 256.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_continuous_across_a_change_of_evaluation(switch, dtype):
    """The sum of squares decides how F is evaluated; one ulp of coupling must not show."""
    physics = SpinWaveParameters(coupling_total=16)  # a = w
    if switch == "short series":
        _, switch, _ = effective._near_zero(physics, 16, dtype)
    w = torch.full((16,), math.sqrt(switch / 16), dtype=torch.float64)
    shift, limit = (1e-7, 1e-5) if dtype == torch.float32 else (1e-11, 1e-9)
    below, above = (effective_weights((w * (1 + s * shift)).to(dtype), physics) for s in (-1, 1))
    assert (below - above).abs().max() < limit * above.abs().max()


def test_neuron_is_the_dot_product_and_broadcasts(model):
    physics = SpinWaveParameters(coupling_total=5, points=15)
    x, w = random(4, 1, 7, seed=1), random(3, 7)
    f = neuron(x, w, physics, model)
    assert f.shape == (4, 3)
    assert torch.allclose(f, x[:, 0] @ effective_weights(w, physics, model).T)


def test_at_the_questions_parameters_the_neuron_is_a_dot_product():
    h, w = effective_weights(random(5, 100)), random(5, 100)
    slope = (h * w).sum() / w.square().sum()
    assert (h - slope * w).abs().max() < 2e-4 * h.abs().max()


# ---- the short way for weak couplings


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (40, 3000)])
def test_weak_couplings_are_exact_where_they_are_taken(shape):
    """The largest case spans several blocks of rows."""
    physics = SpinWaveParameters(coupling_total=0.02 * shape[1] ** 0.5)
    w, g = random(*shape, dtype=torch.float32).requires_grad_(), random(*shape, seed=1, dtype=torch.float32)
    exact = w.detach().double().requires_grad_()
    h, h_exact = effective_weights(w, physics), effective_weights(exact, physics)
    assert (h - h_exact).abs().max() < 1e-6 * h_exact.abs().max()
    (found,), (expected,) = torch.autograd.grad(h, w, g), torch.autograd.grad(h_exact, exact, g.double())
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("readout", [0.05, 2.0, 10.0])
@pytest.mark.parametrize("detuning", [0.0, 6000.0, -60_000.0])
def test_every_way_of_summing_agrees_with_the_integral(monkeypatch, dtype, readout, detuning):
    """From couplings for which F is a straight line to those that only Bessel functions serve: values and gradients."""
    series, calls = effective._long_series, []
    monkeypatch.setattr(effective, "_long_series", lambda *args: calls.append(1) or series(*args))
    for coupling_total in (0.02, 0.2, 0.6, 2.0, 6.0, 20.0, 60.0, 200.0):
        physics = SpinWaveParameters(coupling_total, readout, detuning=detuning)
        w, g = random(3, 50).clamp(-1.2, 1.2).to(dtype), random(3, 50, seed=1).to(dtype)
        exact = w.double().requires_grad_()
        h_exact = effective._continuum(exact, physics, 1000.0)  # too large a sum for the Taylor series
        (expected,) = torch.autograd.grad(h_exact, exact, g.double())
        w.requires_grad_()
        h = effective_weights(w, physics)
        (found,) = torch.autograd.grad(h, w, g)
        limit = 1e-10 if dtype == torch.float64 else 1e-5
        assert (h - h_exact).abs().max() < limit * h_exact.abs().max()
        assert (found - expected).abs().max() < 2 * limit * expected.abs().max()
    assert calls


@pytest.mark.filterwarnings("ignore:Please use `torch.vmap`:FutureWarning")  # by gradcheck of PyTorch 2.6
@pytest.mark.parametrize(("coupling_total", "served"), [(1e-4, True), (0.02, True), (3.0, True), (200.0, False)])
def test_derivatives_written_out(coupling_total, served):
    """Straight line, parabola, series, and what no series serves; batched gradients as jacobians ask for them."""
    physics = SpinWaveParameters(coupling_total, 2.0)
    w, v, x = (random(*shape, seed=k).requires_grad_() for k, shape in enumerate([(6, 5), (3, 6), (4, 5)]))
    if not served:
        assert effective.project(x, [w], [physics], [torch.tensor(1.0)]) is None
        return
    # gradcheck's tolerances are absolute
    gains = [1 / effective_weights(u.detach(), physics).abs().max() for u in (w, v)]

    def neurons(x, *weights):
        return effective.project(x, weights, [physics] * len(weights), gains[: len(weights)])

    h, k = (effective.compute(u, physics, "continuum", True, gain) for u, gain in zip((w, v), gains, strict=True))
    assert torch.equal(neurons(x, w), x.mm(h.T))
    assert torch.equal(neurons(x, w, v), x.mm(h.T).relu().mm(k.T))
    for inputs in ((x, w), (x, w, v)):
        assert torch.autograd.gradcheck(neurons, inputs, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(neurons, inputs)


@pytest.mark.parametrize("detuning", [0.0, 6000.0, -60_000.0])
@pytest.mark.parametrize("modes", [1, 2, 5])
def test_weak_couplings_of_few_modes(modes, detuning):
    """Where a single square is as large as their sum may be, every coefficient of the short series counts."""
    physics = SpinWaveParameters(float(modes), 2.0, detuning=detuning)  # a = w
    _, limit, _ = effective._near_zero(physics, modes, torch.float64)
    w = random(20, modes)
    w = (w * (0.999 * limit / w.square().sum(1, keepdim=True)).sqrt()).requires_grad_()
    exact = effective._continuum(w, physics, 1000.0)
    g = random(20, modes, seed=1)
    (expected,) = torch.autograd.grad(exact, w, g)
    h = effective_weights(w, physics)
    (found,) = torch.autograd.grad(h, w, g)
    assert (h - exact).abs().max() < 2e-11 * exact.abs().max()
    assert (found - expected).abs().max() < 1e-10 * expected.abs().max()


@pytest.mark.parametrize("coupling_total", [0.1, 30.0])
def test_threads_change_nothing(monkeypatch, coupling_total):
    """Neurons are spread over threads where a layer is large, in parts that need not be equal; one may get none."""
    physics = SpinWaveParameters(coupling_total)
    for neurons in (1, 3, 37):
        w, g = random(neurons, 40).requires_grad_(), random(neurons, 40, seed=1)
        results = []
        for large in (0, 10**9):
            monkeypatch.setattr(compiled, "_LARGE", large)
            h = effective_weights(w, physics)
            results.append((h, *torch.autograd.grad(h, w, g)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    monkeypatch.setattr(compiled, "_LARGE", 0)
    for row in (0, 20, 36):
        bad = w.detach().clone()
        bad[row, 5] = math.nan
        with pytest.raises(ValueError, match="w must be finite"):
            effective_weights(bad, physics)


def test_machine_code_that_cannot_be_kept_is_made_anew(monkeypatch):
    """numba refuses to compile where neither the package nor the home folder can be written."""

    def refuse(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(function, **options)

    monkeypatch.setattr(compiled, "njit", refuse)
    assert compiled._compiled(lambda x: 2 * x)(3.0) == 6.0


@pytest.mark.parametrize("coupling_total", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("gain", [None, torch.tensor(3.0, dtype=torch.float64)])
def test_operators_for_the_compiler(coupling_total, gain):
    """torch.compile calls the closed form as operators of this package; PyTorch's own checks of operators."""
    w, g, physics = random(3, 5).requires_grad_(), random(3, 5, seed=1), (gain, coupling_total, 2.0, 0.6)
    arguments = w.detach(), *physics
    h, total = torch.ops.spinwave.closed_form(*arguments)
    torch.library.opcheck(torch.ops.spinwave.closed_form.default, arguments)
    if coupling_total < 60.0:  # where no series serves, the derivative is torch.func's, which opcheck cannot follow
        torch.library.opcheck(torch.ops.spinwave.closed_form_backward.default, (g, arguments[0], total, *physics))
    expected = effective.compute(w, SpinWaveParameters(coupling_total, 2.0), "continuum", True, gain)
    assert torch.equal(h, expected)
    of_w = torch.ops.spinwave.closed_form_backward(g, arguments[0], total, *physics)
    (as_expected,) = torch.autograd.grad(expected, w, g)
    assert (of_w - as_expected).abs().max() <= 1e-12 * as_expected.abs().max()


@pytest.mark.slow
def test_compiled_gradient_of_strong_couplings_in_another_layout(compile_whole):
    w, v = random(3, 5).requires_grad_(), random(5, 3, seed=1)

    def loss(w):
        return (effective_weights(w, SpinWaveParameters(coupling_total=60.0)).t().contiguous() * v).sin().sum()

    gradients = [torch.autograd.grad(f(w), w)[0] for f in (compile_whole(loss), loss)]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-11


def test_another_default_device_changes_nothing(model):
    w, physics = random(3, 5), SpinWaveParameters(coupling_total=7.7, readout_coupling=3.3, points=12)
    with torch.device("meta"):  # as a GPU would be
        h = effective_weights(w, physics, model)
    assert torch.equal(h, effective_weights(w, physics, model))


def test_the_strongest_promised_coupling_is_served_unseen(model):
    """In float32 it may come out a little above 5."""
    w = torch.full((1, 3), 150.0)
    assert effective.compute(w, SpinWaveParameters(points=10), model, look=False).isfinite().all()


def test_one_thread_needs_no_others(monkeypatch):
    """A forked process that asked OpenMP for a second thread would be ended by it."""
    monkeypatch.setattr(compiled, "_threads", None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    w = random(300, 300).requires_grad_()
    effective_weights(w).sum().backward()


# ---- bad input


@pytest.mark.parametrize("parameters", ["discretized", {"coupling_total": 1}])
def test_other_parameters_are_named(parameters):
    with pytest.raises(ValueError, match="parameters must be SpinWaveParameters, got"):
        effective_weights(torch.ones(3), parameters)


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (torch.ones(3, dtype=torch.int64), "w must be real floating point, got dtype torch.int64"),
        (torch.ones(3, dtype=torch.complex64), "w must be real floating point, got dtype torch.complex64"),
        (torch.ones(3, 0), r"at least one element, got shape \(3, 0\)"),
        (torch.tensor(1.0), r"shape \(..., modes\)"),
        ([1.0], "w must be a tensor, got list"),
        (torch.tensor([1.0, math.nan]), "w must be finite"),
        (torch.tensor([math.inf, 1.0]), "w must be finite"),
        (torch.full((2,), 1e30), "w must be finite, got NaN, infinity or values whose squares overflow"),
        pytest.param(torch.full((2,), 1e7), "control field is too strong", marks=pytest.mark.slow),
    ],
)
def test_bad_weights_are_named(model, w, message):
    with pytest.raises(ValueError, match=message):
        effective_weights(w, SpinWaveParameters(points=10), model)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.ones(3), torch.ones(4), r"same number of modes .* got shapes \(3,\) and \(4,\)"),
        (torch.ones(2, 3), torch.ones(4, 3), r"must broadcast, got shapes \(2, 3\) and \(4, 3\)"),
        (torch.ones(3, dtype=torch.int32), torch.ones(3), "x must be real floating point"),
        (torch.tensor([math.nan]), torch.ones(1), "x must be finite"),
        (torch.ones(0), torch.ones(0), "x must have shape"),
    ],
)
def test_bad_amplitudes_are_named(x, w, message):
    with pytest.raises(ValueError, match=message):
        neuron(x, w)


def test_unknown_model_is_named():
    with pytest.raises(ValueError, match="model must be one of continuum, discretized, got 'exact'"):
        effective_weights(torch.ones(3), model="exact")


def test_inference_mode_first_and_gradients_after(model):
    """Tables are made at the first call and kept; made as inference tensors they would refuse to record gradients."""
    physics = SpinWaveParameters(coupling_total=3.0, points=11, detuning=1234.5)  # like no other test's
    w = random(2, 4)
    with torch.inference_mode():
        effective_weights(w, physics, model)
    (gradient,) = torch.autograd.grad(effective_weights(w.requires_grad_(), physics, model).sum(), w)
    assert gradient.abs().min() > 0


def test_tables_are_not_remade_at_every_step():
    """Training moves the largest coupling all the time; only a change of its power of two may cost a table."""
    physics = SpinWaveParameters(coupling_total=2.3, points=16)
    effective_weights(torch.full((2, 3), 1.0), physics, "discretized")
    misses = effective._grid_tables.cache_info().misses
    for size in (0.99, 0.97, 0.95):
        effective_weights(torch.full((2, 3), size), physics, "discretized")
    effective_weights(torch.full((2, 3), 1.0), replace(physics, coupling_total=2.2), "discretized")
    assert effective._grid_tables.cache_info().misses == misses


def test_one_strong_neuron_leaves_the_others_their_short_way(monkeypatch):
    physics = SpinWaveParameters(coupling_total=10, readout_coupling=2.0)
    w, g = random(4, 10), random(4, 10, seed=1)
    w[2] *= 8  # a squared coupling of more than a hundred
    alone = [effective_weights(row, physics) for row in w]
    seen = []
    strong, continuum = effective._by_quadrature, effective._continuum
    monkeypatch.setattr(effective, "_by_quadrature", lambda rows, *args: seen.append(len(rows)) or strong(rows, *args))
    w.requires_grad_()
    h = effective_weights(w, physics)
    assert seen == [1]
    assert torch.allclose(h, torch.stack(alone), rtol=0, atol=1e-11 * h.abs().max().item())
    (found,) = torch.autograd.grad(h, w, g)
    (expected,) = torch.autograd.grad(continuum(w, physics, 1e4), w, g)
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_couplings_at_the_limit_of_the_series(dtype):
    """Whether a row is too strong for it is decided twice, in sums that round differently."""
    physics = SpinWaveParameters(1000.0)  # a = w
    w = random(3, 1000).clamp(-3, 3)  # no single square is too large
    w[0] *= 0.01
    for ulps in range(-20, 21):
        scale = math.sqrt(effective._SERIES_REACH * (1 + ulps * torch.finfo(dtype).eps / 4))
        w[1:] *= scale / w[1:].norm(dim=1, keepdim=True)
        for rows in (w, w[1:]):
            assert effective_weights(rows.to(dtype), physics).isfinite().all()


def test_tables_of_the_integral_are_short():
    """Rounding in a derivative that nearly vanishes was once taken for a series of 254 terms."""
    for exponent in (-12, -8, -4, 0, 4, 8):
        table = effective._integral_table(exponent, exponent - 4, 10.0, 0.6, 1e-13)
        assert table.shape[1] <= 24
        assert table.shape[2] <= 40


def test_exact_arithmetic_matters():
    """A guard for the tests above: torch's own J0 in place of clifford would not pass them."""
    c = torch.linspace(7, 24, 50, dtype=torch.float64)
    assert (torch.special.bessel_j0(2 * c.sqrt()) - bessel.clifford(0, c)).abs().max() > 1e-8
