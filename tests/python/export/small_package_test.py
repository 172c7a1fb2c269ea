"""narrowcast_export.export: one small package, its results, its manifest, its files."""
import copy
import hashlib
import json
import pathlib
import subprocess
import tempfile
import unittest

import torch
from torch.nn.functional import cross_entropy

import narrowcast_export
from export.modules import Small
from export.packages import Package, PackageTestCase, skip_without_compiler


def smoothed(module, inputs, targets):
    return cross_entropy(module(inputs), targets, label_smoothing=0.1 if module.training else 0)


def batch(size, seed=0):
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 2, (size, 6), generator=random).to(torch.uint8)
    return inputs, inputs[:, 0].long() + 2 * inputs[:, 1]


class SmallPackage(PackageTestCase):
    @classmethod
    def setUpClass(cls):
        skip_without_compiler(cls)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name) / "small.pt2"
        torch.manual_seed(0)
        cls.module = Small().eval()
        before, random = copy.deepcopy(cls.module.state_dict()), torch.get_rng_state()
        cls.returned = narrowcast_export.export(cls.module, batch(12), "cross_entropy", cls.path, label_smoothing=0.1,
                                                vocabulary=["a", "b", "c", "d"], instruction_set="AVX2")
        cls.is_unchanged = (torch.get_rng_state().equal(random) and not cls.module.training
                            and all(value.equal(before[name]) for name, value in cls.module.state_dict().items()))

    @classmethod
    def skipTest(cls, reason):
        raise unittest.SkipTest(reason)

    def setUp(self):
        self.package, self.net = Package(self.path), copy.deepcopy(self.module)

    def test_steps_are_those_of_eager_pytorch(self):
        for size in (12, 5, 2, 40):
            self.assert_trains_like(self.package, self.net, smoothed, *batch(size, seed=size))
            self.assert_evaluates_like(self.package, self.net, smoothed, *batch(size, seed=size))
        self.assertEqual(self.package.state["steps"], 4)
        self.assert_evaluates_like(self.package, self.net, smoothed, *batch(1))

    def test_any_number_of_threads(self):
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for size in (3, 300):
                self.assert_trains_like(self.package, self.net, smoothed, *batch(size))
                self.assert_evaluates_like(self.package, self.net, smoothed, *batch(size))

    def test_dropout_follows_the_generator(self):
        first, second, third = [], [], []
        for seed, losses in ((1, first), (1, second), (2, third)):
            torch.manual_seed(seed)
            losses.extend(self.package.run("train", *batch(12))["loss"] for _ in range(3))
        self.assertEqual(first, second)
        self.assertNotEqual(first, third)
        self.assertNotEqual(first[0], first[1])

    def test_a_training(self):
        losses = self.package.train([batch(32, seed) for seed in range(150)])
        self.assertLess(sum(losses[-10:]), 0.8 * sum(losses[:10]))

    def test_manifest(self):
        manifest = self.package.manifest
        self.assertEqual(manifest, self.returned)
        self.assertEqual(manifest, json.loads(self.package.metadata("evaluate")["narrowcast"]))
        self.assertEqual(self.package.metadata("train")["AOTI_CPU_ISA"], "AVX2")
        fixed = {"format": 1, "module": "Small", "torch": torch.__version__, "device": "cpu", "machine": "x86_64",
                 "instruction_set": "AVX2", "threads": None, "loss": "cross_entropy", "label_smoothing": 0.1, "vocabulary": ["a", "b", "c", "d"],
                 "inputs": {"shape": ["batch", 6], "dtype": "U8", "ranges": []},
                 "targets": {"shape": ["batch"], "dtype": "I64",
                             "ranges": [{"least": 0, "most": 3, "ignored": -100, "slices": []}]},
                 "tied": {"again.weight": "middle.weight"}}
        self.assertEqual({key: manifest[key] for key in fixed}, fixed)
        state = {entry.pop("name"): entry for entry in manifest["state"]}
        self.assertEqual(list(state), [*dict(self.net.named_parameters()), *dict(self.net.named_buffers())])
        self.assertEqual(state["first.weight"], {"role": "trained", "shape": [12, 6], "dtype": "F32", "unused": False})
        self.assertEqual(state["spare"], {"role": "trained", "shape": [3], "dtype": "F32", "unused": True})
        self.assertEqual(state["scale"], {"role": "frozen", "shape": [], "dtype": "F32"})
        self.assertEqual(state["steps"], {"role": "buffer", "shape": [], "dtype": "I64", "persistent": True})
        self.assertEqual(state["mask"], {"role": "buffer", "shape": [12], "dtype": "BOOL", "persistent": False})
        trained = [name for name, entry in state.items() if entry["role"] == "trained"]
        buffers = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "steps", "average"]
        buffers.sort(key=list(state).index)
        outputs = [("loss", None), *(("gradient", name) for name in trained), *(("buffer", name) for name in buffers)]
        entries = [(entry["role"], entry.get("name")) for entry in manifest["graphs"]["train"]["outputs"]]
        self.assertEqual(entries[:len(outputs)], outputs)
        self.assertEqual(sorted(entries[len(outputs):]), sorted(("signal", name) for name in trained if name != "spare"))
        self.assertEqual(manifest["graphs"]["evaluate"]["outputs"],
                         [{"role": "loss"}, {"role": "outputs", "shape": ["batch", 4], "dtype": "F32"}])
        self.assertEqual([graph["random"] for graph in manifest["graphs"].values()], [True, False])
        # A batch norm cannot train on one sample.
        self.assertEqual([graph["batch"] for graph in manifest["graphs"].values()],
                         [{"min": 2, "max": 65536}, {"min": 1, "max": 65536}])

    def test_gradients_are_reported_as_the_backward_pass_makes_them(self):
        order = [entry["name"] for entry in self.package.manifest["graphs"]["train"]["outputs"] if entry["role"] == "signal"]
        seen = []
        for name, parameter in self.net.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
        smoothed(self.net.train(), *batch(12)).backward()
        self.assertEqual([name.partition(".")[0] for name in order], [name.partition(".")[0] for name in seen])

    def test_weights(self):
        content = self.package.record("narrowcast/weights.safetensors")
        self.assertEqual(self.package.manifest["weights"], {"record": "narrowcast/weights.safetensors", "bytes": len(content),
                                                            "sha256": hashlib.sha256(content).hexdigest()})
        weights = self.package.weights()
        expected = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        self.assertEqual(weights.keys(), expected.keys())
        for name, value in expected.items():
            self.assertTrue(weights[name].equal(value.detach()), name)

    def test_the_module_and_the_generator_are_unchanged(self):
        self.assertTrue(self.is_unchanged)
        self.assertEqual([each.name for each in self.path.parent.iterdir()], ["small.pt2"])

    def test_the_code_links_neither_torch_nor_python(self):
        archive = self.package.path
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["python3", "-m", "zipfile", "-e", archive, folder], check=True)
            libraries = list(pathlib.Path(folder).glob("*/data/aotinductor/*/*.so"))
            self.assertEqual(len(libraries), 2)
            for library in libraries:
                dynamic = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
                needed = {line.split()[1].partition(".")[0] for line in dynamic.splitlines() if "NEEDED" in line}
                self.assertLessEqual(needed, {"libstdc++", "libm", "libgcc_s", "libc", "libgomp", "ld-linux-x86-64"})
                code = subprocess.run(["objdump", "-d", library], check=True, capture_output=True, text=True).stdout
                self.assertIn("%ymm", code)
                self.assertNotIn("%zmm", code)


if __name__ == "__main__":
    unittest.main()
