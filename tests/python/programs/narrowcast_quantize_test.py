"""narrowcast-quantize on modules that Python scripted or traced."""
import copy
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from typing import Tuple

import torch
from torch import nn
from torch.nn.functional import linear

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
    """The computation of a converted Linear layer."""
    def __init__(self, linear):
        super().__init__()
        self.codes, self.scales, _ = ops.dynamically_quantize_per_channel(linear.weight.detach(), -128, 127, torch.int8)
        self.bias = linear.bias

    def forward(self, x):
        return ops.weight_only_int8_linear(x, self.codes, self.scales, self.bias)


class Derived(nn.Linear):
    """Like torch.nn.Linear, under another name."""


class Rectified(nn.Linear):
    """With a custom forward."""
    def forward(self, x):
        return torch.relu(linear(x, self.weight, self.bias)) + x.sum(-1, keepdim=True)


class Transposed(nn.Linear):
    """Does not call linear."""
    def forward(self, x):
        return torch.mm(x, self.weight.t())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        return self.head(self.layer(x))


class UnlikePair(nn.Module):
    """Two layers of one TorchScript type although their weights differ."""
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16, dtype=torch.complex64)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        return self.head(self.first(x)) + self.second(x.to(torch.complex64)).real.sum(-1, keepdim=True)


class UnlikePairThatReads(UnlikePair):
    def forward(self, x):
        return self.head(self.first(x)) + torch.matmul(x.to(torch.complex64), self.second.weight).real[..., :11]


class By(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return linear(x, self.weight)


class UnlikeRanks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = By(16, 16)
        self.second = By(16)
        self.head = nn.Linear(16, 11)

    def forward(self, x):
        return self.head(self.first(x)) + self.second(x).unsqueeze(-1)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.same = self.first
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.same(self.first(x)))


class Forked(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(16, 5)
        self.head = nn.Linear(16, 11)

    def part(self, x):
        return torch.matmul(x, self.read.weight.t()).sum(-1, keepdim=True)

    def forward(self, x):
        waiting = torch.jit.fork(self.part, x)
        return self.head(x) + torch.jit.wait(waiting)


def negated(self, input: Tuple[torch.Tensor], output: torch.Tensor):
    return -output


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

    def quantize(self, module, exit_code=0, **options):
        torch.jit.save(module, self.input, **options)
        result = subprocess.run([PROGRAM, "--overwrite", self.input, self.output], capture_output=True, text=True)
        self.assertEqual(result.returncode, exit_code, result.stderr)
        return result.stdout if exit_code == 0 else result.stderr

    # In float64, different orders of sums differ by at most 1e-9 if no number is above 10000. A layer that is not
    # converted, or is converted wrongly, changes more.
    def check(self, net, converted, staying="", trace=False, x=None):
        """The file of `net` gives the same result as `net` with the weights of exactly those layers rounded."""
        net = net.double().eval()
        x = torch.randn(3, 5, 16).double() if x is None else x
        output = self.quantize(torch.jit.trace(net, x, check_trace=False) if trace else torch.jit.script(net))
        layers, stays = output.split("\nsum ")
        names = [line.rsplit(maxsplit=5)[0] for line in layers.splitlines()[1:-1]]
        self.assertEqual(sorted(names), sorted(converted), output)
        self.assertEqual(stays.split("\n", 1)[1], staying)
        rounded = copy.deepcopy(net)
        with torch.no_grad():
            layers = [rounded.get_submodule("" if name == "the module" else name) for name in converted]
            for weight in {layer.weight for layer in layers}:  # Once if several layers share it.
                codes, scales, _ = ops.dynamically_quantize_per_channel(weight.float(), -128, 127, torch.int8)
                weight.copy_(codes.double() * scales.double()[:, None])
            actual = torch.jit.load(self.output)(x)
            self.assertLess((actual - rounded(x)).abs().max(), 1e-9)
            self.assertGreater((actual - net(x)).abs().max(), 1e-6)

    def assert_converted(self, net, tokens):
        with torch.no_grad():
            actual = torch.jit.load(self.output)(tokens)
            convert_by_hand(net)
            self.assert_same(actual, net(tokens))

    def test_a_scripted_module(self):
        net, tokens = Net().eval(), torch.randint(11, (3, 8))
        output = self.quantize(torch.jit.script(net), _extra_files={"vocabulary.json": '["a"]'})
        self.assertEqual(output.count("\nblocks.1.outer "), 1, output)
        files = {"vocabulary.json": ""}
        state = torch.jit.load(self.output, _extra_files=files).state_dict()
        self.assertEqual(files["vocabulary.json"], b'["a"]')
        self.assertEqual(state["head.weight"].dtype, torch.int8)
        self.assertEqual(state["head.scales"].shape, (11,))
        self.assert_converted(net, tokens)

    def test_the_example_of_the_guide(self):
        self.quantize(torch.jit.script(Net().eval()))
        guide = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide" / "int8-weights.md"
        (example,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for path, ours in (("build/release/lib/libnarrowcast_ops.so", os.environ["NARROWCAST_OPS_LIBRARY"]),
                           ("runs/net/model-int8.pt", self.output)):
            self.assertIn(path, example)
            example = example.replace(path, ours)
        # In a separate process, because this one has loaded the library already.
        check = example + "assert net(torch.zeros(3, 8, dtype=torch.long)).shape == (3, 8, 11)\n"
        result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_traced_module(self):
        net, tokens = Net().eval(), torch.randint(11, (3, 8))
        self.quantize(torch.jit.trace(net, tokens))
        self.assert_converted(net, tokens)

    def test_a_module_in_float64(self):
        layers = ["head", *(f"blocks.{i}.{name}" for i in range(2) for name in ("inner", "outer"))]
        for trace in (False, True):
            self.check(Net(), layers, trace=trace, x=torch.randint(11, (3, 8)))
            self.assertEqual(torch.jit.load(self.output).head.scales.dtype, torch.float64)

    def test_a_module_that_is_a_linear_layer(self):
        for trace in (False, True):
            for layer in (nn.Linear, Derived, Rectified, nn.modules.linear.NonDynamicallyQuantizableLinear):
                for bias in (False, True):
                    with self.subTest(layer=layer.__name__, trace=trace, bias=bias):
                        self.check(layer(16, 11, bias=bias), ["the module"], trace=trace)

    # |w - code * scale| is at most half a scale, up to float32 roundings on the way: each input adds that.
    def test_is_within_half_a_scale_per_input_of_the_floats(self):
        for dtype, roundoff in ((torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
            layer, x = Derived(200, 30).to(dtype), torch.randn(70, 200).to(dtype)
            self.quantize(torch.jit.script(layer))
            quantized = torch.jit.load(self.output)
            exact = linear(x.double(), layer.weight.double(), layer.bias.double())
            terms = x.double().abs() @ (layer.weight.double().abs().t()) + layer.bias.double().abs()
            half_scales = x.double().abs().sum(1, keepdim=True) * quantized.scales.double() / 2
            # Scales, the result and, in bfloat16, products are rounded to the dtype. Sums are as in float32, with
            # inputs rounded to at most 2^-14 of their row's largest one.
            weights = layer.weight.double().abs().sum(1) + 200 * quantized.scales.double()
            roundings = ((terms + half_scales) * (3 * roundoff + (200 + 3) * 2.0**-24)
                         + x.double().abs().amax(1, keepdim=True) * weights * 2.0**-14)
            self.assertTrue(((quantized(x).double() - exact).abs() <= half_scales + roundings).all())

    def test_layers_with_other_forwards_in_a_module(self):
        net = nn.Sequential(Derived(16, 16), Rectified(16, 16), nn.ReLU(), nn.Linear(16, 16, bias=False))
        for trace in (False, True):
            self.check(net, ["0", "1", "3"], trace=trace)

    def test_shared_layers(self):
        self.check(Shared(), ["first", "same", "tied"])
        state = torch.jit.load(self.output).state_dict()
        self.assertEqual(len({x.data_ptr() for name, x in state.items() if name.endswith(".weight")}), 1)

    # In a trace, only one of the layer's names has its code.
    def test_a_shared_layer_in_a_trace(self):
        net = Shared()
        net.tied = nn.Linear(16, 16)
        self.check(net, ["first", "tied"], "same is not quantised: none of its methods multiplies by its weight\n",
                   trace=True)

    # A trace gives both layers that share the weight the same one.
    def test_refuses_a_tied_weight_in_a_trace(self):
        error = self.quantize(torch.jit.trace(Shared(), torch.randn(3, 16)), exit_code=2)
        self.assertIn("first is not quantised: the module uses its weight directly; same is not quantised: none of its "
                      "methods multiplies by its weight; tied is not quantised: none of its methods multiplies", error)

    def test_attention_reads_the_weight_of_its_layer(self):
        line = "attention.out_proj is not quantised: 'attention' uses its weight directly\n"
        for trace in (False, True):
            self.check(Attention(), ["head"], line, trace=trace)

    def test_an_encoder_layer_reads_the_weights_of_its_layers(self):
        out_proj = "layer.self_attn.out_proj is not quantised: {} uses its weight directly\n"
        linears = "".join(f"layer.linear{i} is not quantised: 'layer' uses its weight directly\n" for i in (1, 2))
        self.check(Encoder(), ["head"], out_proj.format("'layer'") + linears)
        self.check(Encoder(), ["head", "layer.linear1", "layer.linear2"], out_proj.format("'layer.self_attn'"),
                   trace=True)

    def test_a_fork_reads_the_weight_of_a_layer(self):
        self.check(Forked(), ["head"], "read is not quantised: the module uses its weight directly\n")

    def test_a_type_of_which_one_weight_is_no_floating_matrix(self):
        reason = "its weight is not a floating-point matrix\n"
        lines = ("first is not quantised: it has the same TorchScript type as 'second', which cannot be converted: "
                 f"{reason}second is not quantised: {reason}")
        for net in (UnlikePair(), UnlikePairThatReads(), UnlikeRanks()):
            with self.subTest(net=type(net).__name__):
                self.check(net, ["head"], lines)

    def test_refuses_a_module_none_of_whose_layers_can_be_quantised(self):
        error = self.quantize(torch.jit.script(Transposed(4, 3)), exit_code=2)
        self.assertRegex(error, "^narrowcast-quantize: input: .* has no Linear layer that can be quantised; the module "
                         "is not quantised: its method forward uses the weight in another operation than a "
                         "multiplication\n$")
        error = self.quantize(torch.jit.script(nn.MultiheadAttention(4, 2)), exit_code=2)
        self.assertRegex(error, "quantised; out_proj is not quantised: the module uses its weight directly\n$")
        self.assertFalse(os.path.exists(self.output))

    # LibTorch's copies of a module lose hooks.
    def test_refuses_hooks(self):
        for net, name in ((Net(), "the module"), (Net().head, "the module"), (nn.Sequential(Net().head), "submodule '0'")):
            module = net[0] if isinstance(net, nn.Sequential) else net
            module.register_forward_hook(negated)
            self.assertIn(f"{name} has forward hooks", self.quantize(torch.jit.script(net), exit_code=2))
        self.assertFalse(os.path.exists(self.output))


if __name__ == "__main__":
    unittest.main()
