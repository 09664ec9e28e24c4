"""Command line: ``python -m spinwave train | evaluate | bench | checkup``."""

import argparse
import contextlib
import datetime
import functools
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from .bench import CONTENDERS, table
from .bench import run as run_bench
from .checkup import TOPICS, check_file
from .data import DATASETS, deskew, load_mnist
from .effective import MODELS
from .layers import SpinWaveMLP
from .parameters import MOST_SEED, SpinWaveParameters, whole
from .report import CheckupReport
from .scaling import run as run_scaling
from .training import (
    CHECKPOINT,
    Diverged,
    _write,
    choose_device,
    evaluate,
    fit,
    load_checkpoint,
    rank_and_processes,
)

# Of `train`. The parser leaves them out, so that a resumed run can tell what was asked for.
DEFAULTS: dict[str, Any] = {
    "epochs": 10,
    "hidden": [100],
    "batch_size": 256,
    "lr": 0.2,
    "seed": 0,
    "model": "continuum",
    "data": "mnist",
    "size": 10,
    "limit": None,
    "augment": False,
    "deskew": False,
    **{field.name: field.default for field in fields(SpinWaveParameters)},
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 diverged or a severe finding, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except Diverged as error:
        _tell(f"spinwave: {error}")
        return 1
    except (ValueError, OSError) as error:
        _tell(f"spinwave: {error}")
        return 2
    except MemoryError:
        _tell("spinwave: not enough memory")
        return 2
    except RuntimeError as error:
        # PyTorch has types of its own for few of them
        reasons = "(?i)out of memory|(allocate|not enough) memory|overflow|No working C\\+\\+ compiler"
        told = [line for line in str(error).splitlines() if re.search(reasons, line)]
        if not told:
            raise
        _tell(f"spinwave: {told[0]}")
        return 2
    except KeyboardInterrupt:
        _tell("\nspinwave: interrupted")
        return 130


def _tell(message: str) -> None:
    if _tells():
        print(message, file=sys.stderr)


@functools.cache
def _tells() -> bool:
    """Whether it is this process that says why the command ends.

    Of those that torchrun started it is the first to ask: it has the reason, and the others fail in its wake.
    """
    if not _under_torchrun():
        return True
    try:
        store, _, _ = next(rendezvous("env://"))
        return int(store.add("reason told", 1)) == 1
    except RuntimeError:  # torchrun has gone
        return True


def _under_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if _tells():
            super().error(message)
        self.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m spinwave", description="Networks of simulated quantum memories, trained on real digits."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser(
        "train",
        help="train a spin-wave network",
        description="Train a spin-wave network and write checkpoint, metrics.json and figures into a folder.",
        argument_default=argparse.SUPPRESS,
    )
    train.set_defaults(run=_train)

    def option(name: str, kind: type, text: str, **more: Any) -> None:
        default = DEFAULTS.get(name.replace("-", "_"))
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        train.add_argument(f"--{name}", type=kind, help=text + ("" if default is None else f" ({shown})"), **more)

    option("epochs", int, "passes over the training images")
    option("hidden", int, "neurons of each hidden layer; none for a single layer", nargs="*", metavar="N")
    option("batch-size", int, "images a step")
    option("lr", float, "peak learning rate")
    option("seed", int, "of initial weights and shuffling")
    option("device", str, "cpu, cuda, cuda:1, ... (a GPU if there is one)")
    option("model", str, f"physics: {' or '.join(MODELS)}")
    option("coupling-total", float, "total control coupling of a neuron")
    option("readout-coupling", float, "coupling of the final read-out pulse")
    option("detuning", float, "detuning in linewidths")
    option("optical-depth", float, "optical depth of the ensemble")
    option("points", int, "grid points of the discretized model")
    option("steepness", float, "steepness of the causal step of the discretized model")
    option("data", str, f"one of {', '.join(DATASETS)}")
    option("size", int, "image height and width in pixels, 2 to 28")
    option("limit", int, "use only the first so many training images")
    option("out", Path, "folder of the run (a new one below runs/)")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument("--deskew", action="store_true", help="set the digits upright first, those of the test as well")
    train.add_argument("--augment", action="store_true", help="turn, scale, slant and shift the digits a little")
    train.add_argument("--compile", action="store_true", help="use torch.compile (small networks on a CPU are slower)")
    train.add_argument("--graph", action="store_true", help="record the step as a CUDA graph (on one NVIDIA GPU)")
    _add_data_source(train)

    evaluate_parser = commands.add_parser(
        "evaluate",
        help="test a trained network",
        description="Load the checkpoint of a run and test it on the run's test images.",
        argument_default=argparse.SUPPRESS,
    )
    evaluate_parser.set_defaults(run=_evaluate)
    evaluate_parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a run")
    evaluate_parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (a GPU if there is one)")
    _add_data_source(evaluate_parser)

    bench_parser = commands.add_parser(
        "bench",
        help="measure the ladder",
        description="Measure time and memory of every rung of the ladder, of nn.Linear and of other ways to speed up "
        "the first rung, and write results (JSON) and a figure (PNG). Finished rows are kept if it is interrupted.",
    )
    bench_parser.set_defaults(run=_bench)
    bench_parser.add_argument(
        "--rungs", nargs="+", metavar="RUNG", help=f"among {', '.join(CONTENDERS)} (all; jax if it is installed)"
    )
    bench_parser.add_argument("--batch", type=int, nargs="+", metavar="N", help="digits a pass (1 16 256)")
    bench_parser.add_argument("--networks", nargs="+", metavar="SIZES", help="layer sizes (100-100-10 784-1000-10)")
    bench_parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (a GPU if there is one)")
    bench_parser.add_argument("--repeat", type=int, metavar="N", help="timings of each pass (5)")
    bench_parser.add_argument(
        "--scaling",
        action="store_true",
        help="measure training steps instead, from a thousand to ten million weights, beside nn.Linear",
    )
    bench_parser.add_argument("--quick", action="store_true", help="rungs and nn.Linear only, in under a minute")
    bench_parser.add_argument("--name", help="name of the results, replaced if there (the device, or quick)")
    bench_parser.add_argument(
        "--out", type=Path, metavar="FOLDER", default=Path("benchmarks", "results"), help="(%(default)s)"
    )

    checkup_parser = commands.add_parser(
        "checkup",
        help="find what is wrong with a neuron of your own",
        description="Call a function f(x, w) on drawn inputs and report its gradients, scale, structure, precision, "
        "cost and portability, with the chapter that cures what is found. Loading the file executes its top level, as "
        "an import does; beyond that only the function is called, in a process of its own. The exit code is 1 if a "
        "severe finding stands.",
    )
    checkup_parser.set_defaults(run=_checkup)
    checkup_parser.add_argument("target", metavar="FILE.py:FUNCTION", help="f(x, w) -> one number, of tensors (modes,)")
    checkup_parser.add_argument("--modes", type=int, default=100, help="entries of x and of w (%(default)s)")
    checkup_parser.add_argument("--seed", type=int, default=0, help="of all draws (%(default)s)")
    checkup_parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (cpu)")
    checkup_parser.add_argument(
        "--network", type=int, nargs="+", default=[100, 100, 10], metavar="N", help="sizes to project (100 100 10)"
    )
    checkup_parser.add_argument("--samples", type=int, default=60_000, help="of an epoch (%(default)s)")
    checkup_parser.add_argument("--topics", nargs="+", default=list(TOPICS), help=f"among {', '.join(TOPICS)} (all)")
    checkup_parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for everything (%(default)s)")
    checkup_parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page as well")
    checkup_parser.add_argument("--json", type=Path, metavar="FILE", help="write it as JSON as well; - for JSON alone")
    return parser


def _add_data_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", help="folder with raw data files (~/.cache/spinwave)")
    parser.add_argument("--download", action="store_true", help="fetch raw data files that are missing")


def _load(split: str, options: argparse.Namespace, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    root, download = getattr(options, "root", None), "download" in options
    images, labels = load_mnist(split, settings["size"], root, settings["data"], download)
    return deskew(images) if settings["deskew"] else images, labels


def _read(run: Path) -> tuple[SpinWaveMLP, dict[str, Any]]:
    """Network and description of a run that ``train`` made."""
    model, described, _ = load_checkpoint(run)
    missing = [name for name in ("data", "size", "limit", "deskew") if name not in described["settings"]]
    if missing:
        raise ValueError(
            f"expected a run of `python -m spinwave train`; {run} was made from Python and does not say its "
            f"{', '.join(missing)}"
        )
    return model, described


def _train(options: argparse.Namespace) -> None:
    out = getattr(options, "out", None) or Path("runs", datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    device = getattr(options, "device", None)
    command = "python -m spinwave"
    try:
        if _under_torchrun():
            command = f"torchrun --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m spinwave"
            with _process_group(device) as device:
                given = [out]
                dist.broadcast_object_list(given)  # the clocks of the processes may differ
                (out,) = given
                _train_into(out, device, options)
        else:
            _train_into(out, choose_device(device), options)
    except (KeyboardInterrupt, ConnectionAbortedError):
        if (out / CHECKPOINT).exists():
            again = ["train", "--resume", "--out", str(out)]
            for name in ("root", "device"):  # the run does not remember these
                if name in options:
                    again += [f"--{name}", getattr(options, name)]
            again += [f"--{name}" for name in ("compile", "graph") if name in options]
            message = f"The last saved epoch is kept. Continue with: {command} {shlex.join(again)}"
        else:
            message = "Nothing was saved yet. Start again with the same command."
        _tell(f"\n{message}")
        raise


@contextlib.contextmanager
def _process_group(device: str | None) -> Iterator[torch.device]:
    """Join the processes that torchrun started; on GPUs, each with its own. Gives the device of this process.

    Raises:
        ValueError: there is no such device, or none of its own for each process.
        ConnectionAbortedError: another process has ended.
    """
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, where each process takes its own GPU, got {device!r}")
    chosen = choose_device(device)
    if chosen.type == "cuda":
        chosen = choose_device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    # When one process fails torchrun ends the others with SIGTERM, which by itself would be the end without a word.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        yield chosen
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this one is ending already
        lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
        if lost or isinstance(error, SystemExit):
            reason = "another process of this training has ended, or torchrun was stopped"
            raise ConnectionAbortedError(reason) from error
        raise
    dist.destroy_process_group()


def _train_into(out: Path, device: torch.device, options: argparse.Namespace) -> None:
    resume = "resume" in options
    given = {name: value for name, value in vars(options).items() if name in DEFAULTS}
    saved = {}
    if resume:
        if "out" not in options:
            raise ValueError("--resume expects --out with the folder of the run")
        _, described = _read(out)
        settings = described["settings"]
        saved = {name: settings[name] for name in DEFAULTS if name in settings}
        saved |= {"lr": settings["learning_rate"], "hidden": settings["sizes"][1:-1], **described["parameters"]}
    chosen = DEFAULTS | saved | given

    parameters = SpinWaveParameters(**{field.name: chosen[field.name] for field in fields(SpinWaveParameters)})
    limit = chosen["limit"]
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}")
    if "download" in options and _under_torchrun():
        if os.environ["LOCAL_RANK"] == "0":  # two downloads would write into one file
            for split in ("train", "test"):
                _load(split, options, chosen)
        dist.barrier()
    images, labels = _load("train", options, chosen)
    test = _load("test", options, chosen)
    torch.manual_seed(whole("seed", chosen["seed"], 0, MOST_SEED))
    model = SpinWaveMLP((images.shape[1], *chosen["hidden"], 10), parameters, chosen["model"])
    metrics = fit(
        model,
        (images[:limit], labels[:limit]),
        test,
        epochs=chosen["epochs"],
        batch_size=chosen["batch_size"],
        learning_rate=chosen["lr"],
        seed=chosen["seed"],
        device=device,
        augment=chosen["augment"],
        compile="compile" in options,
        graph="graph" in options,
        out=out,
        resume=resume,
        notes={name: chosen[name] for name in ("data", "size", "limit", "deskew")},
    )
    if rank_and_processes()[0] > 0:
        return

    from .figures import confusion_matrix, learning_curves

    learning_curves({"spin-wave network": metrics["history"]}).savefig(out / "learning_curves.png", dpi=150)
    confusion_matrix(metrics["confusion"]).savefig(out / "confusion.png", dpi=150)
    print(
        f"test accuracy {metrics['test_accuracy']:.2%}, loss {metrics['test_loss']:.4f} "
        f"after {metrics['epochs']} epochs in {metrics['seconds']:.1f} s "
        f"on {metrics['environment']['device']}; everything is in {out}"
    )


def _evaluate(options: argparse.Namespace) -> None:
    model, described = _read(options.folder)
    settings = described["settings"]
    device = choose_device(getattr(options, "device", None))
    images, labels = _load("test", options, settings)
    score = evaluate(model.to(device), images.to(device), labels.to(device))
    print(f"test accuracy {score['accuracy']:.2%}, loss {score['loss']:.4f} on {len(images)} images")


def _bench(options: argparse.Namespace) -> None:
    device = choose_device(options.device)
    name = options.name or ("quick" if options.quick else device.type) + ("-scaling" if options.scaling else "")
    if Path(name).name != name:
        raise ValueError(f"--name must be a file name without folders, got {name!r}")
    file = options.out / f"{name}.json"
    if options.scaling:
        if options.rungs or options.batch or options.networks or options.quick:
            raise ValueError("--scaling has a plan of its own: expected none of --rungs, --batch, --networks, --quick")
        run_scaling(file, device=device, repeat=options.repeat)
        print(f"\nResults are in {file}.")
        return
    results = run_bench(
        file,
        contenders=options.rungs,
        batches=options.batch,
        networks=options.networks,
        device=device,
        repeat=options.repeat,
        quick=options.quick,
    )
    for network, batch in dict.fromkeys((row["network"], row["batch"]) for row in results["rows"]):
        print(f"\n{table(results, network, batch)}")
    if all("skipped" in row for row in results["rows"]):
        print(f"\nNothing could be measured; the reasons are in {file}.")
        return
    from .figures import ladder

    ladder(results).savefig(file.with_suffix(".png"), dpi=150)
    print(f"\nResults are in {file}, the figure beside it.")


def _checkup(options: argparse.Namespace) -> int:
    alone = options.json is not None and str(options.json) == "-"
    report = None
    told: set[str] = set()

    def tell(so_far: CheckupReport) -> None:
        nonlocal report
        report = so_far
        for topic in dict.fromkeys(finding.topic for finding in so_far.findings):
            if topic not in told:
                told.add(topic)
                _tell(f"{topic}: checked after {so_far.settings['seconds']:.3g} s")

    # By itself SIGTERM would be the end of this process alone, and leave the one that f runs in.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        report = check_file(
            options.target,
            options.time_limit,
            tell,
            modes=options.modes,
            seed=options.seed,
            device=options.device,
            network=options.network,
            samples=options.samples,
            topics=options.topics,
        )
    except KeyboardInterrupt:
        if report is not None:
            print(report.to_json() if alone else report)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    print(report.to_json() if alone else report)
    if options.json is not None and not alone:
        _write(options.json, report.to_json().encode())
    if options.html is not None:
        _write(options.html, report.page().encode())
    return int(report.severe)


if __name__ == "__main__":
    sys.exit(main())
