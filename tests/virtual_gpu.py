"""A GPU made of the CPU: tensors on a device "vgpu" whose operators run on the CPU, and which does what a GPU minds.

Python sees another device, so that the package takes the ways that it takes on a GPU. Values that are read back, and
copies from and to the host, are counted. A graph records launches without running them, refuses to read values, and
replays them at the addresses and with the numbers that they had.

Importing this adds the device to PyTorch for good, and `gpu` puts stand-ins in place of functions of torch.cuda: use
them in a process of their own.
"""

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from spinwave import effective, training

_setup_privateuseone_for_python_backend("vgpu")
DEVICE = torch.device("vgpu", 0)
LOOKS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.is_nonzero", "aten.masked_select")
NO_WORK = ("aten.detach", "aten.empty", "aten._unsafe_view")


class OnGPU(torch.Tensor):
    """A tensor that says it is on the device, around one that holds its values."""

    @staticmethod
    def __new__(cls, held):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        tensor.held = held
        return tensor

    def tolist(self):
        return self.cpu().tolist()

    def __format__(self, wanted):
        return format(self.item(), wanted)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return GPU.current.launch(function, args, kwargs or {})


class GPU(TorchDispatchMode):
    """The device while it is there: ``counts`` of what was asked of it."""

    current = None

    def __init__(self):
        super().__init__()
        self.counts = Counter()
        self.recording = None
        GPU.current = self

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        if any(isinstance(leaf, OnGPU) for leaf in tree_leaves((args, kwargs))) or (
            wanted is not None and torch.device(wanted).type == "vgpu"
        ):
            return self.launch(function, args, kwargs)
        return function(*args, **kwargs)

    def launch(self, function, args, kwargs):
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, OnGPU)}
        wanted = kwargs.get("device")
        to_gpu = bool(ours) if wanted is None else torch.device(wanted).type == "vgpu"
        kind = "view" if function.is_view or str(function).startswith(NO_WORK) else "launch"
        if str(function).startswith(LOOKS):
            kind, to_gpu = "look", False
        elif ours and not to_gpu:
            kind = "to the host"
        elif any(leaf.device.type == "cpu" and (leaf.dim() or not ours) for leaf in leaves):
            kind = "from the host"
            if wanted is None and "copy_" not in str(function):
                raise RuntimeError(f"{function}: tensors on two devices")
        self.counts[kind] += 1
        if wanted is not None:
            kwargs = kwargs | {"device": "cpu"}
        args, kwargs = tree_map_only(OnGPU, lambda tensor: tensor.held, (args, kwargs))
        if self.recording is None:
            found = function(*args, **kwargs)
        else:
            if kind not in ("launch", "view"):
                raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
            found = self.recording.record(function, args, kwargs)
        if not to_gpu:
            return found
        return tree_map_only(torch.Tensor, lambda held: ours[id(held)] if id(held) in ours else OnGPU(held), found)


class Graph:
    """Launches in their order, with the memory and the numbers of the time of recording."""

    def __init__(self):
        self.launches = []
        self.before = {}  # memory that the recording would have altered, and what it held

    def record(self, function, args, kwargs):
        given = {leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if function._schema.is_mutable:
            for tensor in given:
                self.before.setdefault(tensor, tensor.clone())
        found = function(*args, **kwargs)
        memory = {tensor.untyped_storage().data_ptr() for tensor in given}
        fresh = [
            (place, leaf)
            for place, leaf in enumerate(tree_leaves(found))
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in memory
        ]
        self.launches.append((function, args, kwargs, fresh))
        return found

    def replay(self):
        GPU.current.counts["replay"] += 1
        for function, args, kwargs, fresh in self.launches:
            found = tree_leaves(function(*args, **kwargs))
            for place, leaf in fresh:
                leaf.copy_(found[place])


class Stream:
    current = None  # the default

    def __init__(self, device=None):
        pass

    def wait_stream(self, other):
        pass


@contextlib.contextmanager
def on_stream(stream):
    before, Stream.current = Stream.current, stream
    try:
        yield
    finally:
        Stream.current = before


@contextlib.contextmanager
def recording(graph, stream=None):
    GPU.current.recording = graph
    before, Stream.current = Stream.current, stream
    try:
        yield
        Stream.current = before
    except RuntimeError:  # PyTorch then ends the recording, which fails too, before it goes back to the other stream
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904
    finally:
        GPU.current.recording = None
        for tensor, held in graph.before.items():
            tensor.copy_(held)
        for _, _, _, fresh in graph.launches:
            for _, leaf in fresh:  # nothing has run
                leaf.fill_(torch.nan if leaf.is_floating_point() else 0)


def must_be_capturable(optimizer, *_):
    if GPU.current.recording is not None and not all(group["capturable"] for group in optimizer.param_groups):
        raise RuntimeError("Attempting CUDA graph capture of step() but capturable is False")


class Kernel:
    """A kernel of Triton, which its interpreter runs."""

    is_view = False
    _schema = SimpleNamespace(is_mutable=True)

    def __init__(self, kernel, grid=None):
        self.kernel, self.grid = kernel, grid

    def __getitem__(self, grid):
        return Kernel(self.kernel, grid)

    def __call__(self, *args, **options):
        if any(isinstance(argument, OnGPU) for argument in args):
            GPU.current.launch(self, args, options)
        else:
            self.kernel[self.grid](*args, **options)


_tensor = torch.tensor


def from_values(values, *, device=None, **options):
    """As torch.tensor, which asks no dispatch mode."""
    tensor = _tensor(values, **options)
    return tensor if device is None else tensor.to(device)


@contextlib.contextmanager
def gpu(kernels=False):
    """The device, as one whose launches can be recorded, with Triton or without."""
    effective._means.cache_clear()
    with pytest.MonkeyPatch.context() as patch, register_optimizer_step_pre_hook(must_be_capturable):
        if kernels:
            from spinwave import fused

            patch.setattr(effective, "_KERNELS_FOR", ("vgpu",))
            for name in ("_look_up", "_collect"):
                patch.setattr(fused, name, Kernel(getattr(fused, name)))
        patch.setattr(effective, "_PLAIN", (*effective._PLAIN, OnGPU))
        patch.setattr(training, "RECORDED", ("vgpu",))
        patch.setattr(torch, "tensor", from_values)
        stand_ins = {"CUDAGraph": Graph, "graph": recording, "Stream": Stream, "stream": on_stream}
        stand_ins["current_stream"] = lambda device=None: Stream.current or Stream()
        for name, stand_in in stand_ins.items():
            patch.setattr(torch.cuda, name, stand_in)
        with GPU() as device:
            yield device
