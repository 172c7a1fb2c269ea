"""A package, read without functions of narrowcast_export.py, beside the module in eager PyTorch."""
import ctypes
import json
import os
import shutil
import sysconfig
import unittest
import zipfile

import safetensors.torch
import torch

import narrowcast_export  # noqa: F401  Defines the operator narrowcast::gradient_ready.


def skip_without_compiler(test):
    """Skips a test that compiles."""
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        test.skipTest(f"no C++ compiler: {compiler} is not found")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        test.skipTest("no headers of Python")


class Package:
    def __init__(self, path):
        self.path = str(path)
        library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # Compiled code takes its symbols from the program.
        self.manifest = json.loads(self.metadata("train")["narrowcast"])
        self.graphs = {name: torch._C._aoti.AOTIModelPackageLoader(self.path, name, False, 1, -1)
                       for name in ("train", "evaluate")}
        self.state = self.weights()

    def metadata(self, graph):
        return torch._C._aoti.AOTIModelPackageLoader.load_metadata_from_package(self.path, graph)

    def record(self, name):
        with zipfile.ZipFile(self.path) as archive:
            (found,) = [each for each in archive.namelist() if each.partition("/")[2] == name]
            return archive.read(found)

    def weights(self):
        return safetensors.torch.load(self.record(self.manifest["weights"]["record"]))

    def run(self, graph, inputs, targets):
        """The outputs with the state as it is: of each role a dictionary by name, or a tensor."""
        tensors = [self.state[entry["name"]] for entry in self.manifest["state"]]
        outputs = self.graphs[graph].boxed_run([*tensors, inputs, targets])
        entries = self.manifest["graphs"][graph]["outputs"]
        assert len(outputs) == len(entries), (len(outputs), entries)
        results = {"gradient": {}, "buffer": {}, "signal": {}}
        for entry, output in zip(entries, outputs):
            if "name" in entry:
                results[entry["role"]][entry["name"]] = output
            else:
                results[entry["role"]] = output
        return results

    def train(self, batches, learning_rate=1e-2):
        """The losses of a training with AdamW."""
        trained = [entry["name"] for entry in self.manifest["state"] if entry["role"] == "trained"]
        optimizer = torch.optim.AdamW([self.state[name] for name in trained], lr=learning_rate)
        losses = []
        for inputs, targets in batches:
            results = self.run("train", inputs, targets)
            for name in trained:
                self.state[name].grad = results["gradient"][name]
            optimizer.step()
            for name, value in results["buffer"].items():
                self.state[name].copy_(value)
            losses.append(results["loss"].item())
        return losses


class PackageTestCase(unittest.TestCase):
    def assert_close(self, actual, expected, name, tolerance=1e-5, scale=None):
        """Within `tolerance` of the expected tensor's norm, or of `scale`. Other numbers than floats are equal."""
        self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape), name)
        if not actual.is_floating_point():
            self.assertTrue(actual.equal(expected), name)
            return
        error = (actual.double() - expected.double()).norm().item()
        self.assertLessEqual(error, tolerance * max(expected.norm().item(), scale or 0), name)

    def assert_trains_like(self, package, module, loss, inputs, targets, tolerance=1e-5):
        """The results of one training step are those of `module`, with its weights, in eager PyTorch. loss(module, inputs,
        targets). Updates the buffers of both."""
        torch.manual_seed(3)
        results = package.run("train", inputs, targets)
        module.train().zero_grad()
        torch.manual_seed(3)
        expected = loss(module, inputs, targets)
        expected.backward()
        self.assert_close(results["loss"], expected.detach(), "loss", tolerance)
        parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.assertEqual(list(results["gradient"]), list(parameters))
        gradients = {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in parameters.items()}
        # A gradient may consist of rounding errors: errors count relative to all gradients.
        norm = torch.stack([each.norm() for each in gradients.values()]).norm().item()
        for name, gradient in gradients.items():
            self.assert_close(results["gradient"][name], gradient, name, tolerance, scale=norm)
        buffers = dict(module.named_buffers())
        for name, value in results["buffer"].items():
            package.state[name].copy_(value)
        for name, buffer in buffers.items():
            self.assert_close(package.state[name], buffer, name, tolerance)
        return results

    def assert_evaluates_like(self, package, module, loss, inputs, targets, tolerance=1e-5):
        results = package.run("evaluate", inputs, targets)
        with torch.no_grad():
            self.assert_close(results["loss"], loss(module.eval(), inputs, targets), "loss", tolerance)
            if "outputs" in results:
                self.assert_close(results["outputs"], module(inputs), "outputs", tolerance)
        return results
