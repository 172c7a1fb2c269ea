"""narrowcast-quantize on modules that Python scripted or traced."""
import os
import subprocess
import tempfile
import unittest

import torch
from torch import nn

from support.exact import ExactTestCase, ops

PROGRAM = os.environ["NARROWCAST_QUANTIZE"]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.head = nn.Linear(16, 11)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


class ByOperators(nn.Module):
    """What a converted Linear layer must compute."""
    def __init__(self, linear):
        super().__init__()
        self.codes, self.scales, _ = ops.dynamically_quantize_per_channel(linear.weight.detach(), -128, 127, torch.int8)
        self.bias = linear.bias

    def forward(self, x):
        return ops.weight_only_int8_linear(x, self.codes, self.scales, self.bias)


def convert_by_hand(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, ByOperators(child))
        else:
            convert_by_hand(child)


class NarrowcastQuantize(ExactTestCase):
    def setUp(self):
        torch.manual_seed(5)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input, self.output = (os.path.join(folder.name, name) for name in ("model.pt", "int8.pt"))
        self.net = Net().eval()
        self.tokens = torch.randint(11, (3, 8))

    def quantize(self, module, **options):
        torch.jit.save(module, self.input, **options)
        result = subprocess.run([PROGRAM, self.input, self.output], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("\nblocks.1.outer "), 1, result.stdout)

    def assert_converted(self):
        with torch.no_grad():
            actual = torch.jit.load(self.output)(self.tokens)
            convert_by_hand(self.net)
            self.assert_same(actual, self.net(self.tokens))

    def test_a_scripted_module(self):
        self.quantize(torch.jit.script(self.net), _extra_files={"vocabulary.json": '["a"]'})
        files = {"vocabulary.json": ""}
        state = torch.jit.load(self.output, _extra_files=files).state_dict()
        self.assertEqual(files["vocabulary.json"], b'["a"]')
        self.assertEqual(state["head.weight"].dtype, torch.int8)
        self.assertEqual(state["head.scales"].shape, (11,))
        self.assert_converted()

    def test_a_traced_module(self):
        self.quantize(torch.jit.trace(self.net, self.tokens))
        self.assert_converted()


if __name__ == "__main__":
    unittest.main()
