"""Packages of torchvision's networks, trained by the programs."""
import unittest

import torch

from export.programs import ProgramsTestCase

try:
    import torchvision
except ImportError:
    torchvision = None


def images(size, count=64):
    """Noise with a bright row, whose number is the class."""
    random = torch.Generator().manual_seed(0)
    inputs, classes = torch.randn(count, 3, size, size, generator=random), torch.arange(count) % 10
    for image, number in zip(inputs, classes):
        image[:, 3 * number:3 * number + 3] += 3
    return inputs, classes


@unittest.skipUnless(torchvision, "torchvision is not installed")
class Vision(ProgramsTestCase):
    def test_vision_transformer(self):
        torch.manual_seed(0)
        net = torchvision.models.VisionTransformer(32, 8, 2, 2, 64, 128, num_classes=10)
        torch.nn.init.normal_(net.heads.head.weight, std=0.02)  # It is 0, so that all other gradients are.
        self.assert_trains(net, *images(32))

    def test_resnet(self):
        torch.manual_seed(0)
        self.assert_trains(torchvision.models.resnet18(num_classes=10), *images(64), tolerance=1e-4)


if __name__ == "__main__":
    unittest.main()
