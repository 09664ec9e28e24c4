"""Interactive figures that work in a kernel and in the static page.

An explorer is one ES module in ``spinwave/static`` with anywidget's ``render({model, el})``. Where a kernel runs, it is
an ordinary widget. In the static page nothing of Jupyter runs, so the same object also offers itself as HTML that
imports the same module from the site's ``_static`` folder and hands it the values of its traits.

:func:`explore_neuron` and :func:`explore_training` compute with PyTorch and exist in a kernel only; in the static page
an explorer takes their place.

A book adds ``spinwave.widgets`` to its Sphinx extensions.
"""

import asyncio
import base64
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import torch
import traitlets
from torch import Tensor

from .data import load_mnist
from .effective import MODELS, check_physics, effective_weights, grid
from .ladder import partial_readout, read_in
from .layers import SpinWaveLinear, SpinWaveMLP
from .parameters import SpinWaveParameters, whole
from .training import Diverged, fit

STATIC = Path(__file__).parent / "static"

# The sliders of the physics. Inside these limits the page's arithmetic is tested against PyTorch; other values are cut
# to them, and a note says so.
FIELDS: list[dict[str, Any]] = [
    {"name": name, "label": label, "unit": unit, "min": low, "max": high, "step": step, "log": step is None}
    for name, label, unit, low, high, step in (
        ("coupling_total", "Total coupling C", "dimensionless", 0.01, 100, None),
        ("readout_coupling", "Read-out coupling R", "dimensionless", 0.1, 20, None),
        ("points", "Grid points N", "grid model", 2, 120, 1),
        ("steepness", "Steepness of the step", "per length, grid model", 5, 500, None),
        ("detuning", "Detuning", "linewidths", -20_000, 20_000, 100),
        ("optical_depth", "Optical depth", "dimensionless", 5_000, 50_000, None),
    )
]
# The largest |a| of a mode inside the limits.
LARGEST_COUPLING = 5.0
# The ends of the slider and of the figure of one weight.
LARGEST_WEIGHT = 3.0
_GRID_ONLY = ("points", "steepness")

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
_numbers = itertools.count(1)


def bundle(module: str) -> str:
    """Source of an explorer with the modules it imports, as one ES module.

    A kernel sends a widget its code as text, from which nothing can be imported by a relative path. Top-level names of
    the modules must therefore differ.

    Arguments:
        module: file name in ``spinwave/static``.
    """
    source = (STATIC / module).read_text(encoding="utf-8")
    shared = [(STATIC / name).read_text(encoding="utf-8") for name in _IMPORT.findall(source)]
    return "\n".join([re.sub(r"^export ", "", text, flags=re.MULTILINE) for text in shared] + [_IMPORT.sub("", source)])


class Explorer(anywidget.AnyWidget):
    """What the explorers share: one module, shown by a kernel's widget view or by the static page."""

    _module = ""

    def html(self) -> str:
        """The explorer for the static page: a place for it and a script that draws it there."""
        own = set(self.trait_names(sync=True)) - set(anywidget.AnyWidget.class_trait_names())
        state = {name: getattr(self, name) for name in sorted(own) if not name.startswith("_")}
        text = json.dumps(state).replace("<", r"\u003c")  # nothing in it may end the script or begin a comment
        place = f"spinwave-explorer-{next(_numbers)}"
        return f"""<div id="{place}">This interactive figure needs scripts, and the page served over HTTP.</div>
<script type="module">
const folder = new URL(`${{document.documentElement.dataset.content_root ?? "./"}}_static/`, document.baseURI);
const explorer = await import(new URL("{self._module}", folder));
const ui = await import(new URL("ui.js", folder));
explorer.default.render({{
  model: ui.staticModel({text}),
  el: document.getElementById("{place}"),
}});
</script>"""

    @traitlets.validate(*(field["name"] for field in FIELDS))
    def _check_field(self, proposal: Any) -> Any:
        # Values that leave the limits are for the page to cut; these it cannot.
        if not math.isfinite(proposal.value):
            raise ValueError(f"{proposal.trait.name} must be finite, got {proposal.value}")
        return proposal.value

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return _with_html(super()._repr_mimebundle_(**kwargs), self.html())


def _with_html(bundle: Any, html: str) -> Any:
    """A widget's MIME bundle with ``html`` added, which the book prefers and a notebook's front end does not."""
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    return {**data, "text/html": html}, metadata


class SpinWaveExplorer(Explorer):
    """One neuron: kernels, the spin wave as modes are stored, the output against one weight, effective weights.

    Arguments:
        parameters: where the sliders start; the question's by default.
        modes: number of modes at the start, an integer >= 1.
        x: probe amplitudes, one for each mode up to the most that the slider offers; thirty random ones in [0, 1] by
            default.
        w: control amplitudes, as many, from -3 to 3; random ones by default.
        model: ``"continuum"`` or ``"discretized"``, the model drawn with full lines.

    Raises:
        ValueError: unknown model, amplitudes that do not match or are not finite, real and in their range, a number of
            modes out of range; also when such values are assigned later.
    """

    _module = "spin_wave.js"
    _esm = bundle(_module)
    fields = traitlets.List(FIELDS).tag(sync=True)
    coupling_total = traitlets.Float().tag(sync=True)
    readout_coupling = traitlets.Float().tag(sync=True)
    points = traitlets.Int().tag(sync=True)
    steepness = traitlets.Float().tag(sync=True)
    detuning = traitlets.Float().tag(sync=True)
    optical_depth = traitlets.Float().tag(sync=True)
    modes = traitlets.Int().tag(sync=True)
    mode = traitlets.Int(1).tag(sync=True)
    x = traitlets.List(traitlets.Float()).tag(sync=True)
    w = traitlets.List(traitlets.Float()).tag(sync=True)
    model = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        parameters: SpinWaveParameters | None = None,
        modes: int = 8,
        x: Tensor | Sequence[float] | None = None,
        w: Tensor | Sequence[float] | None = None,
        model: str = "continuum",
    ) -> None:
        check_physics(parameters, model)
        probe, control = _amplitudes(x, w)
        modes = whole("modes", modes, 1, len(probe))
        super().__init__(
            modes=modes, x=probe.tolist(), w=control.tolist(), model=model, **_values(parameters)
        )

    @traitlets.validate("x", "w", "modes", "model")
    def _check_values(self, proposal: Any) -> Any:
        values = {name: getattr(self, name) for name in ("x", "w", "modes", "model")}
        values[proposal.trait.name] = proposal.value
        check_physics(None, values["model"])
        _amplitudes(values["x"], values["w"])
        whole("modes", values["modes"], 1, len(values["w"]))
        return proposal.value


class DigitExplorer(Explorer):
    """Draw a digit or step through real ones; a trained network of spin-wave neurons classifies it.

    The sliders change the physics under the trained weights. The module computes the closed form in float64. To keep
    pages light, weights are cut to the upper three bytes of a float32, by at most 3e-5 of their size.

    Arguments:
        network: trained, of closed-form layers without bias and with one physics; ReLU between them.
        images: test images, ``(N, size * size)`` grey values in [0, 1]; kept as uint8.
        labels: their classes, ``(N,)``.

    Raises:
        ValueError: a network that the module does not compute, or images and labels that do not fit it.
    """

    _module = "digits.js"
    _esm = bundle(_module)
    fields = traitlets.List([field for field in FIELDS if field["name"] not in _GRID_ONLY]).tag(sync=True)
    coupling_total = traitlets.Float().tag(sync=True)
    readout_coupling = traitlets.Float().tag(sync=True)
    detuning = traitlets.Float().tag(sync=True)
    optical_depth = traitlets.Float().tag(sync=True)
    readjust = traitlets.Bool(False).tag(sync=True)
    trained = traitlets.Dict().tag(sync=True)
    layers = traitlets.List(traitlets.Dict()).tag(sync=True)
    size = traitlets.Int().tag(sync=True)
    pixels = traitlets.Unicode().tag(sync=True)
    labels = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, network: torch.nn.Module, images: Tensor, labels: Tensor) -> None:
        layers = [layer for layer in network.modules() if isinstance(layer, SpinWaveLinear)]
        if not layers:
            raise ValueError(f"network must have spin-wave layers, got {type(network).__name__}")
        for layer in layers:
            if layer.model != "continuum" or layer.bias is not None or layer.physics != layers[0].physics:
                raise ValueError("the layers must be closed-form ones without bias and with the same physics")
        features, classes = layers[0].in_features, layers[-1].out_features
        size = math.isqrt(features)
        if size**2 != features:
            raise ValueError(f"the network must take square images, got {features} features")
        if images.shape != (len(labels), features) or len(labels) == 0:
            raise ValueError(
                f"images must be (N, {features}) and labels (N,) with N >= 1, "
                f"got shapes {tuple(images.shape)} and {tuple(labels.shape)}"
            )
        if not (images.min() >= 0 and images.max() <= 1):
            raise ValueError("images must be grey values from 0 to 1")
        if not (labels.min() >= 0 and labels.max() < classes):
            raise ValueError(f"labels must be from 0 to {classes - 1}, one for each output")
        with torch.no_grad():
            given = images.to(layers[0].weight)
            expected = network(given)
            same = all(before.out_features == after.in_features for before, after in itertools.pairwise(layers))
            if same:
                found = layers[0](given)
                for layer in layers[1:]:
                    found = layer(found.relu())
                same = found.shape == expected.shape and bool(  # and NaN is not the same
                    (found - expected).abs().max() <= 1e-4 * expected.abs().max()
                )
        if not same:
            raise ValueError(f"network must be spin-wave layers with ReLU between them, got\n{network}")
        grey = (255 * images).round().byte().cpu().numpy().tobytes()
        physics = {name: value for name, value in _values(layers[0].physics).items() if name not in _GRID_ONLY}
        super().__init__(
            trained=physics,
            layers=[
                {
                    "inputs": layer.in_features,
                    "outputs": layer.out_features,
                    "gain": layer.gain.item(),
                    "weights": _base64(_three_bytes(layer.weight)),
                }
                for layer in layers
            ],
            size=size,
            pixels=_base64(zlib.compress(grey, 9)),
            labels=labels.tolist(),
            **physics,
        )


class LadderExplorer(Explorer):
    """What every rung of the ladder takes for a number of digits and epochs, from measured rows.

    Arguments:
        rows: measurements, one dict each. ``rung`` is its name and ``seconds_per_digit`` the time; ``task``,
            ``network`` and ``device``, where given, tell apart what may be compared. Everything in a row is shown as
            its evidence.
        digits: digits in one epoch at the start, an integer from 1 to 60 000.
        epochs: epochs at the start, an integer from 1 to 100.
        rung: the rung chosen at the start; the first row's by default.

    Raises:
        ValueError: no rows, a row without a name or a positive time, with a value that JSON cannot say, or with the
            name of another that it may be compared with; a rung that no row has; digits or epochs out of range.
    """

    _module = "ladder.js"
    _esm = bundle(_module)
    rows = traitlets.List(traitlets.Dict()).tag(sync=True)
    rung = traitlets.Unicode().tag(sync=True)
    digits = traitlets.Int().tag(sync=True)
    epochs = traitlets.Int().tag(sync=True)

    def __init__(
        self, rows: Sequence[dict[str, Any]], digits: int = 60_000, epochs: int = 10, rung: str | None = None
    ) -> None:
        rows = list(rows)
        if not rows:
            raise ValueError("rows must hold at least one measurement, got none")
        seen: set[str] = set()
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"a row must be a dict, got {row!r}")
            name, seconds = row.get("rung"), row.get("seconds_per_digit")
            if not (isinstance(name, str) and isinstance(seconds, int | float) and 0 < seconds < math.inf):
                raise ValueError(f"a row needs a rung (text) and seconds_per_digit (positive), got {row!r}")
            try:
                json.dumps(row)
                key = json.dumps([name, *(row.get(part) or None for part in ("task", "network", "device"))])
            except (TypeError, ValueError):
                raise ValueError(f"a row must hold text, numbers and other values of JSON, got {row!r}") from None
            if key in seen:  # the page could not choose it
                raise ValueError(f"rows of one task, network and device must have different rungs, got {name!r} twice")
            seen.add(key)
        digits, epochs = whole("digits", digits, 1, 60_000), whole("epochs", epochs, 1, 100)
        rung = rows[0]["rung"] if rung is None else rung
        if rung not in {row["rung"] for row in rows}:
            raise ValueError(f"rung must be one of the rows', got {rung!r}")
        super().__init__(rows=rows, rung=rung, digits=digits, epochs=epochs)


# ---- in a kernel only


def explore_neuron(parameters: SpinWaveParameters | None = None, modes: int = 8) -> ipywidgets.VBox:
    """Sliders for every parameter of a neuron, computed with PyTorch in float64 on both models.

    In the static page its place is taken by :class:`SpinWaveExplorer`.

    Arguments:
        parameters: where the sliders start; the question's by default.
        modes: number of modes at the start, 1 to 30.

    Raises:
        ValueError: a number of modes out of range.
    """
    x, w = _amplitudes(None, None)
    modes = whole("modes", modes, 1, len(x))
    sliders, note = _sliders(parameters)
    count = ipywidgets.IntSlider(modes, 1, len(x), description="Number of modes", **_STYLE)

    def draw() -> Any:
        return _neuron_figure(_parameters(sliders), x[: count.value], w[: count.value])

    return _Panel([*sliders.values(), count], note, draw, lambda: SpinWaveExplorer(_parameters(sliders), count.value))


def explore_training(
    parameters: SpinWaveParameters | None = None, images: int = 6000, epochs: int = 3
) -> ipywidgets.VBox:
    """Sliders for every parameter of a 100-100-10 network, which is trained anew in float64 after a change.

    In the static page its place is taken by :class:`DigitExplorer`, with the network trained at the start.

    Arguments:
        parameters: where the sliders start; the question's by default.
        images: training images, the first of MNIST's 60 000; an integer >= 1.
        epochs: passes over them at the start, 1 to 10.

    Raises:
        ValueError: a number of images or epochs out of range.
    """
    train, test = (tuple(load_mnist(split)) for split in ("train", "test"))
    images, epochs = whole("images", images, 1, len(train[0])), whole("epochs", epochs, 1, 10)
    train = train[0][:images].double(), train[1][:images]
    first = test[0][:1000], test[1][:1000]
    sliders, note = _sliders(parameters)
    rate = ipywidgets.FloatLogSlider(
        0.2, min=-3, max=1, step=0.1, description="Learning rate (peak, per step)", readout_format=".3g", **_STYLE
    )
    passes = ipywidgets.IntSlider(epochs, 1, 10, description="Epochs (passes over the images)", **_STYLE)
    model = ipywidgets.ToggleButtons(
        options=[("closed form", "continuum"), ("grid", "discretized")], description="Model"
    )
    network: SpinWaveMLP | None = None

    def draw() -> Any:
        nonlocal network
        from .figures import learning_curves

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            trained = SpinWaveMLP(parameters=_parameters(sliders), model=model.value).double()
        metrics = fit(
            trained,
            train,
            (test[0].double(), test[1]),
            epochs=passes.value,
            learning_rate=rate.value,
            progress=False,
        )
        network = trained  # weights of a training that diverged are not for the page
        name = f"{metrics['test_accuracy']:.2%} of the test digits right after {metrics['seconds']:.1f} s"
        return learning_curves({name: metrics["history"]})

    def page() -> Explorer | None:
        if network is None:
            return None
        # The page computes the closed form alone, and so takes what was trained on the grid as its weights.
        closed = SpinWaveMLP(parameters=network.physics).double()
        closed.load_state_dict(network.state_dict())
        return DigitExplorer(closed, *first)

    return _Panel([*sliders.values(), rate, passes, model], note, draw, page, wait=0.5)


class _Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Controls above a figure that is drawn again a moment after the last change."""

    def __init__(
        self,
        controls: list[Any],
        note: ipywidgets.HTML,
        draw: Callable[[], Any],
        page: Callable[[], Explorer | None],
        wait: float = 0.15,
    ) -> None:
        self._draw, self._page, self._wait = draw, page, wait
        self._later: asyncio.TimerHandle | None = None
        self._image = ipywidgets.Image(format="png")
        self._message = ipywidgets.HTML()
        for control in controls:
            control.observe(self._schedule, "value")
        box = ipywidgets.Box(controls, layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([box, note, self._message, self._image])
        self._update()

    def _schedule(self, _change: Any) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no kernel: there is no later
            return self._update()
        if self._later is not None:
            self._later.cancel()
        self._later = loop.call_later(self._wait, self._update)

    def _update(self) -> None:
        try:
            figure = self._draw()
        except (ValueError, Diverged) as error:
            self._message.value = f"<b>{type(error).__name__}</b>: {error}"
            return
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        self._image.value = picture.getvalue()
        self._message.value = ""

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        data, page = super()._repr_mimebundle_(**kwargs), self._page()
        return data if page is None else _with_html(data, page.html())


_STYLE: dict[str, Any] = {
    "style": {"description_width": "26em"},
    "layout": {"width": "45em", "max_width": "100%"},
    "continuous_update": True,
}


def _sliders(parameters: SpinWaveParameters | None) -> tuple[dict[str, Any], ipywidgets.HTML]:
    """A slider for every field, by name, and a note on the values that were cut to the sliders' limits."""
    values, sliders, cut = _values(parameters), {}, []
    for field in FIELDS:
        low, high, value = field["min"], field["max"], values[field["name"]]
        inside = min(max(value, low), high)
        description = f"{field['label']} ({field['unit']})"
        if inside != value:
            cut.append(f"{field['label']} limited to {inside:g}: the slider goes from {low:g} to {high:g}")
        if field.get("log"):
            slider = ipywidgets.FloatLogSlider(
                inside,
                min=math.log10(low),
                max=math.log10(high),
                step=0.001,  # a front end rounds to it, and 12 must stay 12
                description=description,
                readout_format=".3g",
                **_STYLE,
            )
        else:
            kind = ipywidgets.IntSlider if field["name"] == "points" else ipywidgets.FloatSlider
            slider = kind(inside, min=low, max=high, step=field["step"], description=description, **_STYLE)
        sliders[field["name"]] = slider
    return sliders, ipywidgets.HTML("<br>".join(cut))


def _parameters(sliders: dict[str, Any]) -> SpinWaveParameters:
    return SpinWaveParameters(**{name: slider.value for name, slider in sliders.items()})


def _neuron_figure(parameters: SpinWaveParameters, x: Tensor, w: Tensor) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    wave, response, weights = figure.subplots(1, 3)
    largest = LARGEST_COUPLING / parameters.mode_coupling(len(w))
    if w.abs().max() > largest:
        figure.suptitle(f"couplings limited to {LARGEST_COUPLING:g}, the end of the validated range", color="C3")
    w = w.clamp(-largest, largest)

    z, q = grid(parameters.points)
    B = torch.zeros(len(z), dtype=torch.complex128)
    for x_i, a in zip(x, w * parameters.mode_coupling(len(w)), strict=True):
        B = B + x_i * read_in(a, z, q, parameters) - partial_readout(a, z, q, parameters).to(B.dtype) @ B
    wave.plot(z, B.real, "o-", ms=2, label="real part")
    wave.plot(z, B.imag, "s--", ms=2, label="imaginary part")
    wave.set(xlabel="position z", ylabel="spin wave B")

    values = torch.linspace(-3, 3, 61, dtype=torch.float64)
    varied = w.expand(len(values), -1).clone()
    varied[:, 0] = values.clamp(-largest, largest)  # the weight of the first mode
    modes = range(1, len(w) + 1)
    for name, model, style in zip(("closed form", "grid"), MODELS, ("C0o-", "C1s--"), strict=True):
        response.plot(values, effective_weights(varied, parameters, model) @ x, style, ms=2, label=name)
        weights.plot(modes, effective_weights(w, parameters, model), style, ms=3, label=name)
    response.set(xlabel="weight of the first mode", ylabel="output f")
    weights.set(xlabel="mode", ylabel="effective weight H")
    for axes in (wave, response, weights):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure


# ---- in a book


def setup(app: Any) -> dict[str, bool]:
    """As a Sphinx extension, put the explorers' modules into the site."""
    app.connect("builder-inited", lambda app: app.config.html_static_path.append(str(STATIC)))
    app.connect("html-page-context", _drop_widget_state, priority=900)  # after MyST-NB has added it
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _drop_widget_state(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Leave out the widgets' state for ipywidgets' own manager, which repeats all code and data of the explorers."""
    context["script_files"] = [
        script
        for script in context["script_files"]
        if getattr(script, "attributes", {}).get("type") != "application/vnd.jupyter.widget-state+json"
    ]


# ---- checks and conversions


def _values(parameters: SpinWaveParameters | None) -> dict[str, Any]:
    """The fields by name, with infinity, which JSON cannot say, as a large number."""
    values = asdict(SpinWaveParameters() if parameters is None else parameters)
    return {name: min(value, 1e300) if isinstance(value, float) else value for name, value in values.items()}


def _amplitudes(x: Any, w: Any) -> tuple[Tensor, Tensor]:
    """Probe and control amplitudes in float64, thirty random ones where none are given."""
    given = {name: value for name, value in (("x", x), ("w", w)) if value is not None}
    for name, value in given.items():
        try:
            if torch.as_tensor(value).is_complex():
                raise TypeError
            given[name] = torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ValueError(f"{name} must be a sequence of real numbers, got {value!r}") from None
    generator = torch.Generator().manual_seed(5)
    length = next((value.numel() for value in given.values()), 30)
    random = torch.rand(length, generator=generator, dtype=torch.float64).round(decimals=2)
    normal = torch.randn(length, generator=generator, dtype=torch.float64).clamp(-2, 2).round(decimals=2)
    probe, control = given.get("x", random), given.get("w", normal)
    if probe.dim() != 1 or probe.shape != control.shape or len(probe) == 0:
        raise ValueError(
            f"x and w must have the same shape (modes,), got {tuple(probe.shape)} and {tuple(control.shape)}"
        )
    if not (probe.isfinite().all() and control.isfinite().all()):
        raise ValueError("x and w must be finite, got NaN or infinity")
    if control.abs().max() > LARGEST_WEIGHT:
        raise ValueError(f"w must be from -{LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, got {control.tolist()}")
    return probe, control


def _three_bytes(weight: Tensor) -> bytes:
    parts = weight.detach().float().cpu().contiguous().numpy().astype("<f4").view("u1").reshape(-1, 4)
    return parts[:, 1:].tobytes()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
