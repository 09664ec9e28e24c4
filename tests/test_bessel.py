import mpmath
import pytest
import torch
from torch.func import grad, vmap

from spinwave import bessel
from spinwave.bessel import clifford


def exact(n, c):
    """C_n by mpmath at 40 digits: 0F1(; n + 1; -c) / n!."""
    with mpmath.workdps(40):
        return torch.tensor(
            [float(mpmath.hyp0f1(n + 1, -mpmath.mpf(v)) / mpmath.factorial(n)) for v in c.double().tolist()],
            dtype=torch.float64,
        )


def arguments(dtype):
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([0.0, 1e-300, 1e-12, 15.999999, 16.0, 16.000001, 1e4], dtype=torch.float64)
    small = 40 * torch.rand(400, generator=generator, dtype=torch.float64)
    wide = 1e4 * torch.rand(400, generator=generator, dtype=torch.float64)
    return torch.cat([edges, small, wide]).to(dtype)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_agrees_with_mpmath(n, dtype, tolerance):
    c = arguments(dtype)
    # float32: for the float32 argument as given
    assert (clifford(n, c).double() - exact(n, c)).abs().max() < tolerance


@pytest.mark.parametrize("largest", [1e-6, 1e-2, 1.0, 15.0])
def test_short_series_for_small_arguments_is_as_exact(largest):
    c = largest * torch.linspace(0, 1, 50, dtype=torch.float64)
    assert (clifford(0, c) - exact(0, c)).abs().max() < 1e-13


def test_table_is_hankels_p_and_q():
    with mpmath.workdps(40):
        for n, (p_table, q_table) in bessel._HANKEL.items():
            for t in (0.01, 0.3, 0.77, 1.0):
                x = 8 / mpmath.sqrt(t)
                chi = x - n * mpmath.pi / 2 - mpmath.pi / 4
                root, j, y = mpmath.sqrt(mpmath.pi * x / 2), mpmath.besselj(n, x), mpmath.bessely(n, x)
                p = root * (j * mpmath.cos(chi) + y * mpmath.sin(chi))
                q = root * (y * mpmath.cos(chi) - j * mpmath.sin(chi)) * x / 8
                assert abs(mpmath.polyval(p_table[::-1], t) - p) < 2e-15
                assert abs(mpmath.polyval(q_table[::-1], t) - q) < 2e-15


def test_torch_bessel_is_what_this_replaces():
    """The two faults that the chapters show; if a later torch cures them, the chapters must say so."""
    x = torch.linspace(5, 10, 200, dtype=torch.float64, requires_grad=True)
    assert not torch.special.bessel_j0(x).requires_grad
    c = x.detach().square() / 4
    assert (torch.special.bessel_j0(x.detach()) - exact(0, c)).abs().max() > 1e-8


@pytest.mark.parametrize("n", [0, 1, 2])
def test_gradients_of_first_and_second_order(n):
    c = torch.tensor([1e-3, 0.5, 7.0, 20.0, 300.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: clifford(n, c), c)
    assert torch.autograd.gradgradcheck(lambda c: clifford(n, c), c)


def test_third_derivative_is_the_third_order():
    c = torch.tensor([0.0, 0.3, 30.0], dtype=torch.float64)
    third = vmap(grad(grad(grad(lambda c: clifford(0, c)))))(c)
    assert torch.allclose(third, -clifford(3, c), rtol=0, atol=1e-15)


@pytest.mark.parametrize("largest", [1e-3, 100.0])
def test_vmap_agrees_with_the_plain_call_and_looks_at_all_arguments_too(largest):
    c = torch.linspace(0, largest, 30, dtype=torch.float64).view(3, 10)
    assert torch.equal(vmap(lambda c: clifford(1, c), in_dims=1, out_dims=1)(c), clifford(1, c))
    slopes = vmap(vmap(grad(lambda c: clifford(1, c))))(c)
    assert torch.equal(slopes, -clifford(2, c))
    with pytest.raises(ValueError, match="c must be at least -16, got -17"):
        vmap(lambda c: clifford(0, c))(torch.tensor([20.0, -17.0]))


def test_a_small_negative_argument_has_its_value_whatever_stands_beside_it():
    alone, beside = clifford(0, torch.tensor([-5.0])), clifford(0, torch.tensor([-5.0, 15.0]))[:1]
    expected = torch.special.i0(torch.tensor([2 * 5**0.5]))  # C_0(-c) = I_0(2 sqrt(c))
    assert torch.allclose(alone, expected)
    assert torch.allclose(beside, expected)
    with pytest.raises(ValueError, match="c must be at least -16, got -17"):
        clifford(0, torch.tensor([-17.0, 20.0]))


@pytest.mark.slow
def test_compiles_without_graph_breaks(compile_whole):
    c = torch.linspace(0, 100, 30, dtype=torch.float64, requires_grad=True)
    value = compile_whole(lambda c: clifford(0, 2 * c).sum())(c)
    value.backward()
    assert torch.allclose(c.grad, -2 * clifford(1, 2 * c), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_keeps_shape_and_dtype(shape, dtype):
    value = clifford(0, torch.ones(shape, dtype=dtype))
    assert value.shape == shape
    assert value.dtype == dtype


@pytest.mark.parametrize(
    ("n", "c", "message"),
    [
        (-1, torch.ones(1), "integer >= 0, got -1"),
        (0.5, torch.ones(1), "integer >= 0, got 0.5"),
        (True, torch.ones(1), "integer >= 0, got True"),
        (0, torch.ones(1, dtype=torch.int64), "floating-point tensor, got dtype torch.int64"),
        (0, torch.ones(1, dtype=torch.complex64), "got dtype torch.complex64"),
        (0, 1.0, "must be a tensor, got float"),
    ],
)
def test_bad_arguments_are_named(n, c, message):
    with pytest.raises(ValueError, match=message):
        clifford(n, c)
