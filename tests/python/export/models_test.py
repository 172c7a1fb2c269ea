"""Packages of larger modules, beside eager PyTorch."""
import copy
import pathlib
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import narrowcast_export
from export.modules import Gpt, Images, Memory
from export.packages import Package, PackageTestCase, skip_without_compiler


def tokens(size, length, vocabulary, seed=0):
    """Sequences that count upwards, and their next tokens."""
    start = torch.randint(0, vocabulary, (size, 1), generator=torch.Generator().manual_seed(seed))
    numbers = (start + torch.arange(length + 1)) % vocabulary
    return numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()


class Models(PackageTestCase):
    def setUp(self):
        skip_without_compiler(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "net.pt2"
        torch.manual_seed(0)

    def export(self, module, example, loss, **options):
        narrowcast_export.export(module, example, loss, self.path, **options)
        return Package(self.path), copy.deepcopy(module)

    def assert_repeats(self, package, batch):
        """Equal bits on several threads, also of the gradients of embeddings, which are sums into rows."""
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        self.addCleanup(torch.use_deterministic_algorithms, False)
        torch.set_num_threads(4)
        torch.use_deterministic_algorithms(True)
        results = []
        for _ in range(5):
            torch.manual_seed(0)
            results.append(package.run("train", *batch)["gradient"])
        for name, gradient in results[0].items():
            self.assertTrue(all(each[name].equal(gradient) for each in results), name)

    def test_gpt(self):
        def loss(module, inputs, targets):
            return cross_entropy(module(inputs).flatten(0, 1), targets.flatten())

        package, net = self.export(Gpt(), tokens(4, 16, 40), "cross_entropy")
        self.assertEqual(package.manifest["tied"], {"head.weight": "token_embedding.weight"})
        self.assertEqual([graph["random"] for graph in package.manifest["graphs"].values()], [True, False])
        for size in (4, 7, 1, 32):
            self.assert_trains_like(package, net, loss, *tokens(size, 16, 40, seed=size))
            self.assert_evaluates_like(package, net, loss, *tokens(size, 16, 40, seed=size))
        self.assert_repeats(package, tokens(32, 16, 40))
        # A shorter prompt is padded: its logits do not depend on the padding.
        inputs, targets = tokens(1, 16, 40)
        inputs[0, 5:] = 0
        logits = package.run("evaluate", inputs, targets)["outputs"][0, 4]
        self.assert_close(logits, net.eval()(inputs[:, :5])[0, 4].detach(), "logits")
        losses = package.train([tokens(8, 16, 40, seed) for seed in range(80)])
        self.assertLess(losses[-1], 0.3 * losses[0])

    def test_lstm_that_returns_its_loss(self):
        package, net = self.export(Memory(), tokens(3, 5, 20), None)
        for size in (3, 8, 1):
            batch = tokens(size, 5, 20, seed=size)
            self.assert_trains_like(package, net, Memory.__call__, *batch)
            self.assertNotIn("outputs", self.assert_evaluates_like(package, net, Memory.__call__, *batch))
        self.assertEqual(package.manifest["loss"], "module")
        self.assertEqual([[each["most"] for each in package.manifest[name]["ranges"]] for name in ("inputs", "targets")], [[19], [19]])
        losses = package.train([tokens(8, 5, 20, seed) for seed in range(100)])
        self.assertLess(losses[-1], 0.5 * losses[0])

    def test_images_with_mse_and_with_a_function(self):
        random = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (6, 12, 12), generator=random).to(torch.uint8)
        targets = torch.randn(6, generator=random)

        def absolute(outputs, targets):
            return (outputs.squeeze(1) - targets).abs().mean()

        for loss, eager in (("mse", lambda outputs, targets: mse_loss(outputs, targets.view(-1, 1))), (absolute, absolute)):
            with self.subTest(loss=loss):
                package, net = self.export(Images(), (images, targets), loss)
                self.assertEqual(package.manifest["loss"], "mse" if loss == "mse" else "custom")
                for size in (6, 3):
                    def of_module(module, inputs, targets):
                        return eager(module(inputs), targets)

                    self.assert_trains_like(package, net, of_module, images[:size], targets[:size])
                    self.assert_evaluates_like(package, net, of_module, images[:size], targets[:size])

    def test_gradients_that_share_memory_are_not_kept(self):
        """Two gradients that are one tensor, gradients that are another parameter, and one that is a constant."""
        class Sums(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.delta = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))
                self.a, self.b, self.free = (nn.Parameter(torch.randn(5)) for _ in range(3))

            def forward(self, inputs, targets):
                values = nn.functional.linear(inputs, self.weight + self.delta) - targets
                return values.square().mean() + (self.a * self.b).sum() + self.free.sum()

        package, net = self.export(Sums(), (torch.randn(6, 4), torch.randn(6, 3)), None)
        kept = {output["name"]: output["kept"] for output in package.manifest["graphs"]["train"]["outputs"]
                if output["role"] == "signal"}
        self.assertEqual(set(kept), set(dict(net.named_parameters())))
        self.assertFalse(kept["weight"] and kept["delta"])
        self.assert_trains_like(package, net, Sums.__call__, torch.randn(4, 4), torch.randn(4, 3))

    def test_a_package_of_wrong_code_is_not_written(self):
        """The trace forgets the factor 1/sqrt(width) of attention, as torch.export's own backward pass does."""
        trace = narrowcast_export._trace

        def wrong(step, name):
            graph = trace(step, name)
            for node in graph.graph.nodes:
                if "attention" in str(node.target) and "backward" in str(node.target):
                    node.kwargs = {**node.kwargs, "scale": 0.2}
            graph.recompile()
            return graph

        with mock.patch.object(narrowcast_export, "_trace", wrong), \
                self.assertRaisesRegex(narrowcast_export.ExportError, "^Gpt: the compiled graph train .* its gradients differ by"):
            self.export(Gpt(layers=1), tokens(4, 16, 40), "cross_entropy")
        self.assertEqual(list(self.path.parent.iterdir()), [])

    def test_a_former_package_stays_if_an_export_fails(self):
        self.path.write_text("former")
        with self.assertRaises(narrowcast_export.ExportError):
            self.export(nn.Linear(3, 2), (torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)), "cross_entropy")
        self.assertEqual(self.path.read_text(), "former")


if __name__ == "__main__":
    unittest.main()
