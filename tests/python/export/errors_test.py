"""narrowcast_export.export: what it refuses, with one error that says what to use instead."""
import pathlib
import random
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import narrowcast_export
from narrowcast_export import ExportError, export

EXAMPLE = (torch.randn(8, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, inputs):
        return self.layers(inputs)


def net(forward, **parts):
    """A module with another forward."""
    module = Net()
    for name, part in parts.items():
        setattr(module, name, part)
    kind = type("Net", (Net,), {"forward": forward})
    module.__class__ = kind
    return module


class Folder(unittest.TestCase):
    """A path for a package, which a test must not leave."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "net.pt2"
        self.addCleanup(lambda: self.assertEqual(list(self.path.parent.iterdir()), []))  # Runs first.


class Refused(Folder):
    def assert_refused(self, text, module, example=EXAMPLE, loss="cross_entropy", **options):
        with self.assertRaisesRegex(ExportError, text) as caught:
            export(module, example, loss, **{"path": self.path, **options})
        self.assertNotIn("\n", str(caught.exception))

    def test_arguments(self):
        self.assert_refused(r"^path: must end in \.pt2, but is net\.pt$", Net(), path="net.pt")
        self.assert_refused(r"^path: the folder /nowhere does not exist$", Net(), path="/nowhere/net.pt2")
        self.assert_refused(r"^loss: must be cross_entropy, mse, bce_with_logits, a function or None, but is 'nll'$", Net(), loss="nll")
        self.assert_refused(r"^label_smoothing: needs loss=\"cross_entropy\"$", Net(), loss="mse", label_smoothing=0.1)
        self.assert_refused(r"^label_smoothing: must be at least 0 and below 1, but is 1$", Net(), label_smoothing=1)
        self.assert_refused("^vocabulary: must contain single characters, each once", Net(), vocabulary=["a", "b", "cd"])
        self.assert_refused("^vocabulary: must contain single characters, each once", Net(), vocabulary=["a", "b", "a"])
        self.assert_refused("^vocabulary: has 2 characters, but the module returns 3 logits$", Net(), vocabulary=["a", "b"])
        self.assert_refused(r"^instruction_set: must be AVX512 or AVX2, but is 'SSE'$", Net(), instruction_set="SSE")
        self.assert_refused(r"^max_batch: must be above the example's batch of 8, but is 8$", Net(), max_batch=8)
        self.assert_refused(r"^loss: has parameters, which would not be trained; call it in the module's forward",
                            Net(), loss=nn.Bilinear(3, 3, 1))

    def test_examples(self):
        inputs, targets = EXAMPLE
        self.assert_refused("^example: must be a pair of tensors.*; if the module takes more inputs, concatenate them", Net(),
                            example=(inputs, inputs, targets))
        self.assert_refused("^example: the inputs are torch.float64, but must be one of torch.float32, torch.uint8", Net(),
                            example=(inputs.double(), targets))
        self.assert_refused("^example: the targets are torch.int32, but", Net(), example=(inputs, targets.int()))
        self.assert_refused(r"^example: the inputs have the shape \[1, 5\], but must have 2 samples", Net(),
                            example=(inputs[:1], targets[:1]))
        self.assert_refused("^example: has inputs of 8 samples, but targets of 7$", Net(), example=(inputs, targets[:7]))
        self.assert_refused("^Net: cross_entropy needs int64 classes as targets", Net(), example=(inputs, targets.float()))
        self.assert_refused(r"^Net: its forward must return one number per target, but returns \[8, 3\] for targets of shape \[8\]$",
                            Net(), loss="mse")
        self.assert_refused(r"^Net: its forward or backward pass fails on the example, before the export: .*8x4 and 5x7", Net(),
                            example=(inputs[:, :4], targets))

    def test_modules(self):
        self.assert_refused("^RecursiveScriptModule: is a TorchScript module; export the module of Python", torch.jit.script(Net()))
        self.assert_refused(r"^Net: its forward must take \(inputs\), but is forward\(a, b\); wrap it",
                            net(lambda self, a, b: a))
        self.assert_refused(r"must take \(inputs, targets\) and return the loss, since loss is None, but is forward\(inputs\); wrap",
                            Net(), loss=None)
        self.assert_refused("^Net: its forward must return one real tensor, but returns dict; wrap it in a module",
                            net(lambda self, inputs: {"logits": self.layers(inputs)}))
        self.assert_refused(r"^Net: its loss must be one real number, the mean over the batch, but is torch.float32 \[8\]$",
                            net(lambda self, inputs, targets: self.layers(inputs)[:, 0]), loss=None)
        self.assert_refused("^Net: its loss depends on no parameter that requires a gradient$",
                            net(lambda self, inputs: inputs[:, :3]))
        self.assert_refused("^Net: none of its 6 parameters requires a gradient: there is nothing to train$",
                            Net().requires_grad_(False))

    def test_parameters(self):
        self.assert_refused(r"^Net: parameter 'layers.0.weight' is torch.float64, but must be float32.*; use module.float\(\)$",
                            Net().double())
        self.assert_refused("^Net: buffer 'wave' is torch.complex64, .*; use dense, real tensors, for example torch.view_as_real",
                            net(Net.forward, wave=nn.Buffer(torch.ones(3, dtype=torch.complex64))))
        module = Net()
        module.first_row = nn.Buffer(module.layers[0].weight.detach()[0])
        self.assert_refused("^Net: buffer 'first_row' shares the memory of 'layers.0.weight' without being the same tensor; assign",
                            module)
        def grows(self, inputs):
            self.seen = torch.cat([self.seen, inputs[0]])
            return self.layers(inputs)

        self.assert_refused(r"^Net: buffer 'seen' is torch.float32 \[2\], but after a step torch.float32 \[7\]; buffers must keep",
                            net(grows, seen=nn.Buffer(torch.zeros(2))))
        module = Net()
        module.last = module(EXAMPLE[0])
        self.assert_refused("^Net: cannot be copied: .*; assign no results of forward to its attributes$", module)
        self.assert_refused("^Net: parameter 'table.weight' gets sparse gradients, .*; create its embedding with sparse=False$",
                            net(lambda self, inputs: self.table(inputs), table=nn.Embedding(9, 3, sparse=True)),
                            example=(torch.arange(8), EXAMPLE[1]))

    def test_code(self):
        def branches(self, inputs):
            return self.layers(inputs if inputs.sum() > 0 else -inputs)

        def reads(self, inputs):
            return self.layers(inputs) * inputs.max().item()

        def counts(self, inputs):
            return self.layers(inputs * (2 if inputs.shape[0] > 6 else 1))

        for forward in (branches, reads):
            self.assert_refused(r"^Net: its code depends on the values of tensors .*; use torch.where or masks instead of if, while "
                                r"and item\(\), or train the module with TorchScript: torch.jit.script\(module\).save\(\"net.pt\"\)$",
                                net(forward))
        self.assert_refused(r"^Net: its code depends on the batch size: .* holds for the example, but not for a batch of 2; use code",
                            net(counts))
        self.assert_refused(r"^Net: its code depends on the batch size: .* holds for the example, but not for a batch of 3001; use code",
                            net(lambda self, inputs: self.layers(inputs * (2 if inputs.shape[0] > 3000 else 1))))

    def test_losses(self):
        class Counts(nn.CrossEntropyLoss):
            def __init__(self):
                super().__init__(weight=torch.ones(3))
                self.count = nn.Buffer(torch.zeros(()))

            def forward(self, outputs, targets):
                self.count += 1
                return super().forward(outputs, targets)

        class Averages:
            mean = torch.zeros(())

            def __call__(self, outputs, targets):
                self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean()
                return nn.functional.cross_entropy(outputs, targets) * self.mean

        counts, averages = Counts(), Averages()
        self.assert_refused(r"^loss: changes its buffer 'count', which would not be saved; call it in the module's forward\(inputs, "
                            r"targets\), and give loss=None$", Net(), loss=counts)
        self.assert_refused("^loss: keeps a tensor in the attribute 'mean', which would not be saved; register it as a buffer of the "
                            "module, and call it", Net(), loss=averages)
        self.assertTrue(counts.count == 0 and counts.training and averages.mean is Averages.mean)
        targets = EXAMPLE[1].clone()
        targets[2] = -100
        self.assert_refused('^loss: "cross_entropy" takes no targets below 0, but the example has -100; compute the loss in the module',
                            Net(), example=(EXAMPLE[0], targets))

    def test_layers(self):
        self.assert_refused(r"^Net: 'layers.0.weight' has no shape before the first forward pass; call module\(inputs\) once",
                            net(Net.forward, layers=nn.Sequential(nn.LazyLinear(3))))
        for name in ("weight_norm", "spectral_norm"):
            module = Net()
            getattr(nn.utils, name)(module.layers[3])
            self.assert_refused(fr"^Net: layer 'layers.3' has torch.nn.utils.{name}, .*; use torch.nn.utils.parametrizations.{name}$", module)
        module = Net()
        module.layers[1].momentum = None
        self.assert_refused("^Net: layer 'layers.1' is a BatchNorm1d with momentum=None, whose code depends on the number of steps; give",
                            module)

    def test_attributes(self):
        def averages(self, inputs):
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
            return self.layers(inputs - self.mean)

        module = net(averages)
        module.mean = torch.zeros(5)
        self.assert_refused("^Net: its forward keeps a tensor in the attribute 'mean'; register it as a buffer", module)

    def test_operators(self):
        with torch.library._scoped_library("export_test", "DEF") as library:
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x * 2, "CPU")
            library.impl("twice", lambda x: x * 2, "Meta")
            self.assert_refused("^Net: it calls the operator export_test.twice.default, which LibTorch does not contain; use",
                                net(lambda self, inputs: self.layers(torch.ops.export_test.twice(inputs))))

    def test_changes_in_place(self):
        def scales(self, inputs):
            return self.layers(inputs.div_(2))

        def clamps(self, inputs):
            self.layers[0].weight.data.clamp_(-0.1, 0.1)
            return self.layers(inputs)

        before = EXAMPLE[0].clone()
        self.assert_refused("^Net: its forward changes the inputs in place; clone them first$", net(scales))
        self.assertTrue(EXAMPLE[0].equal(before))
        self.assert_refused("^Net: its forward changes parameter 'layers.0.weight' in place; register it as a buffer", net(clamps))

    def test_what_an_export_would_lose(self):
        module = Net()
        module.layers[0].weight.register_hook(lambda gradient: gradient * 2)
        self.assert_refused("^Net: parameter 'layers.0.weight' has a gradient hook, which would not be exported; multiply", module)
        module = Net()
        module.layers[1].eval()
        self.assert_refused(r"^Net: some of its layers are in evaluation mode and others are not, .*; to keep .*override train\(\)",
                            module)
        state = random.getstate()
        self.assert_refused("^Net: it draws numbers from Python's random, which an export would freeze; use torch.rand and torch.where$",
                            net(lambda self, inputs: self.layers(inputs) * (1 if random.random() < 2 else 0)))
        self.assertEqual(random.getstate(), state)

    def test_toolchain(self):
        with mock.patch.dict("os.environ", CXX="/no/g++"), mock.patch("torch._inductor.config.cpp.cxx", ("/no/g++",)):
            self.assert_refused(r"^no C\+\+ compiler: /no/g\+\+ does not run; install g\+\+ 11 or newer, or set CXX$", Net())
        with mock.patch("sysconfig.get_path", return_value="/no/include"):
            self.assert_refused("^no headers of Python: /no/include/Python.h is missing; install them", Net())


class WrongResults(Folder):
    """The check, on traced graphs instead of compiled ones."""

    def export_with(self, change, module=None, reported=None, loss="cross_entropy", **options):
        """Exports a module whose graphs return what change(name, outputs) makes of their outputs. Returns the manifest that
        would be written."""
        graphs = {}

        def keep(step, name, graph, path, *options):
            del step, options
            graphs[path.stem] = lambda tensors: report(change(name, list(graph(*tensors))))

        def report(outputs):
            """The gradients that the graph reports are those that it returns, unless `reported` changes them."""
            heard = narrowcast_export._heard
            for number in heard or {}:
                heard[number] = (reported or (lambda gradient: (gradient, gradient.clone())))(outputs[1 + number])
            return outputs

        torch.manual_seed(0)
        with mock.patch.object(narrowcast_export, "_compile", keep), \
                mock.patch.object(narrowcast_export, "_runner", lambda path, name: graphs[path.stem]), \
                mock.patch.object(narrowcast_export, "_write", lambda path, *rest: path.touch()):
            return export(module or Net(), EXAMPLE, loss, self.path, **options)

    def changed(self, graph, index, change):
        def apply(name, outputs):
            if name == graph:
                outputs[index] = change(outputs[index])
            return outputs

        return apply

    def test_right_graphs_are_accepted(self):
        manifest = self.export_with(lambda name, outputs: outputs)
        self.path.unlink()
        self.assertEqual(manifest["checked"]["tolerance"], 1e-5)
        self.assertEqual(manifest["checked"]["gradients_float32"], 0)  # They are the same operators.
        self.assertLess(manifest["checked"]["gradients_float64"], 3e-6)

    def test_wrong_gradients(self):
        wrong = self.changed("train", 1, lambda gradient: gradient * 1.001)
        with self.assertRaisesRegex(ExportError, r"^Net: the compiled graph train differs from eager PyTorch on a batch of 8: its gradients "
                                    r"differ by ([1-9]\.\de-04) of their norm from float64 and by \1 from float32, and the tolerance is "
                                    r"1e-05 \(eager float32 differs from float64 by \d\.\de-0[678]\); no package is written\."):
            self.export_with(wrong)
        self.export_with(wrong, tolerance=2e-3)
        self.path.unlink()

    def test_a_layer_that_torch_compile_has_compiled(self):
        module = Net()
        module.layers[0] = torch.compile(module.layers[0])
        manifest = self.export_with(lambda name, outputs: outputs, module)
        self.path.unlink()
        self.assertIn("layers.0._orig_mod.weight", [entry["name"] for entry in manifest["state"]])

    def test_the_cause_of_large_differences(self):
        for factor, text in ((1.002, "is written. If the module is deep and has ReLUs or batch norms, try another example, or give"),
                             (1.5, "is written; such a difference is not rounding, so that the compiled code is wrong$")):
            with self.assertRaisesRegex(ExportError, text):
                self.export_with(self.changed("train", 1, lambda gradient, factor=factor: gradient * factor))
        with self.assertRaisesRegex(ExportError, "is not rounding. .* twice if a dropout is inside of torch.utils.checkpoint: call its"):
            self.export_with(lambda name, outputs: outputs, net(
                lambda self, inputs: checkpoint(self.dropout, self.layers(inputs), use_reentrant=False),
                dropout=nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3))))

    def test_the_mode_of_a_loss(self):
        """Its dropout draws in the training step only, and the given loss stays as it is."""
        class Drops(nn.CrossEntropyLoss):
            def forward(self, outputs, targets):
                return super().forward(nn.functional.dropout(outputs, 0.5, self.training), targets)

        loss = Drops(weight=torch.tensor([1., 2., 3.]))
        manifest = self.export_with(lambda name, outputs: outputs, loss=loss)
        self.path.unlink()
        self.assertEqual({name: graph["random"] for name, graph in manifest["graphs"].items()}, {"train": True, "evaluate": False})
        self.assertTrue(loss.training and type(loss.weight) is torch.Tensor)

    def test_a_wrong_gradient_that_is_small_beside_the_others(self):
        # A batch norm subtracts the bias (output 2): its gradient is only rounding errors.
        self.export_with(self.changed("train", 2, lambda gradient: gradient * 2))
        self.path.unlink()
        with self.assertRaisesRegex(ExportError, r"gradient of 'layers.0.bias' differs by 1\.\de-05 from float64"):
            self.export_with(self.changed("train", 2, lambda gradient: gradient + 1e-5 / 7**0.5), tolerance=1e-4)

    def test_other_wrong_results(self):
        for graph, index, change, text in (
                ("train", 0, lambda loss: loss * 1.001, "train .*: loss differs by"),
                ("train", 7, lambda mean: mean + 1e-3, "train .*: buffer 'layers.1.running_mean' differs by"),
                ("train", 9, lambda count: count + 1, "train .*: buffer 'layers.1.num_batches_tracked' is not equal"),
                ("train", 4, lambda gradient: gradient[:6], "train .* in the shapes of its results"),
                ("train", 1, lambda gradient: gradient * float("nan"), "its gradients differ by nan of their norm"),
                ("evaluate", 1, lambda logits: logits * 1.001, "evaluate .*: outputs differs by")):
            with self.subTest(text=text), self.assertRaisesRegex(ExportError, text):
                self.export_with(self.changed(graph, index, change))

    def test_reported_gradients(self):
        with self.assertRaisesRegex(ExportError, "train .*: it reports another gradient of 'layers.*' than it returns"):
            self.export_with(lambda name, outputs: outputs, reported=lambda gradient: (gradient, gradient + 1e-9))
        for reused in (False, True):
            manifest = self.export_with(lambda name, outputs: outputs,
                                        reported=lambda gradient, reused=reused: (gradient + reused, gradient.clone()))
            self.path.unlink()
            signals = [output for output in manifest["graphs"]["train"]["outputs"] if output["role"] == "signal"]
            self.assertEqual({output["kept"] for output in signals}, {not reused})

    def test_a_graph_that_is_wrong_for_other_batch_sizes(self):
        def apply(name, outputs):
            if name == "evaluate" and outputs[1].size(0) != 8:
                outputs[1] = outputs[1] * 1.001
            return outputs

        with self.assertRaisesRegex(ExportError, "evaluate .* on a batch of 17: outputs differs by"):
            self.export_with(apply)

    def test_buffers_assigned_from_others(self):
        def remembers(self, inputs):
            if self.training:
                self.previous = self.current
                self.current = 0.9 * self.current + 0.1 * inputs.mean(0)
            return self.layers(inputs)

        module = net(remembers, previous=nn.Buffer(torch.zeros(5)), current=nn.Buffer(torch.ones(5)))
        outputs = self.export_with(lambda name, outputs: outputs, module)["graphs"]["train"]["outputs"]
        self.path.unlink()
        self.assertLess({"previous", "current"}, {entry["name"] for entry in outputs if entry["role"] == "buffer"})

    def test_buffers_that_change_unseen(self):
        def hides(self, inputs):
            self.table.data = inputs.detach().mean(0)
            return self.layers(inputs)

        with self.assertRaisesRegex(ExportError, "^Net: buffer 'table' changes in a training step in eager PyTorch, but not in the graph"):
            self.export_with(lambda name, outputs: outputs, net(hides, table=nn.Buffer(torch.zeros(5))))

    def test_a_wrong_gradient_that_is_zero_at_first(self):
        module = Net()
        nn.init.zeros_(module.layers[3].weight)
        with self.assertRaisesRegex(ExportError, "train .* on a batch of 17: its gradients differ by"):
            self.export_with(self.changed("train", 1, lambda gradient: gradient * 1.5), module)

    def test_the_hash_is_that_of_the_computation(self):
        def hashed(value, checked):
            module = net(lambda self, inputs: self.layers(inputs * self.constant))
            module.load_state_dict(first.state_dict())
            module.constant = torch.full((5,), value)
            with mock.patch.object(narrowcast_export, "_check", lambda *arguments: {"gradients_float64": checked}):
                manifest = self.export_with(lambda name, outputs: outputs, module)
            self.path.unlink()
            return manifest["hash"]

        first = Net()
        self.assertEqual(hashed(2.0, 0.1), hashed(2.0, 0.2))
        self.assertNotEqual(hashed(2.0, 0.1), hashed(3.0, 0.1))

    def test_a_wrong_trace(self):
        trace = narrowcast_export._trace

        def wrong(step, name):
            graph = trace(step, name)
            for node in graph.graph.nodes:
                if node.target == torch.ops.aten.tanh_backward.default:
                    node.target = torch.ops.aten.sigmoid_backward.default
            graph.recompile()
            return graph

        with mock.patch.object(narrowcast_export, "_trace", wrong), self.assertRaisesRegex(ExportError, "its gradients differ by"):
            self.export_with(lambda name, outputs: outputs)


if __name__ == "__main__":
    unittest.main()
