"""Kernels for a GPU without one: compiled here, run by checks_on_gpu.py."""

import pytest
import torch

triton = pytest.importorskip("triton", "3.4")  # an earlier one takes numbers as float32
from triton.backends.compiler import GPUTarget  # noqa: E402

from spinwave import effective, fused  # noqa: E402


class Driver:
    """What Triton asks of a GPU before it launches anything."""

    def __init__(self, generation):
        self.generation = generation

    def get_current_target(self):
        return GPUTarget("cuda", self.generation, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compiled:
    """A kernel that is compiled for what it is called with, and not launched."""

    def __init__(self, kernel, made):
        self.kernel, self.made = kernel, made

    def __getitem__(self, grid):
        def compile_for(*arguments, **options):
            self.made.append(self.kernel.warmup(*arguments, grid=grid, **options))

        return compile_for


@pytest.mark.parametrize("gain", [None, torch.ones(())])
@pytest.mark.parametrize("generation", [75, 80, 90, 100])
def test_kernels_compile_for_gpus(gain, generation, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = []
    for name in ("_look_up", "_collect"):
        kernel = getattr(fused, name)
        kernel.device_caches.clear()
        monkeypatch.setattr(fused, name, Compiled(kernel, made))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(generation))
    w, table = torch.ones(10, 100), effective._table(10, 10.0, 0.6, torch.device("cpu"))
    found = fused.look_up(w, gain, table, effective._numbers(0.01, 10.0, 0.6))
    for grad in (w, w.t().contiguous().t(), w[:1, :1].expand_as(w)):
        fused.collect(grad, w, *found[1:], 0.01)
    for kernel in made:
        assert kernel.asm["cubin"]
        numbers = [kind for kind in kernel.src.signature.values() if kind.startswith("fp")]
        assert set(numbers) == {"fp64"}  # and not float32, Triton's type for a number
    assert len(made) == 4


def test_a_cpu_takes_operators():
    assert effective._means(torch.device("cpu")) == (effective._look_up, effective._collect)
