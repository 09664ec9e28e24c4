"""Test accuracy on MNIST over seeds, of spin-wave networks and of dot products trained alike.

python benchmarks/accuracy.py    trains all that benchmarks/results/accuracy.json lacks, and adds each run to it
... --root FOLDER                where the raw files of the 28 x 28 digits lie, if not in ~/.cache/spinwave

One network a core at a time. The runs of the 28 x 28 digits take minutes each.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from spinwave import SpinWaveLinear, SpinWaveMLP, SpinWaveParameters, fit, load_mnist
from spinwave.data import deskew
from spinwave.training import _write

FILE = Path(__file__).parents[1] / "benchmarks" / "results" / "accuracy.json"

SMALL: dict[str, Any] = {"size": 10, "sizes": (100, 100, 10), "epochs": 10, "learning_rate": 0.2}
LARGE: dict[str, Any] = {"size": 28, "sizes": (784, 1000, 10), "epochs": 15, "learning_rate": 0.05}
RECIPES = {
    "10x10": SMALL,
    "10x10, longer": SMALL | {"epochs": 30},
    "28x28": LARGE,
    "28x28, deskewed": LARGE | {"deskew": True},
    # dot products have no coupling
    "28x28, deskewed, C = 30": LARGE | {"deskew": True, "coupling_total": 30.0, "kinds": ("spin waves",)},
    "28x28, augmented": LARGE | {"epochs": 50, "learning_rate": 0.04, "augment": True},
}
SEEDS = range(5)
KINDS = ("spin waves", "dot products")


class DotProducts(SpinWaveLinear):
    """A layer that starts as a spin-wave layer does and multiplies by its weights themselves."""

    def effective_weight(self) -> torch.Tensor:
        return self.gain * self.weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder with the raw files of MNIST")
    options = parser.parse_args()
    runs = json.loads(FILE.read_text())["runs"] if FILE.exists() else []
    done = {(run["recipe"], run["kind"], run["seed"]) for run in runs}
    strangers = {run["recipe"] for run in runs} - set(RECIPES)
    if strangers:
        sys.exit(f"accuracy: {FILE} holds recipes that this script does not know: {', '.join(sorted(strangers))}")
    wanted = [
        (name, kind, seed)
        for name in RECIPES
        for seed in SEEDS
        for kind in RECIPES[name].get("kinds", KINDS)
        if (name, kind, seed) not in done
    ]
    if any(RECIPES[name]["size"] == 28 for name, _, _ in wanted):
        try:
            for split in ("train", "test"):
                load_mnist(split, 28, options.root)
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"accuracy: {error}")
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        tasks = {pool.submit(trained, *run, options.root): run for run in wanted}
        try:
            for task in tqdm(as_completed(tasks), total=len(tasks), unit="run"):
                name, kind, seed = tasks[task]
                run = {"recipe": name, "kind": kind, "seed": seed, "settings": RECIPES[name], **task.result()}
                runs = sorted(
                    [*runs, run],
                    key=lambda run: (list(RECIPES).index(run["recipe"]), KINDS.index(run["kind"]), run["seed"]),
                )
                _write(FILE, json.dumps({"runs": runs}, indent=1).encode())
                tqdm.write(f"{name}, {kind}, seed {seed}: {run['test_accuracy']:.2%}")
        except BaseException as error:  # leaving the pool would wait for all that is left
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, KeyboardInterrupt):
                sys.exit(f"accuracy: interrupted, {len(runs)} runs are kept in {FILE}")
            raise


def trained(name: str, kind: str, seed: int, root: str | None) -> dict[str, Any]:
    """Train one network on one thread: accuracy, losses, seconds and machine."""
    torch.set_num_threads(1)
    recipe = RECIPES[name]
    folder = root if recipe["size"] > 10 else None  # the package holds the small ones
    train, test = (load_mnist(split, recipe["size"], folder) for split in ("train", "test"))
    if recipe.get("deskew"):
        train, test = ((deskew(images), labels) for images, labels in (train, test))
    torch.manual_seed(seed)
    physics = SpinWaveParameters(coupling_total=recipe["coupling_total"]) if "coupling_total" in recipe else None
    model = SpinWaveMLP(recipe["sizes"], physics)
    if kind == "dot products":
        for k, (n_in, n_out) in enumerate(itertools.pairwise(recipe["sizes"])):
            model.layers[2 * k] = DotProducts(n_in, n_out)
    metrics = fit(
        model,
        train,
        test,
        epochs=recipe["epochs"],
        learning_rate=recipe["learning_rate"],
        augment=recipe.get("augment", False),
        seed=seed,
        device="cpu",
        progress=False,
    )
    wanted = ("test_accuracy", "test_loss", "seconds", "environment")
    return {key: metrics[key] for key in wanted} | {"train_loss": metrics["history"][-1]["train_loss"]}


if __name__ == "__main__":
    main()
