"""A GPU without one: checks_on_gpu.py runs on a device made of the CPU, which only another process can be given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch takes no device written in Python",
)
def test_what_runs_on_a_gpu_runs_on_a_virtual_one():
    checks = Path(__file__).parent / "checks_on_gpu.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)],
        env={**os.environ, "TRITON_INTERPRET": "1"},  # kernels run as loops over NumPy arrays
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
