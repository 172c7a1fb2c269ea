"""What narrowcast_export.py changes in graphs and in indices for the sake of speed."""
import itertools
import unittest
from unittest import mock

import sympy
import torch
from torch import nn
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

import narrowcast_export

BATCH = sympy.Symbol("s0", integer=True, positive=True)
A, B, C, D = (sympy.Symbol(name, integer=True, nonnegative=True) for name in "abcd")


class Indices(unittest.TestCase):
    def assert_simplified(self, index, ranges, divisions):
        """The index has that many divisions left, and the same values."""
        simple = narrowcast_export._without_divisions(index, ranges)
        self.assertEqual(len(simple.atoms(FloorDiv, ModularIndexing)), divisions, simple)
        for batch in (1, 2, 3, 8):
            limits = [int(sympy.sympify(size).subs(BATCH, batch)) for size in ranges.values()]
            near = [sorted({0, 1, limit // 3, limit // 2, limit - 2, limit - 1} & set(range(limit))) for limit in limits]
            for values in itertools.product(*near):
                point = {**dict(zip(ranges, values)), BATCH: batch}
                self.assertEqual(index.subs(point), simple.subs(point), (index, simple, point))

    def test_divisions_that_are_not_needed(self):
        heads = {A: BATCH, B: 4, C: 32}
        self.assert_simplified(ModularIndexing(C + 32 * B + 128 * A, 128, BATCH), heads, 0)
        self.assert_simplified(FloorDiv(C + 32 * B + 128 * A + 128 * BATCH * D, 128 * BATCH), {**heads, D: 17}, 0)
        nested = ModularIndexing(B + 128 * A, 32, 4 * BATCH)
        self.assert_simplified(ModularIndexing(FloorDiv(nested, 4), 1, BATCH), {A: BATCH, B: 128}, 0)
        # b // 32 and b % 32 are left.
        self.assert_simplified(32 * ModularIndexing(nested, 1, 4) + ModularIndexing(B, 1, 32), {A: BATCH, B: 128}, 2)
        self.assert_simplified(ModularIndexing(A + BATCH * B, 1, BATCH), {A: BATCH, B: 5}, 0)

    def test_divisions_that_are_needed(self):
        self.assert_simplified(ModularIndexing(A, 1, BATCH), {A: BATCH + 1}, 1)
        self.assert_simplified(ModularIndexing(A, 1, 7), {A: BATCH}, 1)
        self.assert_simplified(FloorDiv(A, 3), {A: BATCH}, 1)
        self.assert_simplified(FloorDiv(BATCH * A + B, BATCH), {A: 4, B: 2 * BATCH}, 1)
        self.assert_simplified(FloorDiv(A - B + 3, 4), {A: BATCH, B: 4}, 1)
        self.assert_simplified(ModularIndexing(128 * A + B, 32, 4 * BATCH), {A: BATCH, B: 129}, 1)
        self.assert_simplified(A + 3 * B, {A: 3, B: BATCH}, 0)


class Parts(nn.Module):
    """Takes `count` of three parts of a tensor."""

    def __init__(self, count):
        super().__init__()
        self.linear, self.count = nn.Linear(6, 12), count

    def forward(self, inputs):
        parts = self.linear(inputs).view(-1, 3, 4)
        return sum((number + 1) * parts[:, number].tanh() for number in range(self.count))


class Batch(nn.Module):
    """Takes the first two samples out of the batch, and all parts twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 12)

    def forward(self, inputs):
        rows = self.linear(inputs).view(-1, 3, 4)
        first, second, third = (rows + rows[0] + rows[1]).tanh().unbind(1)
        return first * second[:, :4] + third + rows[:, 0] * rows[:, -1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.attention = nn.Linear(6, 12), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, inputs):
        rows = self.linear(inputs).view(-1, 3, 4)
        return self.attention(rows, rows, rows, need_weights=False)[0].sum(1)


class Recurrent(nn.Module):
    def __init__(self, kind, steps=3, **options):
        super().__init__()
        self.layers, self.steps = kind(6 // steps, 5, batch_first=True, **options), steps
        self.last = nn.Linear(10 if options.get("bidirectional") else 5, 4)

    def forward(self, inputs):
        return self.last(self.layers(inputs.view(-1, self.steps, 6 // self.steps))[0].sum(1))


class GraphsTestCase(unittest.TestCase):
    def graph(self, module):
        """The operators of the training step. Its results are those of eager PyTorch."""
        step = narrowcast_export._Step(module, (torch.randn(5, 6), torch.randn(5, 4)), "mse", 0.0, 64)
        graph = narrowcast_export._trace(step, "train")
        torch.manual_seed(0)
        results = graph(*step.state.values(), step.inputs, step.targets)
        for result, expected in zip(results, step.eager("train", step.state, (step.inputs, step.targets), torch.float32)):
            self.assertTrue(torch.allclose(result, expected, rtol=1e-5, atol=1e-7))
        return [node.target for node in graph.graph.nodes]


class Stacks(GraphsTestCase):
    def test_gradients_of_all_parts_are_stacked(self):
        for module in (Parts(3), Attention()):
            targets = self.graph(module)
            self.assertIn(torch.ops.aten.stack.default, targets)
            self.assertNotIn(torch.ops.aten.select_backward.default, targets)

    def test_gradients_of_some_parts_are_not(self):
        targets = self.graph(Parts(2))
        self.assertNotIn(torch.ops.aten.stack.default, targets)
        self.assertIn(torch.ops.aten.select_backward.default, targets)
        self.assertIn(torch.ops.aten.select_backward.default, self.graph(Batch()))


class RecurrentLayers(GraphsTestCase):
    def test_the_gradient_of_a_weight_is_one_product(self):
        """Of an LSTM's two weights, one is used in each step. The inputs of all steps are multiplied by the other at once."""
        counts = [self.graph(Recurrent(nn.LSTM, steps)).count(torch.ops.aten.mm.default) for steps in (3, 6)]
        self.assertEqual(counts[1] - counts[0], 3)  # The gradients of three more states.
        self.assertEqual(self.graph(Recurrent(nn.LSTM, 2)).count(torch.ops.aten.mm.default), counts[0])

    def test_dropout_between_layers(self):
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            with self.subTest(kind=kind):
                targets = self.graph(Recurrent(kind, num_layers=2, dropout=0.25, bidirectional=True))
                self.assertIn(torch.ops.aten.native_dropout.default, targets)


class Arrays(unittest.TestCase):
    def test_each_function_has_one_object(self):
        """Another function's object never has its id."""
        ids = []

        class Lines:
            def writeline(self, line):
                pass

        with mock.patch.object(CppWrapperCpu, "codegen_int_array_var", lambda self, array, writeline: ids.append(id(writeline))):
            with narrowcast_export._declared_arrays():
                first, second = Lines(), Lines()
                for lines in (first, second, first):
                    CppWrapperCpu.codegen_int_array_var(None, "{1}", lines.writeline)
        self.assertEqual(ids[0], ids[2])
        self.assertNotEqual(ids[0], ids[1])


if __name__ == "__main__":
    unittest.main()
