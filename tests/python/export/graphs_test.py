"""What narrowcast_export.py changes in graphs and in indices for the sake of speed."""
import itertools
import unittest

import sympy
import torch
from torch import nn
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


class Stacks(unittest.TestCase):
    def graph(self, module):
        step = narrowcast_export._Step(module, (torch.randn(5, 6), torch.randn(5, 4)), "mse", 0.0, 64)
        graph = narrowcast_export._trace(step, "train")
        results = graph(*step.state.values(), step.inputs, step.targets)
        for result, expected in zip(results, step.eager("train", step.state, (step.inputs, step.targets), torch.float32)):
            self.assertTrue(torch.allclose(result, expected, rtol=1e-5, atol=1e-7))
        return [node.target for node in graph.graph.nodes]

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


if __name__ == "__main__":
    unittest.main()
