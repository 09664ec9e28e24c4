"""The Python side of the interactive figures. What they do in a browser is in test_explorers.py."""

import asyncio
import base64
import math
import re
import zlib
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from spinwave import SpinWaveLinear, SpinWaveMLP, SpinWaveParameters, load_mnist, widgets
from spinwave.training import Diverged
from spinwave.widgets import (
    DigitExplorer,
    LadderExplorer,
    SpinWaveExplorer,
    explore_neuron,
    explore_training,
)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
ROWS = [{"rung": "looped", "seconds_per_digit": 42.0}, {"rung": "continuum", "seconds_per_digit": 2e-5}]


class Halves(nn.Module):
    def forward(self, x):
        return x[..., ::2]


class NotANumber(SpinWaveLinear):
    """What a layer on a GPU makes of weights that are NaN."""

    def forward(self, x):
        return super().forward(x) * math.nan


@pytest.fixture(scope="module")
def digits():
    images, labels = load_mnist("test")
    return images[:50], labels[:50]


@pytest.fixture(params=["spin_wave", "digits", "ladder"])
def explorer(request, digits):
    return {
        "spin_wave": lambda: SpinWaveExplorer(),
        "digits": lambda: DigitExplorer(SpinWaveMLP(), *digits),
        "ladder": lambda: LadderExplorer(ROWS),
    }[request.param]()


def test_every_parameter_has_a_slider():
    assert [field["name"] for field in widgets.FIELDS] == [field.name for field in fields(SpinWaveParameters)]
    assert all(field["label"] and field["unit"] and field["min"] < field["max"] for field in widgets.FIELDS)


def test_offers_a_widget_and_a_page(explorer):
    data, _ = explorer._repr_mimebundle_()
    assert WIDGET_VIEW in data
    assert explorer._module in data["text/html"]


def test_module_in_a_kernel_imports_nothing(explorer):
    source = explorer._esm
    assert not re.search(r"^import|\bfrom \"", source, re.MULTILINE)
    assert re.findall(r"^export.*", source, re.MULTILINE) == ["export default { render };"]


def test_two_displays_have_places_of_their_own(explorer):
    places = {re.search('id="(.*?)"', explorer.html())[1] for _ in range(2)}
    assert len(places) == 2


def test_text_cannot_end_the_script():
    page = LadderExplorer([{**ROWS[0], "device": "</script><b>", "network": "<!-- <script>"}]).html()
    assert page.count("</script>") == page.count("<script") == 1
    assert "<!--" not in page


def test_digits_keep_pixels_weights_and_gains(digits):
    network = SpinWaveMLP((100, 7, 10), SpinWaveParameters(coupling_total=3))
    explorer = DigitExplorer(network, *digits)
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(explorer.pixels)), np.uint8)
    assert np.array_equal(pixels.reshape(-1, 100) / np.float32(255), digits[0])
    layers = [layer for layer in network.modules() if isinstance(layer, SpinWaveLinear)]
    for sent, layer in zip(explorer.layers, layers, strict=True):
        parts = np.frombuffer(base64.b64decode(sent["weights"]), "u1").reshape(-1, 3)
        weights = torch.from_numpy(np.pad(parts, ((0, 0), (1, 0))).view("<f4").reshape(layer.weight.shape))
        assert ((weights - layer.weight).abs() <= 2**-15 * layer.weight.abs()).all()
        assert sent["gain"] == layer.gain.item()
    assert explorer.trained["coupling_total"] == explorer.coupling_total == 3


def test_infinite_steepness_survives_json():
    assert SpinWaveExplorer(SpinWaveParameters(steepness=math.inf)).steepness == 1e300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modes": 0}, "modes must be an integer from 1 to 30, got 0"),
        ({"modes": 2.0}, "modes must be an integer"),
        ({"model": "exact"}, "model must be one of"),
        ({"x": [1.0], "w": [1.0, 2.0]}, r"the same shape \(modes,\), got \(1,\) and \(2,\)"),
        ({"x": [1.0, math.nan], "modes": 2}, "x and w must be finite"),
        ({"w": [20, 1, 2], "modes": 3}, r"w must be from -3 to 3, got \[20.0, 1.0, 2.0\]"),
        ({"w": torch.tensor([1j]), "modes": 1}, r"w must be a sequence of real numbers, got tensor\(\[0.\+1.j\]\)"),
        ({"w": "abc", "modes": 3}, "w must be a sequence of real numbers, got 'abc'"),
        ({"x": 5, "modes": 1}, r"the same shape \(modes,\), got \(\) and \(1,\)"),
    ],
)
def test_bad_neurons_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SpinWaveExplorer(**arguments)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("modes", 4, "modes must be an integer from 1 to 3, got 4"),
        ("w", [1.0, 2.0, 20.0], "w must be from -3 to 3"),
        ("x", [1.0], "the same shape"),
        ("model", "exact", "model must be one of"),
        ("detuning", math.nan, "detuning must be finite, got nan"),
    ],
)
def test_bad_values_assigned_to_a_neuron_are_named(name, value, message):
    explorer = SpinWaveExplorer(modes=3, w=[0.5, 1.0, 2.0])
    before = getattr(explorer, name)
    with pytest.raises(ValueError, match=message):
        setattr(explorer, name, value)
    assert getattr(explorer, name) == before


def test_a_neuron_keeps_the_digits_of_its_weights():
    assert SpinWaveExplorer(modes=2, w=[0.1, 1 / 3]).w == [0.1, 1 / 3]


@pytest.mark.parametrize(
    ("network", "change", "message"),
    [
        (nn.Linear(100, 10), None, "must have spin-wave layers, got Linear"),
        (SpinWaveMLP(model="discretized"), None, "closed-form"),
        (SpinWaveLinear(100, 10, bias=True), None, "without bias"),
        (SpinWaveMLP((90, 10)), None, "square images, got 90 features"),
        (SpinWaveMLP((81, 10)), None, r"images must be \(N, 81\)"),
        (SpinWaveMLP((100, 5)), None, "labels must be from 0 to 4"),
        (nn.Sequential(SpinWaveLinear(100, 20), nn.Tanh(), SpinWaveLinear(20, 10)), None, "with ReLU between"),
        (nn.Sequential(SpinWaveLinear(100, 20), SpinWaveLinear(20, 10)), None, "with ReLU between"),
        (nn.Sequential(SpinWaveLinear(100, 20), nn.ReLU(), nn.Linear(20, 10)), None, "with ReLU between"),
        (nn.Sequential(*[SpinWaveLinear(100, 100), nn.ReLU()] * 2), None, "with ReLU between"),
        (nn.Sequential(SpinWaveLinear(100, 50), Halves(), SpinWaveLinear(25, 10)), None, "with ReLU between"),
        (NotANumber(100, 10), None, "with ReLU between"),
        (SpinWaveMLP(), lambda images, labels: (images * 2, labels), "grey values from 0 to 1"),
        (SpinWaveMLP(), lambda images, labels: (images[:0], labels[:0]), "N >= 1"),
    ],
)
def test_bad_networks_and_digits_are_named(digits, network, change, message):
    with pytest.raises(ValueError, match=message):
        DigitExplorer(network, *(change(*digits) if change else digits))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "at least one measurement"),
        ([3], {}, "a row must be a dict, got 3"),
        ([{"rung": "looped"}], {}, "seconds_per_digit"),
        ([{"rung": "looped", "seconds_per_digit": 0}], {}, "seconds_per_digit"),
        ([{**ROWS[0], "times": torch.ones(1)}], {}, r"values of JSON, got \{'rung': 'looped'"),
        ([{**ROWS[0], "device": "a CPU"}] * 2, {}, "must have different rungs, got 'looped' twice"),
        (ROWS, {"rung": "warp"}, "rung must be one of the rows', got 'warp'"),
        (ROWS, {"digits": 0}, "digits must be an integer from 1 to 60000, got 0"),
        (ROWS, {"digits": 10**9}, "digits must be an integer from 1 to 60000, got 1000000000"),
        (ROWS, {"epochs": -3}, "epochs must be an integer from 1 to 100, got -3"),
        (ROWS, {"epochs": 1.5}, "epochs must be an integer from 1 to 100, got 1.5"),
    ],
)
def test_bad_rows_are_named(rows, options, message):
    with pytest.raises(ValueError, match=message):
        LadderExplorer(rows, **options)


# ---- panels of a kernel


def controls(panel):
    return {control.description: control for control in panel.children[0].children}


@pytest.mark.slow
def test_neuron_panel_has_every_parameter_and_follows():
    panel = explore_neuron(SpinWaveParameters(coupling_total=10), modes=4)
    sliders = controls(panel)
    for field in widgets.FIELDS:
        assert f"{field['label']} ({field['unit']})" in sliders
    for slider in sliders.values():
        before = bytes(panel.children[-1].value)
        slider.value = slider.value * 0.8 if isinstance(slider.value, float) else slider.value + 5
        after = bytes(panel.children[-1].value)
        assert after.startswith(b"\x89PNG")
        assert after != before, slider.description


def test_neuron_panel_says_what_it_cut():
    note = explore_neuron(SpinWaveParameters(coupling_total=1e4)).children[1].value
    assert note == "Total coupling C limited to 100: the slider goes from 0.01 to 100"


def test_panel_is_an_explorer_in_the_page():
    panel = explore_neuron()
    controls(panel)["Detuning (linewidths)"].value = -500
    data, _ = panel._repr_mimebundle_()
    assert WIDGET_VIEW in data
    assert "spin_wave.js" in data["text/html"]
    assert '"detuning": -500.0' in data["text/html"]


def test_couplings_beyond_the_validated_range_are_cut_and_said_so():
    x, w = widgets._amplitudes(None, None)
    strong = widgets._neuron_figure(SpinWaveParameters(coupling_total=100), x[:1], w[:1])
    assert strong.get_suptitle() == "couplings limited to 5, the end of the validated range"
    assert widgets._neuron_figure(SpinWaveParameters(), x[:1], w[:1]).get_suptitle() == ""


def test_panel_names_what_cannot_be_computed():
    panel = explore_neuron()
    draw, panel._draw = panel._draw, lambda: SpinWaveParameters(points=1)
    panel._update()
    assert "points must be an integer >= 2" in panel.children[2].value
    panel._draw = draw
    panel._update()
    assert panel.children[2].value == ""


def test_panel_draws_once_after_many_changes():
    drawn = []

    async def drag():
        panel = explore_neuron()
        panel._wait, panel._draw = 0.01, lambda: drawn.append(1) or figure
        for value in range(-500, 500, 100):
            controls(panel)["Detuning (linewidths)"].value = value
        assert drawn == []
        await asyncio.sleep(0.1)

    figure = widgets._neuron_figure(SpinWaveParameters(), *(part[:2] for part in widgets._amplitudes(None, None)))
    asyncio.run(drag())
    assert drawn == [1]


@pytest.mark.slow
def test_training_panel_trains_in_float64_and_follows():
    state = torch.get_rng_state()
    panel = explore_training(images=300, epochs=1)
    assert torch.equal(state, torch.get_rng_state())
    sliders = controls(panel)
    before = panel.children[-1].value
    sliders["Total coupling C (dimensionless)"].value = 100
    assert panel.children[-1].value != before
    assert "digits.js" in panel._repr_mimebundle_()[0]["text/html"]
    assert panel._page().coupling_total == 100


@pytest.mark.slow
def test_training_panel_on_the_grid_gives_the_page_its_weights():
    panel = explore_training(images=200, epochs=1)
    before = panel._page().layers
    controls(panel)["Model"].value = "discretized"
    assert "digits.js" in panel._repr_mimebundle_()[0]["text/html"]
    assert panel._page().layers != before


def test_training_panel_without_a_trained_network_has_no_page(monkeypatch):
    def diverge(*_arguments, **_options):
        raise Diverged("the loss is NaN")

    monkeypatch.setattr(widgets, "fit", diverge)
    panel = explore_training(images=1, epochs=1)
    assert "the loss is NaN" in panel.children[2].value
    data = panel._repr_mimebundle_()
    assert WIDGET_VIEW in data
    assert "text/html" not in data


@pytest.mark.parametrize("arguments", [{"images": 0}, {"images": 60_001}, {"epochs": 0}, {"epochs": 11}])
def test_bad_trainings_are_named(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be an integer from 1 to"):
        explore_training(**arguments)
