import copy
import itertools
import math

import onnx.reference
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from spinwave import (
    SpinWaveLinear,
    SpinWaveMLP,
    SpinWaveParameters,
    effective_weights,
    layers,
    load_mnist,
    neuron,
)


@pytest.fixture(params=["continuum", "discretized"])
def model(request):
    return request.param


PHYSICS = SpinWaveParameters(coupling_total=3, points=15)


def test_layer_is_gain_times_neurons(model):
    layer = SpinWaveLinear(6, 4, PHYSICS, model, bias=True, dtype=torch.float64)
    layer.bias.data.normal_()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = layer.gain * neuron(x[:, :, None], layer.weight, PHYSICS, model) + layer.bias
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("coupling_total", [1e-3, 0.1, 10, 100])
def test_new_layers_put_out_unit_scale(model, coupling_total):
    torch.manual_seed(0)
    layer = SpinWaveLinear(100, 50, SpinWaveParameters(coupling_total=coupling_total, points=20), model)
    outputs = layer(torch.randn(500, 100))
    assert 0.9 < outputs.square().mean().sqrt() < 1.1


def test_without_gain_the_questions_network_has_vanishing_logits():
    torch.manual_seed(0)
    network = SpinWaveMLP()
    for layer in network.layers:
        if isinstance(layer, SpinWaveLinear):
            layer.gain.fill_(1)
    images, _ = load_mnist("test")
    assert network(images[:100]).abs().max() < 1e-5


def test_weights_start_as_standard_normal_without_bias():
    torch.manual_seed(0)
    layer = SpinWaveLinear(100, 100)
    assert layer.weight.shape == (100, 100)
    assert abs(layer.weight.mean()) < 0.05
    assert abs(layer.weight.std() - 1) < 0.05
    assert layer.bias is None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


def test_state_dict_carries_weight_and_gain():
    first, second = SpinWaveMLP((5, 4, 3)), SpinWaveMLP((5, 4, 3))
    assert sorted(first.state_dict()) == ["layers.0.gain", "layers.0.weight", "layers.2.gain", "layers.2.weight"]
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 5)
    assert torch.equal(first(x), second(x))


def test_a_printed_layer_shows_sizes_physics_and_model(model):
    shown = repr(SpinWaveLinear(6, 4, PHYSICS, model))
    assert shown == f"SpinWaveLinear(6, 4, {PHYSICS}, model={model!r}, bias=False)"
    assert repr(SpinWaveLinear(6, 4, bias=True)).endswith(", bias=True)")


def test_deepcopy_is_independent():
    layer = SpinWaveLinear(5, 4)
    twin = copy.deepcopy(layer)
    twin.weight.data.zero_()
    assert layer.weight.abs().min() > 0
    assert twin.physics == layer.physics


def test_to_moves_weight_and_gain_to_a_dtype():
    layer = SpinWaveLinear(5, 4).double()
    assert layer.gain.dtype == torch.float64
    assert layer(torch.randn(2, 5, dtype=torch.float64)).dtype == torch.float64


def test_a_meta_network_has_shapes(model):
    assert SpinWaveMLP((6, 5, 3), PHYSICS, model, device="meta")(torch.ones(2, 6, device="meta")).shape == (2, 3)


def test_training_moves_the_weights_and_leaves_the_gain(model):
    torch.manual_seed(0)
    layer = SpinWaveLinear(6, 4, PHYSICS, model)
    gain, weight = layer.gain.clone(), layer.weight.detach().clone()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    assert torch.equal(layer.gain, gain)
    assert (layer.weight - weight).abs().min() > 0.05


def test_autocast_runs_the_product_in_16_bits_and_h_in_32(model):
    torch.manual_seed(0)
    layer = SpinWaveLinear(6, 4, PHYSICS, model)
    x = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        h = layer.effective_weight()
    assert y.dtype == torch.bfloat16
    assert torch.equal(h, layer.effective_weight())
    assert torch.allclose(h, layer.gain * effective_weights(layer.weight, PHYSICS, model), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_output_is_the_product_with_the_effective_weight_bit_for_bit(model, shape, bias):
    torch.manual_seed(0)
    layer = SpinWaveLinear(6, 4, PHYSICS, model, bias=bias)
    x = torch.randn(shape).requires_grad_()
    y, expected = layer(x), torch.nn.functional.linear(x, layer.effective_weight(), layer.bias)
    assert torch.equal(y, expected)
    for found, wanted in zip(
        torch.autograd.grad(y.sin().sum(), (x, layer.weight)),
        torch.autograd.grad(expected.sin().sum(), (x, layer.weight)),
        strict=True,
    ):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_a_subclass_with_other_physics_is_asked_for_it():
    class DotProduct(SpinWaveLinear):
        def effective_weight(self):
            return self.gain * self.weight

    layer, x = DotProduct(6, 4), torch.randn(3, 6)
    assert torch.equal(layer(x), x @ (layer.gain * layer.weight).T)


def test_evaluation_keeps_the_effective_weight_until_something_changes(model, monkeypatch):
    torch.manual_seed(0)
    layer, x = SpinWaveLinear(6, 4, PHYSICS, model), torch.randn(3, 6)
    calls, original = [], layers.compute
    monkeypatch.setattr(layers, "compute", lambda *args, **more: calls.append(1) or original(*args, **more))

    def check(expected_calls):
        calls.clear()  # of the change before
        with torch.no_grad():
            assert torch.equal(layer(x), layer(x))
            assert len(calls) == expected_calls
            assert torch.equal(layer(x), x @ original(layer.weight, layer.physics, model, True, layer.gain).T)

    check(1)
    check(0)
    with torch.no_grad():
        layer.weight.add_(0.1)
    check(1)
    layer.gain *= 2
    check(1)
    layer.physics = SpinWaveParameters(coupling_total=1.0, points=15)
    check(1)
    layer.load_state_dict(SpinWaveLinear(6, 4, PHYSICS, model).state_dict())
    check(1)
    with torch.no_grad():
        layer(x)
        layer.model = "continuum" if model == "discretized" else "discretized"
        assert torch.equal(layer(x), x @ original(layer.weight, layer.physics, layer.model, True, layer.gain).T)
    layer.model = model
    check(1)
    layer.weight = torch.nn.Parameter(torch.randn(4, 6))
    check(1)
    layer.weight.data.add_(1)
    layer.eval()
    check(1)
    layer._apply(lambda tensor: tensor.data.mul_(2))  # as .to() and its like may: not counted, at the same address
    check(1)
    swapped = {"weight": torch.randn(4, 6)}
    with torch.no_grad():
        expected = x @ original(swapped["weight"], layer.physics, model, True, layer.gain).T
        assert torch.equal(torch.func.functional_call(layer, swapped, (x,)), expected)
    check(1)
    for _ in range(10):  # new weights may come to lie where old ones did
        layer.weight = torch.nn.Parameter(torch.randn(4, 6))
        layer.weight = torch.nn.Parameter(torch.randn(4, 6))
        check(1)
        layer.gain = torch.rand(())
        layer.gain = torch.rand(())
        check(1)
    assert layer.effective_weight().requires_grad
    # fused optimisers change weights behind the back of the version counter
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, fused=True)
    layer(x).square().mean().backward()
    optimizer.step()
    check(1)
    with torch.inference_mode():
        assert torch.equal(layer(x), x @ layer.effective_weight().T)
    layer(x).sum().backward()


def test_the_kept_weight_is_neither_what_a_reader_made_of_it_nor_an_inference_tensor():
    layer, x = SpinWaveLinear(5, 3), torch.randn(2, 5)
    with torch.no_grad():
        y = layer(x)
        layer.effective_weight().mul_(2)
        assert torch.equal(layer(x), y)
    layer = SpinWaveLinear(5, 3)
    with torch.inference_mode():
        layer(x)
    with torch.no_grad():
        h = layer.effective_weight()
    (x.clone().requires_grad_() @ h.T).sum().backward()


@torch.no_grad()
def test_the_kept_weight_is_not_taken_for_that_of_new_weights_at_an_old_place_in_memory():
    layer, x = SpinWaveLinear(20, 3), torch.randn(4, 20)
    for _ in range(300):  # the memory of weights that are gone is given to new ones sooner or later
        layer.weight.data = torch.randn(3, 20)
        assert torch.allclose(layer(x), x @ (layer.gain * effective_weights(layer.weight)).T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "network"])
def test_a_gain_that_is_to_be_learned_gets_its_gradient(model, kind):
    torch.manual_seed(0)
    network = SpinWaveLinear(5, 3, PHYSICS, model) if kind == "layer" else SpinWaveMLP((5, 4, 3), PHYSICS, model)
    first = network if kind == "layer" else network.layers[0]
    first.gain.requires_grad_()
    y = network(torch.randn(2, 5))
    (of_gain,) = torch.autograd.grad(y.square().sum(), first.gain)
    # ReLU passes a positive factor on, so the outputs are proportional to every gain
    assert torch.allclose(of_gain, 2 * y.square().sum() / first.gain)


def test_weights_changed_between_forward_and_backward_are_refused():
    layer = SpinWaveLinear(5, 3, SpinWaveParameters(coupling_total=10.0), bias=True)
    y = layer(torch.randn(4, 5))
    with torch.no_grad():
        layer.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_new_layers_in_16_bits_put_out_unit_scale(dtype):
    torch.manual_seed(0)
    layer = SpinWaveLinear(400, 50, dtype=dtype)
    assert layer(torch.randn(500, 400).to(dtype)).float().square().mean().sqrt().item() == pytest.approx(1, rel=0.05)


def test_a_gain_that_its_dtype_does_not_hold_is_an_error():
    physics = SpinWaveParameters(coupling_total=1e-20)
    torch.manual_seed(0)
    layer = SpinWaveLinear(100, 50, physics)
    assert layer(torch.randn(500, 100)).square().mean().sqrt().item() == pytest.approx(1, rel=0.05)
    with pytest.raises(ValueError, match=r"need a gain that torch.float16 does not hold"):
        SpinWaveLinear(100, 50, physics, dtype=torch.float16)


@pytest.mark.parametrize("coupling_total", [0.1, 60.0])
def test_torch_func_trains_many_networks_and_splits_gradients_by_sample(coupling_total):
    """As PyTorch's tutorials do it: the stack of networks has a stack of gains too."""
    networks = [SpinWaveMLP((9, 7, 4), SpinWaveParameters(coupling_total), dtype=torch.float64) for _ in range(3)]
    x, labels = torch.rand(5, 9, dtype=torch.float64), torch.arange(5) % 4
    networks[1].calibrate(x)
    template = copy.deepcopy(networks[0]).to("meta")

    def loss(parameters, buffers, x, labels):
        logits = torch.func.functional_call(template, (parameters, buffers), (x,))
        return torch.nn.functional.cross_entropy(logits, labels)

    state = torch.func.stack_module_state(networks)
    together = torch.func.vmap(torch.func.grad(loss), (0, 0, None, None))(*state, x, labels)
    for k, network in enumerate(networks):
        torch.nn.functional.cross_entropy(network(x), labels).backward()
        for name, parameter in network.named_parameters():
            assert torch.allclose(together[name][k], parameter.grad, rtol=1e-9, atol=1e-12)
    own = dict(networks[1].named_parameters()), dict(networks[1].named_buffers())
    by_sample = torch.func.vmap(torch.func.grad(loss), (None, None, 0, 0))(*own, x[:, None], labels[:, None])
    for name, parameter in own[0].items():
        assert torch.allclose(by_sample[name].mean(0), parameter.grad, rtol=1e-9, atol=1e-12)


def test_a_traced_network_is_the_network():
    """make_fx records operators; what the compiled loops wrote once came out as memory that nobody had filled."""
    network, x = SpinWaveMLP((5, 4, 3), PHYSICS), torch.rand(2, 5)
    assert torch.equal(make_fx(network)(x)(2 * x), network(2 * x))


@pytest.mark.slow
def test_network_compiles_without_graph_breaks(compile_whole):
    torch.manual_seed(0)
    network = SpinWaveMLP((6, 5, 3), PHYSICS)
    x = torch.randn(4, 6)
    assert torch.allclose(compile_whole(network)(x), network(x), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("trained", [(False, False), (True, False), (False, True)])
def test_network_compiles_where_weights_are_not_trained(trained, compile_whole):
    """Nothing recorded at all, one layer frozen, or the other."""
    torch.manual_seed(0)
    network = SpinWaveMLP((6, 5, 3), PHYSICS)
    for layer, wanted in zip(network.layers[::2], trained, strict=True):
        layer.weight.requires_grad_(wanted)
    x, compiled = torch.randn(4, 6), compile_whole(network)
    assert torch.allclose(compiled(x), network(x), rtol=0, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(compiled(x), network(x), rtol=0, atol=1e-5)


def test_network_is_layers_with_relu_between():
    network = SpinWaveMLP((6, 5, 4, 3))
    assert [type(m).__name__ for m in network.layers] == ["SpinWaveLinear", "ReLU"] * 2 + ["SpinWaveLinear"]
    assert network(torch.randn(2, 7, 6)).shape == (2, 7, 3)


@pytest.mark.parametrize("trained", list(itertools.product([False, True], repeat=4)))
def test_training_at_once_is_training_layer_by_layer(trained):
    """Input and every layer, wanted or not: the same outputs and gradients, bit for bit."""
    torch.manual_seed(0)
    network = SpinWaveMLP((6, 5, 4, 3))
    network.layers[2].physics = SpinWaveParameters(3.0)
    network.layers[4].gain *= 2
    inputs = [torch.randn(7, 6), *network.parameters()]
    for tensor, wanted in zip(inputs, trained, strict=True):
        tensor.requires_grad_(wanted)
    at_once, one_by_one = network(inputs[0]), network.layers(inputs[0])
    assert torch.equal(at_once, one_by_one)
    asked = [tensor for tensor in inputs if tensor.requires_grad]
    if asked:
        assert len(at_once.grad_fn.next_functions) == 4
        g = torch.randn(7, 3)
        gradients = (torch.autograd.grad(y, asked, g) for y in (at_once, one_by_one))
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class Doubled(SpinWaveLinear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers[0].register_forward_hook(lambda module, args, y: 2 * y),
        lambda layers: layers[2].register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        lambda layers: torch.nn.modules.module.register_module_forward_hook(
            lambda module, args, y: 2 * y if module is layers[1] else None
        ),
        lambda layers: setattr(layers[0], "__class__", Doubled),
        lambda layers: layers.__setitem__(1, torch.nn.Tanh()),
        lambda layers: layers.append(torch.nn.ReLU()),
        lambda layers: layers.insert(2, torch.nn.Dropout()),
        lambda layers: setattr(layers[1], "forward", torch.tanh),
    ],
)
def test_layers_that_somebody_changed_are_asked_one_by_one(change):
    torch.manual_seed(0)
    network, x = SpinWaveMLP((6, 5, 4)), torch.randn(7, 6)
    before = network(x)
    handle = change(network.layers)
    results = []
    for forward in (network, network.layers):
        torch.manual_seed(1)
        results.append(forward(x))
    if hasattr(handle, "remove"):
        handle.remove()
    assert torch.equal(*results)
    assert not torch.equal(before, results[0])


def test_a_hook_on_a_layer_sees_its_gradient():
    network = SpinWaveMLP((6, 5, 4))
    seen = []
    network.layers[2].register_full_backward_hook(lambda module, of_inputs, of_outputs: seen.append(of_inputs[0].shape))
    network(torch.randn(7, 6)).sum().backward()
    assert seen == [(7, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_folded_networks_are_ordinary_and_equal(model, dtype):
    torch.manual_seed(0)
    network = SpinWaveMLP((6, 5, 3), PHYSICS, model, dtype=dtype)
    folded = network.fold()
    assert [type(m).__name__ for m in folded] == ["Linear", "ReLU", "Linear"]
    x = torch.randn(4, 6, dtype=dtype)
    assert torch.equal(folded(x), network(x))
    layer = SpinWaveLinear(6, 4, PHYSICS, model, bias=True, dtype=dtype)
    layer.bias.data.normal_()
    assert torch.equal(layer.fold()(x), layer(x))


@pytest.mark.slow
def test_folding_copies_other_layers_and_refuses_another_forward():
    network, x = SpinWaveMLP((6, 5, 4)), torch.randn(3, 6)
    network.layers[1] = torch.nn.Tanh()
    network.layers[2] = torch.nn.Linear(5, 4)
    folded = network.fold()
    assert torch.equal(folded(x), network(x))
    assert folded[2] is not network.layers[2]
    network.layers[2] = Doubled(5, 4)
    with pytest.raises(ValueError, match="only the forward of SpinWaveLinear can be folded, got that of Doubled"):
        network.fold()


def test_folded_networks_export():
    network = SpinWaveMLP((6, 5, 3), PHYSICS)
    x = torch.randn(4, 6)
    program = torch.export.export(network.fold(), (x,))
    assert torch.equal(program.module()(x), network(x))


@pytest.mark.slow
def test_folded_networks_export_to_onnx():
    """Read back by ONNX's own reference implementation: what left the package is physics-free and the same."""
    network = SpinWaveMLP((6, 5, 3), PHYSICS)
    x = torch.randn(4, 6)
    program = torch.onnx.export(network.fold().eval(), (x,), dynamo=True, verbose=False)
    graph = program.model_proto.graph
    assert {node.op_type for node in graph.node} <= {"Gemm", "MatMul", "Transpose", "Relu"}
    onnx.checker.check_model(program.model_proto)
    run = onnx.reference.ReferenceEvaluator(program.model_proto)
    (y,) = run.run(None, {graph.input[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(y), network(x), rtol=0, atol=1e-6)


def test_calibration_gives_every_layer_unit_outputs():
    torch.manual_seed(0)
    network = SpinWaveMLP((100, 30, 20, 10), PHYSICS)
    x, _ = load_mnist("train")
    network.calibrate(x[:1000])
    y = x[:1000]
    for layer in network.layers:
        y = layer(y)
        if isinstance(layer, SpinWaveLinear):
            assert y.square().mean().item() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("sample", [torch.zeros(3, 6), torch.full((3, 6), math.nan)])
def test_calibration_on_nothing_is_an_error(sample):
    with pytest.raises(ValueError, match="must excite every layer"):
        SpinWaveMLP((6, 5, 3)).calibrate(sample)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpinWaveLinear(0, 3), "in_features must be an integer >= 1, got 0"),
        (lambda: SpinWaveLinear(3, 2.0), "out_features must be an integer >= 1, got 2.0"),
        (lambda: SpinWaveLinear(3, 2, model="loop"), "model must be one of continuum, discretized, got 'loop'"),
        (lambda: SpinWaveLinear(3, 2, dtype=torch.complex64), "dtype must be real floating point, got torch.complex64"),
        (lambda: SpinWaveLinear(3, 2, dtype=torch.int64), "dtype must be real floating point, got torch.int64"),
        (lambda: SpinWaveMLP((5, 2.5, 3)), "every size must be an integer >= 1, got 2.5"),
        (lambda: SpinWaveMLP((5,)), r"at least an input and an output, got \(5,\)"),
        (lambda: SpinWaveMLP((5, 3))(torch.ones(2, 4)), r"shape \(..., 5\), got \(2, 4\)"),
        (lambda: SpinWaveMLP((5, 3))(torch.tensor(1.0)), r"shape \(..., 5\), got \(\)"),
    ],
)
def test_bad_sizes_and_inputs_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_that_are_not_numbers_are_an_error_on_the_cpu(model):
    layer = SpinWaveLinear(3, 2, PHYSICS, model)
    layer.weight.data[0, 0] = math.nan
    with pytest.raises(ValueError, match="w must be finite"):
        layer(torch.ones(1, 3))
