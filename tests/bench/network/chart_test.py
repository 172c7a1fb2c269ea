#!/usr/bin/env python3
"""Tests chart with measurements made up."""
import json
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

CHART = pathlib.Path(__file__).parent / "chart"


def case(rate, hooks, **bucket):
    rows = [{"hook": hook, "speed_up": speed_up, "bucket_bytes": 25 << 20, "buckets": 1, **bucket} for hook, speed_up in hooks.items()]
    return {"nodes": 2, "ranks_per_node": 4, "rate": rate, "hooks": rows}


def draw(cases):
    """The texts of the chart, or what `chart` prints as an error."""
    with tempfile.TemporaryDirectory() as folder:
        source, drawn = pathlib.Path(folder) / "cases.json", pathlib.Path(folder) / "chart.svg"
        source.write_text(json.dumps(cases))
        run = subprocess.run([CHART, source, drawn], capture_output=True, text=True)
        if run.returncode != 0:
            return run.returncode, run.stderr
        return 0, [element.text for element in xml.etree.ElementTree.parse(drawn).iter() if element.text and element.text.strip()]


class Chart(unittest.TestCase):
    def test_each_network_has_its_hooks_in_the_order_of_the_legend(self):
        code, texts = draw([case("1", {"int8": 3.84, "allreduce": 1, "bf16_compress": 2, "quantize_per_tensor": 3}),
                            case("open", {"allreduce": 1, "int8": .5})])
        self.assertEqual(code, 0)
        bars = [text for text in texts if "." in text]
        self.assertEqual(bars, ["1.0", "2.0", "3.8", "1.0", "0.5"])
        self.assertIn("1 Gbit/s", texts)
        self.assertEqual(texts.count("2 machines x 4 ranks"), 2)

    def test_other_buckets_are_left_out(self):
        code, error = draw([case("1", {"allreduce": 1, "int8": 3}, buckets=4)])
        self.assertEqual(code, 2)
        self.assertIn("no case has a bucket of 25 MiB", error)


if __name__ == "__main__":
    unittest.main()
