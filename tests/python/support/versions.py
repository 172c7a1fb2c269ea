"""Whether packages fit each other."""
import re
from importlib import metadata


def skip_unless_torchvision_fits(test):
    """Skips the test if the installed torchvision was built for another torch: importing it would fail."""
    (needed,) = re.findall(r"torch \(==(.*?)\)", str(metadata.requires("torchvision")))
    if metadata.version("torch") != needed:
        test.skipTest(f"torchvision {metadata.version('torchvision')} fits torch {needed} only")
