"""narrowcast_export: the ranges of inputs and targets that are indices."""
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import narrowcast_export

TOKENS = torch.randint(0, 20, (8, 6), generator=torch.Generator().manual_seed(0))
CLASSES = TOKENS[:, 0] % 4


def whole(most, least=0, ignored=None):
    return [{"least": least, "most": most, "ignored": ignored, "slices": [[0, 6, 1]]}]


def at(slices, most, ignored=None):
    return {"least": 0, "most": most, "ignored": ignored, "slices": slices}


class Net(nn.Module):
    """A module whose loss `compute(net, inputs, targets)` computes."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.small, self.table, self.weight = nn.Embedding(3, 4), nn.Embedding(100, 4), nn.Parameter(torch.ones(20, 4))
        self.heads = nn.Linear(4, 20)

    def forward(self, inputs, targets):
        return self.compute(self, inputs, targets)


def of_inputs(embed):
    """The loss of a module that embeds its inputs."""
    return lambda net, inputs, targets: cross_entropy(embed(net, inputs).flatten(1).sum(1, keepdim=True) * net.heads.bias[:4], targets)


def of_targets(compare):
    """The loss of a module of float inputs [batch, 4], from 20 logits for each sample."""
    return lambda net, inputs, targets: compare(net.heads(inputs), targets)


class Ranges(unittest.TestCase):
    def ranges(self, compute, inputs, targets, name):
        step = narrowcast_export._Step(Net(compute), (inputs, targets), None, 0.0, 65536)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            step.check_eager()
            return narrowcast_export._ranges(step, narrowcast_export._trace(step, "train"), name)

    def assert_inputs(self, embed, expected, inputs=TOKENS):
        self.assertEqual(self.ranges(of_inputs(embed), inputs, CLASSES, "inputs"), expected)

    def assert_targets(self, compare, expected, targets):
        inputs = torch.ones(8, 4)
        self.assertEqual(self.ranges(of_targets(compare), inputs, targets, "targets"), expected)

    def test_rows_of_embeddings(self):
        self.assert_inputs(lambda net, tokens: net.table(tokens), whole(99))
        self.assert_inputs(lambda net, tokens: net.table(tokens.t().reshape(2, 3, -1)).permute(2, 0, 1, 3), whole(99))
        self.assert_inputs(lambda net, pixels: net.table(pixels.long()), whole(99), TOKENS.to(torch.uint8))
        self.assert_inputs(lambda net, numbers: net.table(numbers.long()), whole(99), TOKENS.float())

    def test_each_column_has_its_range(self):
        columns = TOKENS.clone()
        columns[:, 1] = columns[:, 1] % 3
        self.assert_inputs(lambda net, x: net.table(x[:, 0]) + net.small(x[:, 1]), [at([[0, 1, 1]], 99), at([[1, 2, 1]], 2)], columns)
        self.assert_inputs(lambda net, x: net.table(x.view(-1, 2, 3)[:, 0]), [at([[0, 3, 1]], 99)], columns)
        self.assert_inputs(lambda net, x: net.table(x[:, 1::2]), [at([[1, 6, 2]], 99)], columns)
        halves = torch.cat([TOKENS, TOKENS % 3], 1)
        self.assert_inputs(lambda net, x: (lambda ids, kinds: net.table(ids) + net.small(kinds))(*x.chunk(2, 1)),
                           [at([[0, 6, 1]], 99), at([[6, 12, 1]], 2)], halves)
        self.assert_inputs(lambda net, x: net.small(x[..., 1]), [at([[0, 6, 1], [1, 2, 1]], 2)], torch.stack([TOKENS, TOKENS % 3], 2))

    def test_a_start_symbol_in_front(self):
        self.assert_inputs(lambda net, x: net.table(torch.cat([torch.full_like(x[:, :1], 99), x[:, :-1]], 1)), [at([[0, 5, 1]], 99)])
        self.assert_inputs(lambda net, x: net.table(nn.functional.pad(x, (1, 0), value=99)[:, :-1]), [at([[0, 5, 1]], 99)])

    def test_indices(self):
        self.assert_inputs(lambda net, x: net.weight[x], whole(19, least=-20))
        self.assert_inputs(lambda net, x: net.weight[x - 20], [])
        self.assert_inputs(lambda net, x: net.weight.index_select(0, x[:, 2]), [at([[2, 3, 1]], 19)])
        self.assert_inputs(lambda net, x: net.heads(one_hot(x, 20).float() @ net.weight), whole(19))
        self.assert_inputs(lambda net, x: (x.unsqueeze(-1) == torch.arange(20)).float() @ net.weight, [])

    def test_classes(self):
        targets = torch.arange(8)
        self.assert_targets(cross_entropy, [at([], 19, ignored=-100)], targets)
        self.assert_targets(lambda logits, classes: -logits.log_softmax(1).gather(1, classes[:, None]).mean(), [at([], 19)], targets)
        self.assert_targets(lambda logits, classes: cross_entropy(logits.view(-1, 5, 4), classes), [at([[0, 4, 1]], 4, ignored=-100)],
                            torch.ones(8, 4).long())
        two = torch.stack([targets * 2, targets % 3], 1)
        self.assert_targets(lambda logits, classes: cross_entropy(logits[:, :17], classes[:, 0]) + cross_entropy(logits[:, 17:], classes[:, 1]),
                            [at([[0, 1, 1]], 16, ignored=-100), at([[1, 2, 1]], 2, ignored=-100)], two)

    def test_ignored_classes(self):
        for ignored in (-100, 7):
            targets = torch.arange(8)
            targets[3] = ignored
            self.assert_targets(lambda logits, classes, ignored=ignored: cross_entropy(logits, classes, ignore_index=ignored),
                                [at([], 19, ignored=ignored)], targets)

    def test_computed_indices_have_no_range(self):
        self.assert_inputs(lambda net, x: net.table(x % 7), [])
        self.assert_inputs(lambda net, x: net.table(torch.where(x < 9, x, 0)), [])

        def clamps(net, x):
            x = x.clone()
            x[:, 0].clamp_(max=2)
            return net.small(x[:, 0])

        self.assert_inputs(clamps, [], TOKENS % 3)
        self.assert_inputs(lambda net, x: net.table(x[:1]).mean() + net.table(x), whole(99))
        self.assert_inputs(lambda net, x: net.table(x[:1]).mean() * x.float(), [])


if __name__ == "__main__":
    unittest.main()
