"""Training: one loop, one recipe, checkpoints that survive whatever happens next."""

import contextlib
import datetime
import hashlib
import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows has none; there nothing keeps two trainings out of one folder
    fcntl = None  # type: ignore[assignment]

from .data import distort
from .effective import Unresolved
from .layers import SpinWaveLinear, SpinWaveMLP
from .parameters import MOST_SEED, SpinWaveParameters, real, whole

History = list[dict[str, float]]  # one entry an epoch

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.json"
LOCK = ".lock"

RECORDED = ("cuda",)  # devices whose launches can be recorded and replayed


class Diverged(ArithmeticError):
    """The training loss is, or is bound to become, NaN or infinite."""


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
    augment: bool = False,
    compile: bool = False,
    graph: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    notes: dict[str, Any] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a classifier with cross entropy, Adam and a one-cycle learning rate.

    The data stay on the device as two tensors; a batch is an index. Detector gains of a :class:`SpinWaveMLP` are set
    once, on the first 4096 training images. On the CPU, with the same number of threads, the same seed, model and data
    give the same weights, bit for bit, also when training was stopped after any epoch and resumed.

    Where a :mod:`torch.distributed` process group was set up, its processes train one network together: all call
    ``fit`` alike, each on its own ``device``, and each takes its share of every batch. The result is that of one
    process but for rounding, which grows as training goes on, also when the number of processes changes between stop
    and resume. Only rank 0 writes into ``out``, which the others must be able to read to resume; an error below is
    raised in every process. One that waits for a process that has died gets PyTorch's RuntimeError.

    Arguments:
        model: the network, put into training mode and trained in place; ``(batch, features)`` to logits
            ``(batch, classes)``.
        train: images ``(N, features)`` and labels ``(N,)`` int64.
        test: the same, evaluated after every epoch. Nothing is chosen by it.
        epochs: passes over the training images, an integer >= 1.
        batch_size: images a step, all processes together, an integer >= 1 and at least one for each process; the last
            batch of an epoch may be smaller.
        learning_rate: peak of the one-cycle schedule, > 0. Control amplitudes start as N(0, 1), so 0.2 is a fifth of
            a weight's size; a plain ``nn.Linear(100, ...)`` starts 17 times smaller and wants a smaller rate.
        seed: of the shuffling.
        device: where to train; by default a GPU if there is one.
        augment: train on digits that are turned, scaled, slanted and shifted a little, anew in every epoch; the images
            must be square.
        compile: pass the model through :func:`torch.compile`. On a CPU a small network is slower with it: there is
            nothing left to fuse, and each call of compiled code costs.
        graph: record the step as a CUDA graph and replay it, on one NVIDIA GPU: a small network's step is dozens of
            launches, which take longer than their work. Nothing that the model does may depend on a value,
            its hooks are called while a step is recorded and not when it is replayed, and no loss that was worked out
            with it before may still be there.
        out: folder for a checkpoint and ``metrics.json`` after every epoch; the model must be a :class:`SpinWaveMLP`.
            One training at a time may use it (Windows does not check).
        resume: continue the run in ``out``, with the settings and the data it was started with.
        notes: what else to write into the run and to compare when it is resumed, for instance the data set: a dict
            that JSON can hold. An argument of the same name takes precedence.
        progress: show a progress bar.

    Returns:
        The metrics that ``metrics.json`` holds, a dict of ``test_accuracy`` (a fraction), ``test_loss``, ``epochs``
        (finished), ``seconds``, ``parameters`` (the physics), ``settings``, ``environment``, ``history`` (one entry an
        epoch) and ``confusion`` (true class by predicted class).

    Raises:
        ValueError: arguments outside their range, tensors that do not fit, a folder that cannot be made, holds another
            run or is in use; a step that cannot be recorded.
        Diverged: images are not finite, the loss became NaN or infinite, or the weights grew past what the layers
            can compute. The checkpoint of the last good epoch is kept; ``model`` has the weights at which training
            stopped.
        OSError: a checkpoint could not be written; the one before it is kept.
    """
    epochs, batch_size, learning_rate, seed = recipe(epochs, batch_size, learning_rate, seed)
    rank, processes = rank_and_processes()
    if batch_size < processes:
        raise ValueError(f"batch_size must be at least the number of processes, {processes}, got {batch_size}")
    if out is not None and not isinstance(model, SpinWaveMLP):
        raise ValueError(f"a run with out must train a SpinWaveMLP, got {type(model).__name__}")
    if isinstance(model, SpinWaveMLP) and out is not None and not _is_as_built(model):
        raise ValueError(
            "a run with out must train a SpinWaveMLP as it was built: a checkpoint does not hold layers that were "
            f"changed, tied or replaced, got {model}"
        )
    if resume and out is None:
        raise ValueError("resume needs out, the folder of the run")
    check_split(train, test)
    if augment:
        distort(train[0][:1], torch.Generator())  # refuses images that are not square, before the first step
        if train[0].amin() < 0:
            raise ValueError(f"augment expects grey values from 0, the background, got {train[0].amin():g}")
    device = choose_device(device)
    check_graph(graph, device, processes)
    settings: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "augment": bool(augment),
        "train_images": len(train[0]),
    }
    if isinstance(model, SpinWaveMLP):
        settings |= {"sizes": model.sizes, "model": model.model}
    try:
        # as a resumed run will read them
        settings = json.loads(json.dumps({**(notes or {}), **settings}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"notes must be a dict that JSON can hold, got {notes!r} ({error})") from None

    model.to(device).train()
    images, labels = (tensor.to(device) for tensor in train)
    test = (test[0].to(device), test[1].to(device))
    if not (images.isfinite().all() and test[0].isfinite().all()):
        raise Diverged("the images hold NaN or infinity, and so would the loss")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    history: History = []
    steps = math.ceil(len(images) / batch_size)
    surroundings = environment(device) | {"processes": processes}

    with contextlib.ExitStack() as stack:
        folder = None
        with _together():
            if out is not None and rank == 0:
                folder = stack.enter_context(open_folder(out, resume))
            if out is not None and resume:
                assert isinstance(model, SpinWaveMLP)  # checked above
                history = _restore(Path(out), model, optimizer, settings)
            elif isinstance(model, SpinWaveMLP):
                model.calibrate(images[:4096])
            # Model and data that do not fit together show here, before the first step.
            score = evaluate(model, *test)
            _check_labels("train", labels, len(score["confusion"]))

        network = torch.compile(model) if compile else model
        if processes > 1:
            network = DistributedDataParallel(network)
        total = torch.zeros((), device=device)  # the summed losses of an epoch

        def step(x: Tensor, y: Tensor, batch: int) -> None:
            loss = F.cross_entropy(network(x), y, reduction="sum")
            # Reading the loss stalls a GPU, and a process that stopped alone would stall the others. There a NaN is
            # found at the end of the epoch.
            if device.type == "cpu" and processes == 1:
                _check_loss(loss.item())
            optimizer.zero_grad()
            # The gradient of the batch's mean: the processes average theirs, and shares may be uneven.
            loss.backward(torch.full_like(loss, processes / batch))
            optimizer.step()
            total.add_(loss.detach())

        take = Recorded(step, optimizer, device) if graph else step
        hidden = not progress or rank > 0
        with tqdm(total=epochs * steps, initial=len(history) * steps, unit="step", disable=hidden) as bar:
            for epoch in range(len(history), epochs):
                begin = time.perf_counter()
                order = shuffled(len(images), seed, epoch)
                chance = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
                total.zero_()
                try:
                    for number, index in enumerate(order.to(device).split(batch_size)):
                        cycle = one_cycle((epoch * steps + number) / (epochs * steps))
                        set_rate(optimizer.param_groups[0], learning_rate * cycle)
                        share = index[rank::processes]
                        # Every process draws for the whole batch, so that the digits do not depend on their number.
                        x = distort(images[index], chance)[rank::processes] if augment else images[share]
                        take(x, labels[share], len(index))
                        bar.update()
                    if processes > 1:
                        dist.all_reduce(total)
                    _check_loss(total.item())
                    score = evaluate(model, *test)
                    model.train()  # replays tell no layer that the matrix it kept for evaluation is out of date
                    _check_loss(score["loss"])
                except (FloatingPointError, Unresolved) as error:
                    kept = f"epoch {epoch} is kept in {out}" if epoch else "nothing was saved yet"
                    raise Diverged(
                        f"training diverged in epoch {epoch + 1}: {error}; try a smaller learning rate"
                        + ("" if out is None else f" ({kept})")
                    ) from error
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
                with _together():
                    if folder is not None:
                        assert isinstance(model, SpinWaveMLP)  # checked above
                        # In this order: stopped in between, a resumed run repeats the epoch and writes both again.
                        metrics = _metrics(model, settings, history, score, surroundings)
                        _write(folder / METRICS, json.dumps(metrics, indent=1).encode())
                        save_checkpoint(folder, model, optimizer, settings, history)
    return _metrics(model, settings, history, score, surroundings)


class Recorded:
    """A training step that one launch repeats, recorded as a CUDA graph.

    The first batch of a size runs as it is, so that libraries, tables and the optimiser make outside the graph what
    they keep; the second is recorded. What the step reads and writes stays where it was then, and numbers stay what
    they were: learning rates become tensors, see :func:`set_rate`.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, int], None],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self.step = step
        for group in optimizer.param_groups:
            rate = torch.full((), group["lr"], dtype=torch.float32, device=device)
            group |= {"lr": rate, "capturable": True}
        self.stream = torch.cuda.Stream(device)  # autograd works where it worked before: not on the main one
        self.known: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None] = {}

    def __call__(self, x: Tensor, y: Tensor, batch: int) -> None:
        if batch not in self.known:
            here = torch.cuda.current_stream(x.device)
            self.stream.wait_stream(here)
            with torch.cuda.stream(self.stream), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This instance was constructed with capturable")
                self.step(x, y, batch)
            here.wait_stream(self.stream)
            self.known[batch] = None
            return
        recorded = self.known[batch]
        if recorded is None:
            recorded = torch.cuda.CUDAGraph(), x.clone(), y.clone()
            try:
                # When a recording fails, torch.cuda.graph leaves its stream the current one.
                with torch.cuda.stream(self.stream), torch.cuda.graph(recorded[0], stream=self.stream):
                    self.step(*recorded[1:], batch)
            except RuntimeError as error:
                # The end of a recording that failed is an error of its own.
                cause = error.__context__ if isinstance(error.__context__, Exception) else error
                raise ValueError(f"graph cannot record a step of this model: {_reason(cause)}") from error
            self.known[batch] = recorded
        replayed, x_there, y_there = recorded
        x_there.copy_(x)
        y_there.copy_(y)
        replayed.replay()


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 4096) -> dict[str, Any]:
    """Loss, accuracy and confusion matrix of a classifier.

    Arguments:
        model: ``(batch, features)`` to logits ``(batch, classes)``; put into evaluation mode (without dropout, say)
            for the time being.
        images: ``(N, features)``, on the device of the model.
        labels: ``(N,)`` int64.
        batch_size: images at a time, an integer >= 1.

    Returns:
        ``loss`` (mean cross entropy), ``accuracy`` (a fraction) and ``confusion``, an int64 tensor
        ``(classes, classes)`` that counts images by true class (rows) and predicted class (columns).

    Raises:
        ValueError: tensors that do not fit together.
    """
    check_data("evaluation", images, labels)
    batch_size = whole("batch_size", batch_size)
    modes = {module: module.training for module in model.modules()}
    if any(modes.values()):
        model.eval()
    try:
        logits = torch.cat([model(batch) for batch in images.split(batch_size)])  # (N, classes)
    finally:
        for module, mode in modes.items():
            module.training = mode
    classes = logits.shape[1]
    _check_labels("evaluation", labels, classes)
    confusion = torch.bincount(labels * classes + logits.argmax(1), minlength=classes**2).view(classes, classes)
    return {
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": confusion.trace().item() / len(images),
        "confusion": confusion.cpu(),
    }


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group of parameters of an optimiser another learning rate."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def check_graph(graph: bool, device: torch.device, processes: int = 1) -> None:
    """Raise a ValueError where a step would have to be recorded and cannot be."""
    if graph and (device.type not in RECORDED or processes > 1):
        raise ValueError(f"graph expects one process on an NVIDIA GPU, got {processes} on {device}")


def shuffled(images: int, seed: int, epoch: int) -> Tensor:
    """Order in which an epoch sees the images, ``(images,)`` int64: the same on every machine."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


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
        torch.zeros(1, device=chosen).item()  # "meta" makes tensors but has no values
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise ValueError(f"device must be one of {', '.join(here)} here, got {device!r} ({_reason(error)})") from None
    return chosen


def recipe(epochs: int, batch_size: int, learning_rate: float, seed: int) -> tuple[int, int, float, int]:
    """These as Python's own numbers; a ValueError unless a training can be asked for with them."""
    epochs, batch_size = whole("epochs", epochs), whole("batch_size", batch_size)
    learning_rate, seed = real("learning_rate", learning_rate), whole("seed", seed, 0, MOST_SEED)
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    return epochs, batch_size, learning_rate, seed


def rank_and_processes() -> tuple[int, int]:
    """Which of the processes that train together this one is, and how many they are: (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Raise in every process what one of them raises in the block: none is left to wait for one that gave up."""
    _, processes = rank_and_processes()
    if processes == 1:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except (OSError, ValueError) as raised:
        error = raised
    errors: list[Exception | None] = [None] * processes
    dist.all_gather_object(errors, error)
    for reason in (error, *errors):
        if reason is not None:
            raise reason


def check_data(name: str, images: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless images are ``(N, features)`` floating point and labels ``(N,)`` int64, N >= 1."""
    if not (isinstance(images, Tensor) and isinstance(labels, Tensor)):
        raise ValueError(
            f"{name} images and labels must be tensors, got {type(images).__name__} and {type(labels).__name__}"
        )
    if images.dim() != 2 or not images.is_floating_point() or len(images) == 0:
        raise ValueError(
            f"{name} images must be floating point of shape (N, features) with N >= 1, "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"{name} labels must be int64 of shape ({len(images)},), got {labels.dtype} of shape {tuple(labels.shape)}"
        )


def check_split(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
    """Raise a ValueError unless both are images and labels, see :func:`check_data`, and the images are of one kind."""
    check_data("train", *train)
    check_data("test", *test)
    if train[0].shape[1] != test[0].shape[1] or train[0].dtype != test[0].dtype:
        raise ValueError(
            f"train and test images must have the same number of features and the same dtype, got shapes "
            f"{tuple(train[0].shape)} and {tuple(test[0].shape)}, {train[0].dtype} and {test[0].dtype}"
        )


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} labels must be from 0 to {classes - 1}, one for each output of the model, got {low} to {high}"
        )


def _check_loss(loss: float) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss became {loss}")


# ---- runs on disk


@contextlib.contextmanager
def open_folder(out: str | os.PathLike[str], resume: bool) -> Iterator[Path]:
    """Make or enter the folder of a run and lock it, without touching a run that is there.

    The system holds the lock and drops it with the process, however that ends; the file itself stays.

    Raises:
        ValueError: a run is there and ``resume`` was not asked for, or the other way round; not a folder; not
            writable; another training is using it.
    """
    folder = Path(out)
    if resume and not (folder / CHECKPOINT).exists():
        raise ValueError(f"resume expects a checkpoint at {folder / CHECKPOINT}, there is none")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise ValueError(f"the output folder {folder} cannot be written: {error.strerror}") from None
    with lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder} is in use by another training: wait, or choose another folder") from None
        if not resume and (folder / CHECKPOINT).exists():
            raise ValueError(f"{folder} already holds a run: resume it, or choose another folder")
        yield folder


def _is_as_built(model: SpinWaveMLP) -> bool:
    """Whether sizes, physics and weights of a network say all that it is."""
    parts = list(model.layers)
    for k, part in enumerate(parts):
        if type(part) is not (nn.ReLU if k % 2 else SpinWaveLinear):
            return False
        if isinstance(part, SpinWaveLinear) and (
            part.bias is not None or (part.physics, part.model) != (model.physics, model.model)
        ):
            return False
    layers = len(model.sizes) - 1
    return type(model) is SpinWaveMLP and len(parts) == 2 * layers - 1 and len(set(model.parameters())) == layers


def save_checkpoint(
    folder: Path, model: SpinWaveMLP, optimizer: torch.optim.Optimizer, settings: dict[str, Any], history: History
) -> None:
    """Write weights, gains, optimiser state, settings and history to one file, whole or not at all."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in state.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = json.dumps({"settings": settings, "parameters": asdict(model.physics), "history": history})
    header = {"spinwave": described, "sha256": _digest(described, tensors)}
    _write(folder / CHECKPOINT, safetensors.save(tensors, header))


def load_checkpoint(run: str | os.PathLike[str]) -> tuple[SpinWaveMLP, dict[str, Any], dict[str, Tensor]]:
    """Read a run's checkpoint. Nothing in the file is executed: it is a safetensors file with a JSON header.

    Arguments:
        run: the folder of a run, or the checkpoint itself.

    Returns:
        The network on the CPU; a dict of ``settings``, ``parameters`` and ``history``; the optimiser's tensors by name.

    Raises:
        ValueError: there is no checkpoint, it is truncated or altered, or it is not one of this program.
    """
    file = Path(run)
    if file.is_dir():
        file = file / CHECKPOINT
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"expected a checkpoint at {file}: {error.strerror}") from None
    try:
        tensors = safetensors.load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        if _digest(header["spinwave"], tensors) != header["sha256"]:
            raise ValueError("the content does not match its checksum")
        described = json.loads(header["spinwave"])
        settings, physics = described["settings"], SpinWaveParameters(**described["parameters"])
        if not isinstance(described["history"], list):
            raise ValueError("the history is not a list")
        with torch.random.fork_rng(devices=[]):  # loading draws no numbers from the caller's generator
            dtype = tensors["model.layers.0.weight"].dtype
            model = SpinWaveMLP(settings["sizes"], physics, settings["model"], dtype=dtype)
        model.load_state_dict(
            {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
        )
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{file} ({len(content)} bytes) is not a whole checkpoint of a spin-wave network: "
            f"{type(error).__name__}: {_reason(error)}"
        ) from None
    return model, described, {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}


def _restore(
    folder: Path, model: SpinWaveMLP, optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> History:
    """Load the run in ``folder`` into model and optimiser and return its history."""
    saved, described, tensors = load_checkpoint(folder)
    wanted = {**settings, "parameters": asdict(model.physics)}
    found = {**described["settings"], "parameters": described["parameters"]}
    differing = [key for key in wanted | found if wanted.get(key) != found.get(key)]
    if differing:
        raise ValueError(
            f"the run in {folder} cannot be resumed with other settings: "
            + "; ".join(f"{key} expected {found.get(key)}, got {wanted.get(key)}" for key in differing)
        )
    dtypes = [network.layers[0].weight.dtype for network in (saved, model)]
    if dtypes[0] != dtypes[1]:
        raise ValueError(f"the run in {folder} cannot be resumed in another dtype: has {dtypes[0]}, got {dtypes[1]}")
    shapes = {
        f"optimizer.{index}.{name}": parameter.shape if name != "step" else torch.Size()
        for index, parameter in enumerate(model.parameters())
        for name in ("step", "exp_avg", "exp_avg_sq")
    }
    if {name: tensor.shape for name, tensor in tensors.items()} != shapes:  # a fused Adam would not look
        raise ValueError(f"the checkpoint in {folder} does not hold the optimiser of this network")
    model.load_state_dict(saved.state_dict())
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        _, index, key = name.split(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    history: History = described["history"]
    return history


def _digest(described: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a checkpoint's content: safetensors checks its layout only, and a flipped bit is a valid weight."""
    digest = hashlib.sha256(described.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write(file: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename: a reader or a crash sees the old file or the new one."""
    beside = file.with_name(f".{file.name}.tmp")  # one name, so that what a killed process left is overwritten
    try:
        with open(beside, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, file)
    except OSError as error:
        raise OSError(f"{file} could not be written, what was there is kept: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _reason(error: Exception) -> str:
    """First line of a library's message; the others are hints for its developers."""
    return str(error).strip().partition("\n")[0]


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
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():  # installed, perhaps inside somebody else's repository
        return None
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout.strip() or None


def _metrics(
    model: nn.Module, settings: dict[str, Any], history: History, score: dict[str, Any], surroundings: dict[str, Any]
) -> dict[str, Any]:
    return {
        "test_accuracy": score["accuracy"],
        "test_loss": score["loss"],
        "epochs": len(history),
        "seconds": sum(entry["seconds"] for entry in history),
        "parameters": asdict(model.physics) if isinstance(model, SpinWaveMLP) else None,
        "settings": settings,
        "environment": surroundings,
        "history": history,
        "confusion": score["confusion"].tolist(),
    }
