"""Loads narrowcast's libraries for the torch that is installed."""
import importlib.metadata
import os
import pathlib

import torch

_FOLDER = pathlib.Path(__file__).resolve().parent / "lib"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _folder() -> pathlib.Path:
    """The folder of the libraries for this torch: NARROWCAST_LIBRARY_DIR, else lib/torchMAJOR.MINOR of this package."""
    given = os.environ.get("NARROWCAST_LIBRARY_DIR")
    if given:
        return pathlib.Path(given)
    built = sorted(each.name.removeprefix("torch") for each in _FOLDER.glob("torch*"))
    minor = _minor(torch.__version__)
    if minor not in built:
        raise ImportError(f"narrowcast has libraries for torch {' and '.join(built) or '(none)'}, but torch is {torch.__version__}; "
                          "install one of these versions, or build narrowcast from source with this torch "
                          "(-DNARROWCAST_LIBTORCH) and set NARROWCAST_LIBRARY_DIR")
    return _FOLDER / f"torch{minor}"


def _other_cuda() -> str:
    """The end of an error, if this is a wheel for GPUs, and torch has another CUDA."""
    try:
        variant = importlib.metadata.version("narrowcast").partition("+")[2]
    except importlib.metadata.PackageNotFoundError:
        return ""
    built, has = variant.removeprefix("cu"), (torch.version.cuda or "").partition(".")[0]
    if built in ("", has):
        return ""
    return (f"; this wheel is for torch with CUDA {built}, but torch has {'CUDA ' + has if has else 'no CUDA'}: "
            "install narrowcast's wheel for it")


def load() -> pathlib.Path:
    """Registers torch.ops.narrowcast and torch.classes.narrowcast. Returns the folder of the libraries. ImportError if there
    are none for this torch, or if the loader refuses them."""
    folder = _folder()
    library = folder / "libnarrowcast_classes.so"
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(f"narrowcast cannot load {library} with torch {torch.__version__}: {error}{_other_cuda()}") from error
    built = torch.ops.narrowcast.libtorch_version()
    if built != _minor(torch.__version__):
        raise ImportError(f"{library} was built for torch {built}, but torch is {torch.__version__}")
    return folder
