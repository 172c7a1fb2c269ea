"""docs/guide/your-model.md and write-data.md: runs every block, one after another, in one folder; and the walks of the
second page on two nodes."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = "".join((DOCS / "guide" / page).read_text(encoding="utf-8") for page in ("your-model.md", "write-data.md"))
REFERENCE = (DOCS / "reference" / "modules.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
# The documents' lines for two machines, and the command whose remainder "..." stands for.
LINES_OF_NODES = re.findall(r"^    (narrowcast-run --nnodes=2 .*) \.\.\.$", DOCUMENT, re.MULTILINE)
TRAINS = "narrowcast-train --model=ring.pt"
# The module of each walk, and the bound of its final validation loss. Points and initial weights differ in each run.
# For the first walk the bound is half of the loss of guessing, ln 2. The loss of guessing is ln 256 = 5.5 in the second
# walk and, with 0 for every point, 0.5 in the third.
WALKS = {"ring": 0.35, "language": 4.0, "curve": 0.05}
PROGRAMS = os.path.dirname(os.environ["NARROWCAST_TRAIN"])


def idx_images(count):
    """Images of 28 x 28 whose digit is the number of a bright row, and their labels."""
    digits = [image % 10 for image in range(count)]
    pixels = b"".join(bytes(200 if pixel // 56 == digit else pixel % 7 for pixel in range(784)) for digit in digits)
    sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
    return b"\0\0\x08\x03" + sizes + pixels, b"\0\0\x08\x01" + sizes[:4] + bytes(digits)


def write_mnist(folder):
    folder.mkdir()
    for part, count in (("train", 300), ("t10k", 60)):
        images, labels = idx_images(count)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def own_address():
    """This machine's address for other machines, or None. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("10.0.0.1", 9))
        except OSError:
            return None
        return route.getsockname()[0]


class YourModel(unittest.TestCase):
    """All tests use one folder, and the files that Python blocks write are made once: torch takes seconds to import."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        write_mnist(cls.folder / "mnist")
        shutil.copy(DOCS.parent / "data" / "tinyshakespeare.txt", cls.folder / "book.txt")
        paths = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        cls.environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")} | paths

    def run_block(self, language, text):
        """A Python block is a file, named in its first line. Runs it unless it has run."""
        command = ["bash", "-e", "-c", text]
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)[1]
            if (self.folder / name).exists():
                self.assertEqual((self.folder / name).read_text(), text)
                return ""
            (self.folder / name).write_text(text)
            command = [sys.executable, name]
        result = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, text + result.stdout + result.stderr)
        return result.stdout

    def test_blocks_run(self):
        walks = 3 * ["python", "python", "sh"]
        self.assertEqual([language for language, _ in BLOCKS], ["python", "sh", "python", "python", "sh", *walks])
        printed = [self.run_block(language, text) for language, text in BLOCKS]
        accuracies = re.findall(r"accuracy +(\S+)", printed[1])
        self.assertEqual(len(accuracies), 2, "of the training and of the evaluation")
        self.assertEqual(accuracies[0], accuracies[1])
        self.assertGreater(float(accuracies[0]), 0.5)
        rings, languages, curves = (re.findall(r"validation loss +(\S+)", printed[block]) for block in (7, 10, 13))
        self.assertEqual(len(languages), 2)
        for losses, bound in zip((rings, languages, curves), WALKS.values()):
            self.assertLess(float(losses[0]), bound)
        for run in ("net", "smooth", "ring", "language", "curve"):
            files = {path.name for path in (self.folder / "runs" / run).iterdir()}
            self.assertEqual(files, {"model.pt", "model.safetensors", "metrics.jsonl"})

    def test_buffers_that_the_class_does_not_save(self):
        """Loads the weights of save_file(net.state_dict()) as FILE, and loads them back with the call that the reference
        names."""
        call = re.search(r"`(net\.load_state_dict\(trained\.state_dict\(\), strict=False\))`", REFERENCE)[1]
        self.run_block("python", "# rotary.py\n" + textwrap.dedent("""
            import torch
            from safetensors.torch import save_file
            from torch import nn

            class Rotary(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(784, 10)
                    self.register_buffer("angles", torch.linspace(0, 1, 10), persistent=False)

                def forward(self, images):
                    return self.layer(images.flatten(1).float() / 255) * torch.cos(self.angles)

            if __name__ == "__main__":
                net = Rotary()
                torch.jit.script(net).save("rotary.pt")
                save_file(net.state_dict(), "weights.safetensors")
            """))
        train = "narrowcast-train --model=rotary.pt --loss=cross_entropy --data=mnist --steps=4 --init_from=weights.safetensors"
        lines = self.run_block("sh", f"{train} --output_dir=rotary 2>&1")
        self.assertIn("warning: init_from: weights.safetensors lacks the buffer 'angles': the values in rotary.pt are kept\n",
                      lines)
        self.run_block("python", "# back.py\n" + textwrap.dedent(f"""
            import torch
            from rotary import Rotary
            from safetensors.torch import load_file

            trained = torch.jit.load("rotary/model.pt")
            net = Rotary()
            keys = {call}
            assert keys.missing_keys == [] and keys.unexpected_keys == ["angles"], keys
            assert torch.equal(net.layer.weight, load_file("rotary/model.safetensors")["layer.weight"])
            assert torch.equal(net.angles, trained.angles)
            """))

    def start_node(self, line, address, port):
        """Runs one of the document's lines, with this machine in place of both, and a free port."""
        place = f"--master_addr={address} --master_port={port}"
        command = ["bash", "-e", "-c", "exec " + re.sub(r"--master_addr=\S+", place, line)]
        node = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        self.addCleanup(node.stdout.close)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        return node

    def test_the_walks_on_two_nodes(self):
        """The document's lines belong to its first walk; the other walks differ in the module and its options."""
        address = own_address()
        if not address:
            self.skipTest("this machine has no address but its loopback's, which a job on several nodes refuses")
        for module, bound in WALKS.items():
            with self.subTest(module=module):
                self.walk_on_two_nodes(module, bound, address)

    def walk_on_two_nodes(self, module, bound, address):
        trains = TRAINS.replace("ring", module)
        walk = next(index for index, (_, text) in enumerate(BLOCKS) if trains in text)
        for language, text in BLOCKS[walk - 2:walk]:
            self.run_block(language, text)
        shutil.rmtree(self.folder / "runs" / module, ignore_errors=True)
        rest = re.match(r"(.*\\\n)*.*", BLOCKS[walk][1].partition(trains)[2])[0]  # The rest of this command only.
        lines = [line.replace(TRAINS, trains) + rest for line in LINES_OF_NODES if line.endswith(TRAINS)]
        self.assertEqual([re.search(r"--node_rank=(\d) ", line)[1] for line in lines], ["0", "1"])
        with socket.create_server((address, 0)) as free:
            port = free.getsockname()[1]
        nodes = [self.start_node(line, address, port) for line in lines]
        printed = [node.communicate()[0] for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0], printed)
        losses = re.findall(r"validation loss +(\S+)", printed[0])
        self.assertLess(float(losses[0]), bound)  # As on one machine: the number of ranks only changes the speed.
        plan = json.loads((self.folder / "runs" / module / "metrics.jsonl").read_text().splitlines()[0])
        self.assertEqual(plan["ranks"], 4)


if __name__ == "__main__":
    unittest.main()
