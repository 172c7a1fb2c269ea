"""The page of narrowcast-bench --report, for several networks."""
import json
import pathlib

PAGE = pathlib.Path(__file__).resolve().parents[3] / "trainer/train/reporting/report.html.in"


def make(networks):
    """`networks`: {name: its measurements, with "reference" and "hooks" as in narrowcast-bench's JSON}."""
    document = {"title": "narrowcast: hooks on simulated networks",
                "benches": [{"name": name, "results": results} for name, results in networks.items()]}
    return PAGE.read_text().replace("{{DATA}}", json.dumps(document, allow_nan=False).replace("<", "\\u003c"))
