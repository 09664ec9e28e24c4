"""Ensembles: many networks of one shape trained side by side, as one more dimension of every tensor.

The step of a small network spends most of its time on starting operators. E networks with stacked weights
``(E, out, in)`` start them once: their effective weights come from one call, their products are one batched product
(``torch.bmm``), and the gradient of the summed losses is every network's own, for no network enters another's loss.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from .effective import Unresolved, compute
from .layers import SpinWaveMLP
from .parameters import SpinWaveParameters
from .training import (
    Diverged,
    Recorded,
    _check_labels,
    _metrics,
    check_graph,
    check_split,
    choose_device,
    environment,
    evaluate,
    one_cycle,
    recipe,
    set_rate,
    shuffled,
)


def fit_ensemble(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    seeds: Sequence[int],
    coupling_totals: Sequence[float] | None = None,
    learning_rates: Sequence[float] | float = 0.2,
    sizes: Sequence[int] = (100, 100, 10),
    parameters: SpinWaveParameters | None = None,
    model: str = "continuum",
    epochs: int = 10,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    graph: bool = False,
    progress: bool = True,
) -> tuple[list[SpinWaveMLP], list[dict[str, Any]]]:
    """Train E networks at once, each as :func:`spinwave.fit` would train it alone, to rounding.

    Network e starts from ``torch.manual_seed(seeds[e])``, sees the images in the order of that seed, has its own
    detector gains and its own learning rate. Only ``w C_total / n`` enters the physics, so that networks of different
    couplings share the call too.

    Arguments:
        train: images ``(N, features)`` and labels ``(N,)`` int64.
        test: the same, evaluated after every epoch. Nothing is chosen by it.
        seeds: E integers from 0 to 2^31 - 1, of initial weights and shuffling; they may repeat.
        coupling_totals: E total couplings; by default that of ``parameters`` for all.
        learning_rates: peaks of the one-cycle schedule, E numbers or one for all.
        sizes: features of input, hidden layers and output.
        parameters: the physics; the question's by default.
        model: ``"continuum"`` or ``"discretized"``.
        epochs: passes over the training images, an integer >= 1.
        batch_size: images a step of every network, an integer >= 1.
        device: where to train; by default a GPU if there is one.
        graph: record the step as a CUDA graph and replay it, on an NVIDIA GPU.
        progress: show a progress bar.

    Returns:
        The E trained networks, on the device, and as many metrics, like those of :func:`spinwave.fit`; ``seconds``
        is the time of the whole ensemble.

    Raises:
        ValueError: arguments outside their range, sequences of different lengths, tensors that do not fit.
        Diverged: a loss became NaN or infinite, or weights grew past what the layers can compute.
    """
    seeds = list(seeds)
    count = len(seeds)
    rates = list(learning_rates) if isinstance(learning_rates, Iterable) else [learning_rates] * count
    physics = SpinWaveParameters() if parameters is None else parameters
    couplings = [physics.coupling_total] * count if coupling_totals is None else list(coupling_totals)
    if not count or len(rates) != count or len(couplings) != count:
        raise ValueError(
            "seeds, coupling_totals and learning_rates must have the same length of at least 1, "
            f"got {count}, {len(couplings)} and {len(rates)}"
        )
    for e in range(count):
        epochs, batch_size, rates[e], seeds[e] = recipe(epochs, batch_size, rates[e], seeds[e])
    check_split(train, test)
    device = choose_device(device)
    check_graph(graph, device)
    images, labels = (tensor.to(device) for tensor in train)
    test = (test[0].to(device), test[1].to(device))
    if not (images.isfinite().all() and test[0].isfinite().all()):
        raise Diverged("the images hold NaN or infinity, and so would the loss")

    networks = []
    for seed, coupling in zip(seeds, couplings, strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = SpinWaveMLP(sizes, replace(physics, coupling_total=coupling), model, dtype=images.dtype)
        network.to(device).calibrate(images[:4096])
        networks.append(network)
    for name, given in (("train", labels), ("test", test[1])):
        _check_labels(name, given, networks[0].sizes[-1])

    stacked, buffers = torch.func.stack_module_state(networks)
    weights = [weight.requires_grad_() for weight in stacked.values()]  # (E, out, in) each
    gains = [gain[:, None, None] for gain in buffers.values()]  # (E, 1, 1)
    ratios = None
    if set(couplings) != {physics.coupling_total}:
        ratios = torch.tensor(couplings, dtype=images.dtype, device=device)[:, None, None] / physics.coupling_total

    def forward(x: Tensor) -> Tensor:  # (E, batch, features) to (E, batch, classes)
        for number, (weight, gain) in enumerate(zip(weights, gains, strict=True)):
            scaled = weight if ratios is None else ratios * weight
            h = gain * compute(scaled, physics, model, look=device.type == "cpu")
            x = torch.bmm(F.relu(x) if number else x, h.mT)
        return x

    optimizer = _adam(weights, rates)
    total = torch.zeros(count, device=device)  # the summed losses of an epoch

    def step(x: Tensor, y: Tensor, batch: int) -> None:
        losses = _losses(forward(x), y)
        optimizer.zero_grad(set_to_none=False)
        losses.sum().backward()
        optimizer.step()
        total.add_(losses.detach(), alpha=batch)

    take = Recorded(step, optimizer, device) if graph else step
    history: list[list[dict[str, float]]] = [[] for _ in seeds]
    steps = -(-len(images) // batch_size)
    surroundings = environment(device)
    with tqdm(total=epochs * steps, unit="step", disable=not progress) as bar:
        for epoch in range(epochs):
            begin = time.perf_counter()
            orders = torch.stack([shuffled(len(images), seed, epoch) for seed in seeds]).to(device)  # (E, N)
            total.zero_()
            try:
                for number, index in enumerate(orders.split(batch_size, 1)):
                    cycle = one_cycle((epoch * steps + number) / (epochs * steps))
                    for group in optimizer.param_groups:
                        set_rate(group, group["peak"] * cycle)
                    take(images[index], labels[index], index.shape[1])
                    bar.update()
                with torch.no_grad():
                    parts = [forward(part.expand(count, -1, -1)) for part in test[0].split(2048)]
            except Unresolved as error:
                reach = torch.stack([w.detach().flatten(1).abs().amax(1) for w in weights]).amax(0)  # (E,)
                worst = seeds[int(reach.nan_to_num(math.inf).argmax())]
                raise Diverged(
                    f"training diverged in epoch {epoch + 1}: {error}; the weights of seed {worst} are the largest, "
                    "try a smaller learning rate"
                ) from None
            logits = torch.cat(parts, 1)  # (E, N, classes)
            test_losses = _losses(logits, test[1].expand(count, -1))
            finite = (total + test_losses).isfinite().tolist()
            if not all(finite):
                bad = ", ".join(str(seed) for seed, fine in zip(seeds, finite, strict=True) if not fine)
                raise Diverged(f"training diverged in epoch {epoch + 1}: the loss of seed {bad} is not finite")
            right = (logits.argmax(2) == test[1]).float().mean(1)  # (E,)
            seconds = time.perf_counter() - begin
            for e, entries in enumerate(history):
                entries.append(
                    {
                        "epoch": epoch + 1,
                        "train_loss": total[e].item() / len(images),
                        "test_loss": test_losses[e].item(),
                        "test_accuracy": right[e].item(),
                        "seconds": seconds,
                    }
                )
            bar.set_postfix_str(f"test accuracy {right.mean():.2%} on average")

    settings = {"epochs": epochs, "batch_size": batch_size, "train_images": len(images), "model": model}
    metrics = []
    for e, network in enumerate(networks):
        network.load_state_dict({name: tensor[e] for name, tensor in (stacked | buffers).items()})
        mine = settings | {"sizes": network.sizes, "seed": seeds[e], "learning_rate": rates[e]}
        metrics.append(_metrics(network, mine, history[e], evaluate(network, *test), surroundings))
    return networks, metrics


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of every network: ``(E, batch, classes)`` and ``(E, batch)`` to ``(E,)``."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(1)


def _adam(weights: list[Tensor], rates: list[float]) -> torch.optim.Adam:
    """Adam on the stacked weights, whose groups have the peak of their learning rate as ``peak``.

    Networks with different rates are groups of views: the optimiser writes through them into the stacked tensors.
    """
    if len(set(rates)) == 1:
        return torch.optim.Adam([{"params": weights, "peak": rates[0]}], fused=True)
    groups: list[dict[str, Any]] = []
    gradients = [torch.zeros_like(weight) for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    for e, rate in enumerate(rates):
        views = [weight.detach()[e].requires_grad_() for weight in weights]
        for view, gradient in zip(views, gradients, strict=True):
            view.grad = gradient[e]
        groups.append({"params": views, "peak": rate})
    return torch.optim.Adam(groups, fused=True)
