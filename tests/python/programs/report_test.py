"""The pages of trainings and of measurements, opened in a headless Chromium."""
import html.parser
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/bench/network"))
import page as network_page  # noqa: E402 -- found by the line above

PAGE = ROOT / "trainer/train/reporting/report.html.in"

BROWSER = shutil.which("chromium-headless-shell")
SMALL = ["--layers=1", "--heads=2", "--width=16", "--context=16", "--batch_size=12", "--eval_batches=1", "--sample_length=0",
         "--log_every=2", "--eval_every=3", "--bucket_cap_mb=25", "--steps=8"]
# Measures the page, once it is drawn, in a frame of a phone's width, from an outer page.
PHONE = """<!doctype html><title>wait</title><iframe id=f src="{page}" style="border:0;width:390px;height:40000px"></iframe>
<script>
function measure() {{
  const root = document.getElementById("f").contentDocument.documentElement;
  const texts = [...root.querySelectorAll("svg text")].map((text) => text.getBoundingClientRect());
  if (texts.length == 0) return requestAnimationFrame(measure);
  const cut = texts.filter((box) => box.left < 0 || box.right > 390);
  document.body.append(`width ${{root.scrollWidth}} of ${{root.clientWidth}}, ${{cut.length}} texts cut`);
}}
document.getElementById("f").onload = measure;
</script>"""


# The same in a window of 1,200 pixels, for the summary: its part that is visible without scrolling, and the whole.
DESKTOP = """<!doctype html><title>wait</title><iframe id=f src="{page}" style="border:0;width:1200px;height:20000px"></iframe>
<script>
function measure() {{
  const table = document.getElementById("f").contentDocument.querySelector(".wide");
  if (!table) return requestAnimationFrame(measure);
  const cells = [...table.querySelectorAll("th, td")].map((cell) => cell.getBoundingClientRect());
  const rows = [...table.querySelectorAll("tr")].map((row) => row.getBoundingClientRect().height);
  document.body.append(`<summary ${{table.scrollWidth}} of ${{table.clientWidth}}, right ${{Math.max(...cells.map((box) => box.right))}}, ` +
    `tallest ${{Math.max(...rows)}}>`);
}}
document.getElementById("f").onload = measure;
</script>"""


def made_up(name, hook, step_seconds, unit="nats", steps=700):
    """The lines of a training whose loss falls in the same way with every hook; step times differ."""
    loss = lambda step: 1.5 + 2.5 * math.exp(-step / 120)  # noqa: E731 -- a formula
    counts = {"measuring_bytes_sent": 27262976, "skipped_steps": 12, "compression": 3.938, "peak_memory_bytes": 2147483648}
    lines = [{"event": "start", "hook": hook, "ranks": 128, "samples_per_step": 1024, "loss": unit}]
    for step in range(10, steps + 1, 10):
        at = {"step": step, "seconds": step * step_seconds}
        lines.append({"event": "step", "loss": loss(step), "learning_rate": 1e-3, "units_per_second": 1024 / step_seconds,
                      "payload_bytes_sent": 123456789 * step, "gradient_norm": 1, **at, **counts})
        if step % 100 == 0:
            lines.append({"event": "evaluation", "validation_loss": loss(step), "validation_accuracy": 0.9137, **at})
    return {"name": name, "events": [*lines, {"event": "end", "training_loss": loss(steps), "validation_loss": loss(steps),
                                              "validation_accuracy": 0.9137, "payload_bytes_sent": 123456789 * steps,
                                              "payload_bytes_without_hook": 672000000000, "seconds": steps * step_seconds, **counts}]}


def run(*command):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    subprocess.run(list(map(str, command)), env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)


def loss_text(loss):
    """The loss as narrowcast-train also prints it."""
    return f"{loss:.4f}" if loss == 0 or abs(loss) >= 0.1 else f"{loss:#.4g}"


class Tables(html.parser.HTMLParser):
    """Tables of a page, as {name of row: {name of column: (exact, text)}}, and the drawn elements."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.cell, self.curves, self.bars, self.title = [], None, 0, 0, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "table":
            self.tables.append({})
            self.columns = []
        elif tag in ("th", "td", "title"):
            self.cell = [tag, values, ""]
        elif tag == "polyline" and values["points"]:
            self.curves += 1
        elif values.get("class") == "bar":
            self.bars += 1

    def handle_data(self, data):
        if self.cell:
            self.cell[2] += data

    def handle_endtag(self, tag):
        if not self.cell or tag != self.cell[0]:
            return
        (_, attributes, text), self.cell = self.cell, None
        if tag == "title":
            self.title = text
        elif attributes.get("scope") == "col":
            self.columns.append(text)
        elif attributes.get("scope") == "row":
            self.row = self.tables[-1][text] = {}  # The last of several rows with the same name remains.
        if tag != "title" and attributes.get("scope") != "col":
            exact = attributes.get("data-value")
            self.row[self.columns[len(self.row)]] = (exact, text)


@unittest.skipUnless(BROWSER, "no chromium-headless-shell; run third_party/setup --browser")
class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def browse(self, page, *flags):
        """The browser's result for the page. The page may fetch nothing, and print nothing on its console."""
        command = [BROWSER, "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=5000",
                   "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={self.folder}/profile", *flags, "--dump-dom",
                   page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        return done.stdout

    def expect_fits_a_phone(self, page):
        around = self.folder / "phone.html"
        around.write_text(PHONE.format(page=page.as_uri()))
        self.assertIn("width 390 of 390, 0 texts cut", self.browse(around, "--allow-file-access-from-files"))

    def made_up_page(self, *trainings):
        page = self.folder / "page.html"
        document = json.dumps({"title": "made up", "trainings": trainings}).replace("<", "\\u003c")
        page.write_text(PAGE.read_text().replace("{{DATA}}", document))
        return page

    def summary_in_1200_pixels(self, page):
        """(width of the summary, width in which it is shown, right end of its cells, height of its tallest row)."""
        around = self.folder / "desktop.html"
        around.write_text(DESKTOP.format(page=page.as_uri()))
        dom = self.browse(around, "--allow-file-access-from-files", "--window-size=1600,900")
        return tuple(map(float, re.search(r"&lt;summary (\d+) of (\d+), right ([\d.]+), tallest ([\d.]+)&gt;", dom).groups()))

    def train(self, name, ranks, *flags):
        run(os.environ["NARROWCAST_RUN"], f"--nproc_per_node={ranks}", os.environ["NARROWCAST_TRAIN"], *SMALL,
            f"--output_dir={self.folder / name}", *flags)
        return [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def expect_summary(self, row, lines):
        """The table matches metrics.jsonl: exact values in its cells' data, rounded ones in their texts."""
        end = lines[-1]
        for column, value in {"steps": 8, "training loss": end["training_loss"], "validation loss": end["validation_loss"],
                              "sent per rank": end["payload_bytes_sent"], "without a hook": end["payload_bytes_without_hook"],
                              "time": end["seconds"], "skipped steps": 0, "ranks": lines[0]["ranks"]}.items():
            self.assertEqual(json.loads(row[column][0]), value, column)
        for column in ("training loss", "validation loss"):
            self.assertEqual(row[column][1], loss_text(end[column.replace(" ", "_")]))
        self.assertEqual(row["loss in"][1], "nats")
        self.assertEqual(row["hook"], (lines[0]["hook"],) * 2)
        self.assertEqual(row["ended"][1], "yes")

    def test_a_training(self):
        page = self.folder / "page.html"
        lines = self.train("run", 2, "--hook=int8", "--node_size=1", f"--report={page}")
        shown = Tables(self.browse(page))
        self.assertEqual(shown.title, "Training run")
        self.expect_summary(shown.tables[0]["run"], lines)
        steps = [line for line in lines if line["event"] == "step"]
        reports = next(table for table in shown.tables if "gradient_norm" in next(iter(table.values())))
        self.assertEqual(list(reports), [str(line["step"]) for line in steps])
        for line in steps:
            row = reports[str(line["step"])]
            self.assertEqual({key: json.loads(exact) for key, (exact, _) in row.items()},
                             {key: value for key, value in line.items() if key != "event"})
        self.assertEqual(shown.curves, 8, "training and validation over steps and over time, and four more")
        self.expect_fits_a_phone(page)

    def test_trainings_beside_each_other(self):
        names = {"one": "--seed=1", "</script><b>": "--learning_rate=0.01", "long-" + 20 * "name-": "--batch_size=24"}
        lines = {name: self.train(name.replace("/", "-"), 1, flag) for name, flag in names.items()}
        page = self.folder / "page.html"
        run(os.environ["NARROWCAST_TRAIN"], "--compare=" + ",".join(str(self.folder / name.replace("/", "-")) for name in names),
            f"--report={page}")
        shown = Tables(self.browse(page))
        self.assertEqual(shown.title, "3 trainings")
        for name, of_run in lines.items():
            self.expect_summary(shown.tables[0][name.replace("/", "-")], of_run)
        self.assertEqual(shown.bars, 6)
        self.assertEqual(shown.tables[-1]["learning_rate"]["<-script><b>"][0], "0.01")
        self.expect_fits_a_phone(page)

    def test_the_summary_fits_1200_pixels(self):
        hooks = ("none", "quantize_per_channel", "quantized_allreduce", "batched_power_sgd_2", "post_local_sgd", "bf16_compress")
        pages = {"three": [made_up(f"quickstart-{hook}", hook, 0.2) for hook in ("none", "bf16_compress", "int8")],
                 "many": [made_up(f"experiment-2026-11-{i:02}-of-a-model-with-a-long-name-{'x' * 3 * i}", hooks[i % 6], 2.5, "the module's own")
                          for i in range(24)],
                 "one word": [made_up(60 * "x", "quantize_per_channel", 100)]}
        for name, trainings in pages.items():
            with self.subTest(name):
                page = self.made_up_page(*trainings)
                whole, shown, right, tallest = self.summary_in_1200_pixels(page)
                self.assertEqual(whole, shown)
                self.assertLessEqual(right, 1200)
                self.assertLess(tallest, 250, "a name is a dozen lines at most")
                self.expect_fits_a_phone(page)

    def test_loss_over_time_of_several_hooks(self):
        """Of three trainings with the same number of steps, the one with the fastest steps ends first, only in the
        chart over time."""
        seconds = {"none": 0.2, "bf16_compress": 0.1, "int8": 0.05}
        page = self.made_up_page(*(made_up(hook, hook, each) for hook, each in seconds.items()))
        figures = {re.match("[^<]*", figure)[0]: figure for figure in self.browse(page).split("<figure><figcaption>")[1:]}
        ends = {}
        for title in ("Loss over steps", "Loss over time"):
            curves = re.findall(r'<polyline[^>]*points="([^"]*)"', figures[title])
            self.assertEqual(len(curves), 2 * 3, "training and validation of each")
            ends[title] = [float(points.split()[-1].split(",")[0]) for points in curves[::2]]
            legend = re.search(r'<div class="legend">(.*?)</div>', figures[title])[1]
            self.assertEqual(re.findall(r">([^<>]+)</span>", legend), [*seconds, "validation"])
        self.assertEqual(len(set(ends["Loss over steps"])), 1)
        self.assertEqual(ends["Loss over time"], sorted(ends["Loss over time"], reverse=True))
        left = 140 * (ends["Loss over time"][1] - ends["Loss over time"][2]) / (ends["Loss over time"][0] - ends["Loss over time"][2])
        self.assertAlmostEqual(left, 140 * 0.05 / 0.15, delta=1, msg="times are in proportion")
        self.assertIn(">1 min 00 s</text>", figures["Loss over time"])

    def captions(self, page):
        """The units of the charts with named curves, by title."""
        captions = re.findall(r'<figcaption>([^<]*)<span> · ([^<]*)</span></figcaption><div class="legend"', self.browse(page))
        return {title: [unit for other, unit in captions if other == title] for title, _ in captions}

    def test_different_units_share_no_chart(self):
        """A training on a text, and the same lines as from a module that learns samples."""
        start, *lines = self.train("text", 1)
        samples = {key: value for key, value in start.items() if key != "tokens_per_step"} | {"samples_per_step": 12}
        page = self.folder / "page.html"
        for loss, kind in (("mse", "mean squared error"), ("the module's own", "the module's own"), ("cross_entropy", "nats")):
            (self.folder / "module.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [samples | {"loss": loss}, *lines]))
            run(os.environ["NARROWCAST_TRAIN"], f"--compare={self.folder / 'text'},{self.folder / 'module.jsonl'}", f"--report={page}")
            summary = Tables(self.browse(page)).tables[0]
            self.assertEqual([row["loss in"][1] for row in summary.values()], ["nats", kind])
            captions = self.captions(page)
            for title in ("Loss over steps", "Loss over time"):
                self.assertEqual(captions[title], ["nats"] if kind == "nats" else ["nats", kind])
            self.assertEqual(captions["Speed"], ["tokens per second, all ranks", "samples per second, all ranks"])
            self.assertEqual(len(captions["Sent"]), 1)

    def test_texts_of_times_and_losses(self):
        """Values that rounding moves to another unit or another digit."""
        *lines, end = self.train("run", 1)
        page, file = self.folder / "page.html", self.folder / "metrics.jsonl"
        for seconds, time, loss in ((0.25, "250 ms", 0.0999999), (59.4, "59.4 s", 1.2e-4), (59.6, "1 min 00 s", 4.12e-5),
                                    (3599.4, "59 min 59 s", 9.99999e-5), (3599.6, "1 h 00 min", -0.0412345), (7169, "1 h 59 min", 0),
                                    (7170, "2 h 00 min", 1e-120), (7199.6, "2 h 00 min", -1.25), (90000, "25 h 00 min", 0.1)):
            values = {"seconds": seconds, "training_loss": loss, "validation_loss": loss}
            file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, end | values]))
            run(os.environ["NARROWCAST_TRAIN"], f"--compare={file}", f"--report={page}")
            (row,) = Tables(self.browse(page)).tables[0].values()
            self.assertEqual(row["time"], (json.dumps(seconds), time))
            for column in ("training loss", "validation loss"):
                self.assertEqual((json.loads(row[column][0]), row[column][1]), (loss, loss_text(loss)))

    def test_measurements(self):
        page, file = self.folder / "page.html", self.folder / "bench.json"
        run(os.environ["NARROWCAST_RUN"], "--nproc_per_node=2", os.environ["NARROWCAST_BENCH"], "--hooks=bf16_compress,int8",
            "--node_size=1", "--bucket_mib=0.01,0.1,1", "--buckets=1", "--iterations=3", "--nokernels", "--nolink",
            f"--json={file}", f"--report={page}")
        shown = Tables(self.browse(page))
        hooks = next(table for table in shown.tables if "median" in next(iter(table.values())))
        results = json.loads(file.read_text())
        for row in results["hooks"]:
            if row["bucket_bytes"] == max(other["bucket_bytes"] for other in results["hooks"]):
                found = hooks[row["hook"]]
                for column, key in {"min": "min_ms", "median": "median_ms", "p99": "p99_ms", "sent per rank": "payload_bytes",
                                    f"× {results['reference']}": "speed_up",
                                    "algbw GB/s": "algbw_gb_per_second"}.items():
                    self.assertEqual(json.loads(found[column][0]), row[key], column)
        self.assertEqual(shown.bars, 2 * 3 * 3)
        self.assertEqual(shown.curves, 3)
        self.expect_fits_a_phone(page)
        self.expect_networks(results)

    def expect_networks(self, results):
        """The page of tests/bench/network/run shows the results of all networks."""
        page = self.folder / "networks.html"
        page.write_text(network_page.make({"2 x 1, 1gbit": results, "2 x 1, 10gbit": {key: results[key] for key in ("reference", "hooks")}}))
        shown = Tables(self.browse(page))
        self.assertEqual(len(shown.tables[0]), 2 * 3, "networks and sizes")
        speed_ups = {row["hook"]: row["speed_up"] for row in results["hooks"] if row["bucket_bytes"] == 2 ** 20}
        for name, row in shown.tables[0].items():
            self.assertEqual(json.loads(row[results["reference"]][0]), 1)
            if name.endswith("1 × 1.05 MB"):
                self.assertEqual(json.loads(row["int8"][0]), speed_ups["int8"])
        self.expect_fits_a_phone(page)


if __name__ == "__main__":
    unittest.main()
