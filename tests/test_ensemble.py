"""An ensemble is its members, trained side by side."""

import json

import numpy as np
import pytest
import torch

from spinwave import Diverged, SpinWaveMLP, SpinWaveParameters, fit, fit_ensemble, load_mnist


@pytest.fixture(scope="module")
def digits():
    return tuple(tuple(part[:300] for part in load_mnist(split)) for split in ("train", "test"))


@pytest.mark.parametrize("model", ["continuum", "discretized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rates", [0.2, [0.2, 0.05, 0.1]])
def test_members_are_those_of_single_runs(digits, model, dtype, rates):
    train, test = (((images.to(dtype)), labels) for images, labels in digits)
    physics = SpinWaveParameters(points=12)
    couplings, seeds = [0.1, 5.0, 0.3], [3, 3, 7]
    networks, metrics = fit_ensemble(
        train,
        test,
        seeds=seeds,
        coupling_totals=couplings,
        learning_rates=rates,
        sizes=(100, 20, 10),
        parameters=physics,
        model=model,
        epochs=2,
        batch_size=64,  # the last batch is smaller
        device="cpu",
        progress=False,
    )
    for e, (network, found) in enumerate(zip(networks, metrics, strict=True)):
        torch.manual_seed(seeds[e])
        own = SpinWaveParameters(coupling_total=couplings[e], points=12)
        single = SpinWaveMLP((100, 20, 10), own, model, dtype=dtype)
        rate = rates if isinstance(rates, float) else rates[e]
        settings = {"epochs": 2, "batch_size": 64, "seed": seeds[e], "learning_rate": rate}
        expected = fit(single, train, test, device="cpu", progress=False, **settings)
        close = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-10}
        if dtype == torch.float64 and model == "discretized":
            # the strongest member chooses the tables of all, good to 1e-13, and Adam magnifies vanishing gradients
            close = {"rtol": 1e-6, "atol": 1e-6}
        assert network.physics == own
        for key in ("train_loss", "test_loss"):
            ours, theirs = ([entry[key] for entry in run["history"]] for run in (found, expected))
            assert ours == pytest.approx(theirs, rel=close["rtol"])
        assert found["parameters"] == expected["parameters"]
        assert found["settings"].items() >= settings.items()
        assert abs(found["test_accuracy"] - expected["test_accuracy"]) < 0.01
        if dtype == torch.float64:
            for ours, theirs in zip(network.parameters(), single.parameters(), strict=True):
                assert torch.allclose(ours, theirs, **close)


def test_seeds_and_rates_may_be_arrays(digits):
    options = {"epochs": 1, "sizes": (100, 10), "progress": False}
    rates = np.array([0.1, 0.2], dtype=np.float32)
    arrays, metrics = fit_ensemble(*digits, seeds=np.arange(2), learning_rates=rates, **options)
    lists, _ = fit_ensemble(*digits, seeds=[0, 1], learning_rates=rates.tolist(), **options)
    for ours, theirs in zip(arrays, lists, strict=True):
        assert torch.equal(ours.layers[0].weight, theirs.layers[0].weight)
    json.dumps(metrics)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": []}, "same length of at least 1, got 0, 0 and 0"),
        ({"seeds": [1, 2], "coupling_totals": [0.1]}, "got 2, 1 and 2"),
        ({"seeds": [1, 2], "learning_rates": [0.1] * 3}, "got 2, 2 and 3"),
        ({"seeds": [1.5]}, "seed must be an integer"),
        ({"seeds": [1], "epochs": 0}, "epochs must be an integer >= 1"),
        ({"seeds": [1], "learning_rates": [-1.0]}, "learning_rate must be positive"),
        ({"seeds": [1], "coupling_totals": [-1.0]}, "coupling_total must be positive"),
        ({"seeds": [1], "sizes": (99, 10)}, "expected an input of shape"),
        ({"seeds": [1], "sizes": (100, 5)}, "labels must be from 0 to 4"),
        ({"seeds": [1], "model": "exact"}, "model must be one of"),
        ({"seeds": [1], "device": "cpu", "graph": True}, "graph expects one process on an NVIDIA GPU"),
    ],
)
def test_bad_arguments_are_named(digits, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_ensemble(*digits, progress=False, **arguments)


def test_a_member_that_diverges_is_named(digits):
    with pytest.raises(Diverged, match=r"epoch 1.* seed 2 "):
        fit_ensemble(*digits, seeds=[1, 2], learning_rates=[0.1, 1e30], epochs=2, device="cpu", progress=False)
