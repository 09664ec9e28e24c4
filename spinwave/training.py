"""Training: one loop, one recipe, checkpoints that survive whatever happens next."""

import datetime
import json
import math
import os
import platform
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import SpinWaveMLP
from .parameters import SpinWaveParameters

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.json"


class Diverged(ArithmeticError):
    """The training loss is no longer a number."""


def fit(
    model: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 0.2,
    seed: int = 0,
    device: str | torch.device | None = None,
    compile: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    notes: dict[str, Any] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a classifier with cross entropy, Adam and a one-cycle learning rate.

    The data stay on the device as two tensors; a batch is an index. Detector gains of a :class:`SpinWaveMLP` are set
    once, on the first 4096 training images. On the CPU the same seed, model and data give the same weights, bit for
    bit, also when training was stopped after any epoch and resumed.

    Arguments:
        model: the network, trained in place; ``(batch, features)`` to logits ``(batch, classes)``.
        train: images ``(N, features)`` and labels ``(N,)`` int64.
        test: the same, evaluated after every epoch. Nothing is chosen by it.
        epochs: passes over the training images, an integer >= 1.
        batch_size: images a step, an integer >= 1; the last batch of an epoch may be smaller.
        learning_rate: peak of the one-cycle schedule, > 0. Control amplitudes start as N(0, 1), so 0.2 is a fifth of
            a weight's size; a plain ``nn.Linear(100, ...)`` starts 17 times smaller and wants a smaller rate.
        seed: of the shuffling.
        device: where to train; by default a GPU if there is one.
        compile: pass the model through :func:`torch.compile`.
        out: folder for a checkpoint and ``metrics.json`` after every epoch; the model must be a :class:`SpinWaveMLP`.
        resume: continue the run in ``out``.
        notes: what else to write into the run, for instance the data set.
        progress: show a progress bar.

    Returns:
        The metrics, as in ``metrics.json``: ``test_accuracy`` (a fraction), ``test_loss``, ``epochs`` (finished),
        ``seconds``, ``parameters`` (the physics), ``settings``, ``environment``, ``history`` (one entry an epoch) and
        ``confusion`` (true class by predicted class).

    Raises:
        ValueError: arguments outside their range, tensors that do not fit, a folder that holds another run.
        Diverged: the loss became NaN or infinite; the checkpoint of the last good epoch is kept.
        OSError: ``out`` cannot be written.
    """
    for name, number in (("epochs", epochs), ("batch_size", batch_size)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {number!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise ValueError(f"seed must be an integer from 0 to 2^31 - 1, got {seed!r}")
    if not (isinstance(learning_rate, int | float) and 0 < learning_rate < math.inf):
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    check_data("train", *train)
    check_data("test", *test)
    device = choose_device(device)
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "train_images": len(train[0]),
        **(notes or {}),
    }
    if isinstance(model, SpinWaveMLP):
        settings |= {"sizes": list(model.sizes), "model": model[0].model}

    model.to(device)
    images, labels = (tensor.to(device) for tensor in train)
    test = (test[0].to(device), test[1].to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    history: list[dict[str, float]] = []
    folder = None
    if out is not None:
        if not isinstance(model, SpinWaveMLP):
            raise ValueError(f"a run with out must train a SpinWaveMLP, got {type(model).__name__}")
        folder = open_folder(out, resume)
    if resume:
        if folder is None:
            raise ValueError("resume needs out, the folder of the run")
        history = _restore(folder, model, optimizer, settings)
    elif isinstance(model, SpinWaveMLP):
        model.calibrate(images[:4096])

    from tqdm import tqdm

    network = torch.compile(model) if compile else model
    steps = math.ceil(len(images) / batch_size)
    surroundings = environment(device)
    score = None
    with tqdm(
        total=epochs * steps, initial=len(history) * steps, unit="step", disable=not progress
    ) as bar:
        for epoch in range(len(history), epochs):
            begin = time.perf_counter()
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
            total = torch.zeros((), device=device)
            for step, index in enumerate(order.to(device).split(batch_size)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * one_cycle((epoch * steps + step) / (epochs * steps))
                loss = F.cross_entropy(network(images[index]), labels[index])
                # Reading the loss stalls a GPU, so there a NaN is found at the end of the epoch.
                if device.type == "cpu":
                    _check_loss(loss.item(), epoch, folder)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(index)
                bar.update()
            _check_loss(total.item(), epoch, folder)
            score = evaluate(model, *test)
            _check_loss(score["loss"], epoch, folder)
            history.append(
                {
                    "epoch": epoch + 1,
                    "train_loss": total.item() / len(images),
                    "test_loss": score["loss"],
                    "test_accuracy": score["accuracy"],
                    "seconds": time.perf_counter() - begin,
                }
            )
            bar.set_postfix_str(f"test accuracy {score['accuracy']:.2%}")
            if folder is not None:
                save_checkpoint(folder, model, optimizer, settings, history)
                metrics = _metrics(model, settings, history, score, surroundings)
                _write(folder / METRICS, json.dumps(metrics, indent=1).encode())
    return _metrics(model, settings, history, score or evaluate(model, *test), surroundings)


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 4096) -> dict[str, Any]:
    """Loss, accuracy and confusion matrix of a classifier.

    Arguments:
        model: ``(batch, features)`` to logits ``(batch, classes)``.
        images: ``(N, features)``, on the device of the model.
        labels: ``(N,)`` int64.
        batch_size: images at a time.

    Returns:
        ``loss`` (mean cross entropy), ``accuracy`` (a fraction) and ``confusion``, an int64 tensor
        ``(classes, classes)`` that counts images by true class (rows) and predicted class (columns).

    Raises:
        ValueError: tensors that do not fit together.
    """
    check_data("evaluation", images, labels)
    logits = torch.cat([model(batch) for batch in images.split(batch_size)])  # (N, classes)
    classes = logits.shape[1]
    if int(labels.max()) >= classes:
        raise ValueError(f"labels must be below the {classes} outputs of the model, got {int(labels.max())}")
    confusion = torch.bincount(labels * classes + logits.argmax(1), minlength=classes**2).view(classes, classes)
    return {
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": confusion.trace().item() / len(images),
        "confusion": confusion.cpu(),
    }


def one_cycle(progress: float) -> float:
    """Learning rate as a fraction of its peak: up from 1/25 over the first 30 %, then down to zero, on cosines.

    Source: Smith, Topin, arXiv:1708.07120; the cosines as in ``torch.optim.lr_scheduler.OneCycleLR``.
    """
    if progress < 0.3:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * progress / 0.3)) / 2
    return (1 + math.cos(math.pi * (progress - 0.3) / 0.7)) / 2


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The device of that name, or the best one there is.

    Raises:
        ValueError: no such device on this machine.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one of {', '.join(here)} here, got {device!r} ({reason})") from None
    return chosen


def check_data(name: str, images: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless images are ``(N, features)`` floating point and labels ``(N,)`` int64, N >= 1."""
    if images.dim() != 2 or not images.is_floating_point() or len(images) == 0:
        raise ValueError(
            f"{name} images must be floating point of shape (N, features) with N >= 1, "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"{name} labels must be int64 of shape ({len(images)},), got {labels.dtype} of shape {tuple(labels.shape)}"
        )


# ---- runs on disk


def open_folder(out: str | os.PathLike[str], resume: bool) -> Path:
    """Make or enter the folder of a run, without touching one that is there.

    Raises:
        ValueError: a run is there and ``resume`` was not asked for, or the other way round; not a folder; not writable.
    """
    folder = Path(out)
    there = (folder / CHECKPOINT).exists()
    if resume and not there:
        raise ValueError(f"resume expects a checkpoint at {folder / CHECKPOINT}, there is none")
    if there and not resume:
        raise ValueError(f"{folder} already holds a run: resume it, or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"the output folder {folder} cannot be written: {error.strerror}") from None
    return folder


def save_checkpoint(
    folder: Path, model: SpinWaveMLP, optimizer: torch.optim.Optimizer, settings: dict[str, Any], history: list
) -> None:
    """Write weights, gains, optimiser state, settings and history to one file, whole or not at all."""
    from safetensors.torch import save

    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = {"settings": settings, "parameters": asdict(model[0].physics), "history": history}
    _write(folder / CHECKPOINT, save(tensors, {"spinwave": json.dumps(described)}))


def load_checkpoint(run: str | os.PathLike[str]) -> tuple[SpinWaveMLP, dict[str, Any], dict[str, Tensor]]:
    """Read a run's checkpoint. Nothing in the file is executed: it is a safetensors file with a JSON header.

    Arguments:
        run: the folder of a run, or the checkpoint itself.

    Returns:
        The network on the CPU; a dict of ``settings``, ``parameters`` and ``history``; the optimiser's tensors by name.

    Raises:
        ValueError: there is no checkpoint, it is truncated, or it is not one of this program.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    file = Path(run)
    if file.is_dir():
        file = file / CHECKPOINT
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"expected a checkpoint at {file}: {error.strerror}") from None
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        described = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["spinwave"])
        settings, history = described["settings"], described["history"]
        model = SpinWaveMLP(settings["sizes"], SpinWaveParameters(**described["parameters"]), settings["model"])
        model.load_state_dict(
            {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
        )
        if len(history) != history[-1]["epoch"]:
            raise ValueError("the history has gaps")
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"{file} ({len(content)} bytes) is not a whole checkpoint of a spin-wave network: "
            f"{type(error).__name__}{': ' + reason[0] if reason else ''}"
        ) from None
    return model, described, {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}


def _restore(
    folder: Path, model: SpinWaveMLP, optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> list[dict[str, float]]:
    """Load the run in ``folder`` into model and optimiser and return its history."""
    saved, described, tensors = load_checkpoint(folder)
    wanted = {**settings, "parameters": asdict(model[0].physics)}
    found = {**described["settings"], "parameters": described["parameters"]}
    differing = [key for key in wanted | found if wanted.get(key) != found.get(key)]
    if differing:
        raise ValueError(
            f"the run in {folder} cannot be resumed with other settings: "
            + "; ".join(f"{key} expected {found.get(key)}, got {wanted.get(key)}" for key in differing)
        )
    model.load_state_dict(saved.state_dict())
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        _, index, key = name.split(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return described["history"]


def _write(file: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename: a reader or a crash sees the old file or the new one."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


# ---- what a run says of itself


def environment(device: torch.device) -> dict[str, Any]:
    """Machine, versions and date, as results files record them."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
    }


def cpu_name() -> str:
    """Model name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _revision() -> str | None:
    """Git revision of the package's checkout, if it is one."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout.strip() or None


def _metrics(
    model: nn.Module, settings: dict[str, Any], history: list, score: dict[str, Any], surroundings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "test_accuracy": score["accuracy"],
        "test_loss": score["loss"],
        "epochs": len(history),
        "seconds": sum(entry["seconds"] for entry in history),
        "parameters": asdict(model[0].physics) if isinstance(model, SpinWaveMLP) else None,
        "settings": settings,
        "environment": surroundings,
        "history": history,
        "confusion": score["confusion"].tolist(),
    }


def _check_loss(loss: float, epoch: int, folder: Path | None) -> None:
    if not math.isfinite(loss):
        kept = "nothing was saved yet" if epoch == 0 else f"epoch {epoch} is kept in {folder}"
        raise Diverged(
            f"the loss became {loss} in epoch {epoch + 1}; try a smaller learning rate"
            + ("" if folder is None else f" ({kept})")
        )
