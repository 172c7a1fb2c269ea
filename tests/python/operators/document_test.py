"""docs/reference/operators.md lists every operator with its registered schema. Its Python examples run, and so do those of
docs/guide/operators.md."""
import importlib.util
import os
import pathlib
import re
import tempfile
import unittest

import torch
import torch.distributed as dist

from support.exact import ops, registered_operators

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = (DOCS / "reference" / "operators.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "guide" / "operators.md").read_text(encoding="utf-8")
PROLOGUE = "from typing import List, Tuple\nimport torch\nimport torch.distributed as dist\n"


def examples(language, document=DOCUMENT):
    return re.findall(rf"^```{language}\n(.*?)^```", document, re.MULTILINE | re.DOTALL)


def run(source):
    """Runs the source from a file: TorchScript reads a function's source there."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        file.write(PROLOGUE + source)
        file.flush()
        spec = importlib.util.spec_from_file_location("example", file.name)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class Document(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def test_has_an_entry_for_every_operator(self):
        self.assertEqual(set(re.findall(r"^### `(\w+)`$", DOCUMENT, re.MULTILINE)), registered_operators())

    def test_shows_the_registered_schemas(self):
        for name in registered_operators():
            with self.subTest(operator=name):
                schema = str(getattr(ops, name).default._schema).removeprefix("narrowcast::")
                self.assertIn(f"### `{name}`\n\n    {schema}\n", DOCUMENT)

    def test_shows_every_operator_in_both_languages(self):
        python = "".join(examples("python"))
        cpp = "".join(examples("cpp"))
        for name in registered_operators():
            self.assertIn(f"narrowcast.{name}(", python)
            self.assertRegex(cpp, rf"\b{name.replace('auto_quantize_', 'collectives::')}\b")

    def test_examples_run(self):
        self.assertGreater(len(examples("python")), 3)
        for example in examples("python"):
            with self.subTest(example=example.splitlines()[1]):
                run(example)

    def test_the_example_of_the_guide_runs(self):
        (example,) = examples("python", GUIDE)
        library = "build/release/lib/libnarrowcast_ops.so"
        self.assertIn(library, example)
        run(example.replace(library, os.environ["NARROWCAST_OPS_LIBRARY"]))


if __name__ == "__main__":
    unittest.main()
