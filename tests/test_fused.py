"""Kernels for a GPU without one: compiled here, run by checks_on_gpu.py."""

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from spinwave import effective, fused  # noqa: E402


@pytest.mark.parametrize(
    ("kernel", "built_in"),
    [
        (fused._look_up, {}),
        (fused._look_up, {"gain": None}),
        (fused._collect, {}),
        (fused._collect, {"gain": None, "along": 1}),
    ],
)
@pytest.mark.parametrize("generation", [75, 80, 90, 100])
def test_kernels_compile_for_gpus(kernel, built_in, generation, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"block": 128} | built_in  # Triton builds in what is 1
    types = {"table": "*fp64"} | dict.fromkeys(("modes", "cells", "down", "along"), "i32")
    types |= dict.fromkeys(constants, "constexpr")
    signature = {p.name: types.get(p.name) or p.annotation_type or "*fp32" for p in kernel.params}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", generation, 32)).asm["cubin"]


def test_a_cpu_takes_operators():
    assert effective._means(torch.device("cpu")) == (effective._look_up, effective._collect)
