"""Opens every page of `trireme report` in headless Chromium: `make test-browser`, or pages.py TRIREME SHOTS [UNITTEST ARGS].

Checks that each chart has drawn its data, that the console has no error and that no request leaves. Tries tables, keyboard
and themes. Leaves screenshots at three widths, light and dark, and PDFs in the folder SHOTS: look at them.
"""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import samples
from browser import Browser
from selenium.webdriver.common.keys import Keys

TRIREME, SHOTS = pathlib.Path(), pathlib.Path()
WIDTHS = [360, 800, 1400]


def trireme(*args, **more):
    return subprocess.run([TRIREME, *map(str, args)], check=True, capture_output=True, text=True, **more)


def known(values):
    return sum(isinstance(v, (int, float)) for v in values or [])


# Functions for the page: marks of a chart, its visible text.
MARKS = """
const chart = document.querySelector('[data-chart="' + arguments[0] + '"]');
if (!chart) return null;
const n = (s) => chart.querySelectorAll('.plot ' + s).length;
return {marks: n('.mark'), series: [...chart.querySelectorAll('.plot .series')].map(e => [e.dataset.series || e.dataset.cause || '', +e.dataset.marks || 0, (e.getAttribute('d') || '').length]),
        bins: [...chart.querySelectorAll('.plot .bins')].map(e => +e.dataset.marks), rules: n('[data-rule]'), rows: chart.querySelectorAll('tbody tr').length,
        width: chart.querySelector('.plot svg') ? chart.querySelector('.plot svg').getBoundingClientRect().width : 0};
"""


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-pages-"))
        cls.browser = Browser()
        cls.reports = {"run": samples.run(), "plain": samples.plain_run(), "comparison": samples.comparison()}
        for name, report in cls.reports.items():
            (cls.folder / f"{name}.json").write_text(json.dumps(report))
            trireme("report", cls.folder / f"{name}.json", "--out", cls.folder / f"{name}.html")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder)

    def open(self, name, width=1400, dark=False):
        self.browser.look(width, dark)
        self.browser.open((self.folder / f"{name}.html").as_uri())
        self.assertTrue(self.browser.wait("document.querySelectorAll('main section').length > 0"), name)

    def clean(self, name):
        """No error in the console, and no request except for the page and its empty icon."""
        self.assertEqual(self.browser.console(), [], name)
        self.assertEqual([u for u in self.browser.requests() if not u.startswith(("about:", "data:")) and not u.endswith(f"/{name}.html")], [], name)

    def marks(self, chart):
        found = self.browser.script(MARKS, chart)
        self.assertIsNotNone(found, f"no chart {chart}")
        return found

    def test_screenshots(self):
        for name in self.reports:
            for width in WIDTHS:
                for dark in (False, True):
                    with self.subTest(page=name, width=width, dark=dark):
                        self.open(name, width, dark)
                        self.assertLessEqual(self.browser.script("return document.documentElement.scrollWidth"), width, "wider than the screen")
                        self.browser.screenshot(SHOTS / f"{name}-{width}-{'dark' if dark else 'light'}")
                        self.clean(name)
            self.open(name)
            self.browser.pdf(SHOTS / f"{name}.pdf")
            self.assertGreater((SHOTS / f"{name}.pdf").stat().st_size, 20_000)

    def test_every_chart_has_drawn_its_data(self):
        report = self.reports["run"]
        self.open("run")
        for toll in report["tolls"] + [dict(report["step_time"], toll=None)]:
            chart = "step_time" if toll["toll"] is None else "toll-" + toll["toll"].replace(" ", "-")
            bars = known([toll["forecast"], toll["measured"], toll.get("bound")]) + sum(t["value"] != 0 for t in toll["terms"])
            self.assertEqual(self.marks(chart)["marks"], bars, chart)
        comb = self.marks("comb")
        self.assertEqual(comb["bins"], [report["comb"]["bins"]] * len(report["comb"]["rows"]))
        causes = [(c, i) for r in report["comb"]["rows"] for i, c in enumerate(report["comb"]["causes"]) if any(s[i] > 0 for s in r["shares"])]
        self.assertEqual(len(comb["series"]), len(causes))
        self.assertEqual(self.marks("comb-totals")["marks"], sum(v > 0 for v in report["comb"]["totals"].values()))
        self.assertEqual(self.marks("gaps")["rows"], min(20, sum(len(r["gaps"]) for r in report["comb"]["rows"])))
        memory = self.marks("memory")
        self.assertEqual([s[1] for s in memory["series"]], [len(report["memory"]["over_time"][0]["t_s"])] * len(report["memory"]["buckets"]))
        self.assertEqual(memory["rules"], 1, "the line of the capacity")
        self.assertEqual(self.marks("memory-peak")["marks"], 2 * len(report["memory"]["buckets"]))
        curves = report["curves"]
        loss = self.marks("loss")
        self.assertEqual(loss["series"][0][:2], ["training loss", known(curves["loss"])])
        self.assertEqual(loss["marks"], len(curves["eval"]))
        for chart, key in [("tokens_per_s", "tokens_per_s"), ("grad_norm", "grad_norm"), ("lr", "lr")]:
            self.assertEqual([s[1] for s in self.marks(chart)["series"]], [known(curves[key])], chart)
        self.assertEqual([s[1] for s in self.marks("mfu")["series"]], [known(curves["mfu"]), known(curves["hfu"])])
        self.assertEqual([s[0] for s in self.marks("time")["series"]], ["forward", "backward", "update", "norm", "other"])
        self.assertEqual(len(self.marks("waits")["series"]), 3)
        self.assertEqual(self.marks("roofline")["marks"], len(report["roofline"]["ops"]))
        self.assertEqual(self.marks("traffic")["marks"], 2)
        self.assertEqual(self.marks("goodput")["marks"], 1 + len(report["goodput"]["lost"]))
        self.assertEqual(self.marks("checkpoints")["marks"], 2 * len(report["checkpoints"]["saves"]))
        for chart, key in [("events", "events"), ("record", "record"), ("checked", "checked")]:
            self.assertEqual(self.marks(chart)["rows"], len(report[key]), chart)
        for s in [s for chart in ("comb", "memory", "loss", "time") for s in self.marks(chart)["series"]]:
            self.assertGreater(s[2], 20, "a path without a line")
        self.assertEqual(self.browser.script("return document.querySelectorAll('[data-advice]').length"), len(report["advice"]))
        self.clean("run")

    def test_a_comparison_has_drawn_its_data(self):
        report = self.reports["comparison"]
        self.open("comparison")
        self.assertEqual(self.marks("steps")["marks"], 2 * len(report["steps"]))
        for toll in report["tolls"]:
            self.assertEqual(self.marks("toll-" + toll["toll"].replace(" ", "-"))["marks"], len(toll["values"]))
        self.assertEqual(len(self.marks("loss")["series"]), len(report["curves"]))
        self.assertEqual(self.marks("scaling")["marks"], len(report["scaling"]))
        self.assertEqual(self.marks("differences")["rows"], len(report["differences"]))
        self.clean("comparison")

    def test_parts_that_are_missing_say_why(self):
        report = self.reports["plain"]
        self.open("plain")
        text = self.browser.script("return document.querySelector('main').innerText")
        for part in ("comb", "memory", "roofline"):
            self.assertIn(report[part]["why_not"], text)
        for chart in ("comb", "memory", "roofline", "mfu", "checkpoints", "goodput"):
            self.assertIsNone(self.browser.script(MARKS, chart), f"an empty chart {chart}")
        self.clean("plain")

    def test_hostile_names_stay_text(self):
        for name in self.reports:
            self.open(name)
            self.assertIn(samples.HOSTILE, self.browser.script("return document.body.innerText"))
            self.assertEqual(self.browser.script("return document.querySelectorAll('img').length"), 0)
            self.assertIn(self.reports[name].get("name") or "first", self.browser.script("return document.title"))
            self.clean(name)

    def test_tables_open(self):
        for name in self.reports:
            self.open(name, 360)
            n = self.browser.script("""const all = [...document.querySelectorAll('details.data')]; all.forEach(d => d.querySelector('summary').click());
                                       return all.length""")
            self.assertGreater(n, 3)
            self.assertTrue(self.browser.wait("[...document.querySelectorAll('details.data')].every(d => d.open && d.querySelectorAll('tbody tr').length > 0)"))
            self.assertLessEqual(self.browser.script("return document.documentElement.scrollWidth"), 360)
            charts = self.browser.script("return [...document.querySelectorAll('figure')].filter(f => !f.querySelector('details.data')).length")
            self.assertEqual(charts, 0, "a chart without a table")
        self.open("run")
        self.browser.script("document.querySelector('[data-chart=loss] summary').click()")
        steps = set(self.reports["run"]["curves"]["step"]) | {e[0] for e in self.reports["run"]["curves"]["eval"]}
        self.assertTrue(self.browser.wait(f"document.querySelectorAll('[data-chart=loss] tbody tr').length === {len(steps)}"))

    def test_the_keyboard_reads_charts(self):
        comb = self.reports["run"]["comb"]
        self.open("run")
        self.browser.script("document.querySelector('[data-chart=comb] .plot svg').focus()")
        self.browser.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
        tip = self.browser.script("return document.getElementById('tip').innerText")
        self.assertTrue(tip.startswith("rank 1,"), tip)
        shares = comb["rows"][1]["shares"][3]
        top = comb["causes"][shares.index(max(shares))]
        self.assertIn(f"{top}: ", tip.splitlines()[1])
        self.browser.keys(Keys.ESCAPE)
        self.assertTrue(self.browser.script("return document.getElementById('tip').hidden"))
        # Tab reaches the toggle, the sections, each chart and each table, with a visible mark.
        self.open("run")
        reached = set()
        for _ in range(160):
            self.browser.keys(Keys.TAB)
            reached.add(self.browser.script("""const e = document.activeElement, c = e.closest('[data-chart]');
                return (e.id || e.tagName.toLowerCase()) + (c ? ' ' + c.dataset.chart : '') + (getComputedStyle(e).outlineStyle === 'none' ? ' without outline' : '')"""))
        for place in ("theme", "svg comb", "svg loss", "svg roofline", "svg memory", "summary loss", "summary comb", "button gaps", "select memory"):
            self.assertIn(place, reached)
        self.assertEqual([r for r in reached if r.endswith("without outline") and not r.startswith(("body", "main"))], [])

    def test_gaps_are_shown_in_the_comb(self):
        self.open("run")
        self.browser.script("document.querySelector('[data-chart=gaps] button').click()")
        self.assertEqual(self.browser.script("return document.querySelector('[data-chart=comb] .picked').getAttribute('opacity')"), "1")

    def test_the_rank_of_the_memory_chart_changes(self):
        self.open("run")
        before = self.browser.script("return document.querySelector('[data-chart=memory] svg title').textContent")
        self.browser.script("const s = document.querySelector('[data-chart=memory] select'); s.value = '3'; s.dispatchEvent(new Event('change'))")
        after = self.browser.script("return document.querySelector('[data-chart=memory] svg title').textContent")
        self.assertIn("rank 0", before)
        self.assertIn("rank 3", after)

    def test_the_theme_changes(self):
        self.open("run")
        back = "return getComputedStyle(document.body).backgroundColor"
        light = self.browser.script(back)
        shown = []
        for _ in range(3):
            self.browser.script("document.getElementById('theme').click()")
            shown.append((self.browser.script("return document.getElementById('theme').textContent"), self.browser.script(back)))
        self.assertEqual([s[0] for s in shown], ["Light", "Dark", "Auto"])
        self.assertEqual(shown[0][1], light)
        self.assertNotEqual(shown[1][1], light)
        self.open("run", dark=True)
        self.assertEqual(self.browser.script(back), shown[1][1])

    def test_the_record_is_copied(self):
        self.open("run")
        self.browser.script("window.copied = null; navigator.clipboard.writeText = async t => { window.copied = t; };"
                            "[...document.querySelectorAll('#record-section button')][0].click()")
        self.assertEqual(self.browser.wait("window.copied"), self.reports["run"]["record_markdown"])


class Live(unittest.TestCase):
    """A run folder that the smallest demo made, played back: its lines of metrics.jsonl come one by one."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-live-"))
        cls.demo = cls.folder / "demo"
        cls.said = trireme("demo", "--minutes", "0.05", "--dir", cls.demo).stdout
        cls.browser = Browser()
        cls.browser.look(1400)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.runs = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.lines = (self.demo / "metrics.jsonl").read_text().splitlines(keepends=True)
        self.servers = []

    def tearDown(self):
        for s in self.servers:
            s.kill()
            s.wait()
            s.stdout.close()

    def copy(self, name, steps):
        """The demo's run as it was after this many steps, held as a trainer holds it. Returns the lock."""
        to = self.runs / name
        shutil.copytree(self.demo, to, ignore=shutil.ignore_patterns("checkpoints", "hf", "data", "report.html", "events.jsonl"))
        (to / "metrics.jsonl").write_text("".join(self.lines[:steps]))
        lock = open(to / "lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.addCleanup(lock.close)
        return lock

    def follow(self, *args):
        self.servers.append(subprocess.Popen([TRIREME, "report", "--follow", *map(str, args)], stdout=subprocess.PIPE, text=True))
        self.url = self.servers[-1].stdout.readline().strip()
        self.browser.open(self.url)
        return self.servers[-1]

    def points(self, n):
        return self.browser.wait(f"(document.querySelector('[data-chart=loss] .series') || {{dataset: {{}}}}).dataset.marks === '{n}'", 20)

    def status(self):
        return self.browser.script("return document.getElementById('live').textContent")

    def test_the_demo_ends_with_its_report(self):
        page = self.demo / "report.html"
        self.assertIn(str(page), self.said)
        report = json.loads(trireme("report", self.demo, "--json").stdout)
        for width, dark in [(360, False), (800, True), (1400, False)]:
            self.browser.look(width, dark)
            self.browser.open(page.as_uri())
            self.assertTrue(self.browser.wait("document.querySelectorAll('[data-chart=comb] .bins').length"))
            self.assertLessEqual(self.browser.script("return document.documentElement.scrollWidth"), width)
            self.browser.screenshot(SHOTS / f"demo-{width}-{'dark' if dark else 'light'}")
        self.browser.look(1400)
        comb = self.browser.script(MARKS, "comb")
        self.assertEqual(comb["bins"], [report["comb"]["bins"]] * len(report["comb"]["rows"]))
        self.assertEqual(self.browser.script(MARKS, "loss")["series"][0][1], known(report["curves"]["loss"]))
        self.assertEqual(self.browser.script(MARKS, "roofline")["marks"], sum(o["intensity"] is not None and o["intensity"] > 0 for o in report["roofline"]["ops"]))
        self.assertEqual(self.browser.script(MARKS, "record")["rows"], len(report["record"]))
        self.assertEqual(self.browser.console(), [])

    def test_the_page_keeps_current_and_stops(self):
        lock = self.copy("a", 40)
        self.follow(self.runs / "a")
        self.assertTrue(self.points(40), self.status())
        self.assertIn("live, updated", self.status())
        self.browser.script("document.querySelector('[data-chart=comb] .plot svg').dataset.kept = 'yes'; document.querySelector('[data-chart=loss] summary').click()")
        with open(self.runs / "a" / "metrics.jsonl", "a") as f:
            f.write("".join(self.lines[40:60]) + self.lines[60][:25])  # a line that is not whole yet
        self.assertTrue(self.points(60), self.status())
        self.assertEqual(self.browser.script("return document.querySelector('[data-chart=comb] .plot svg').dataset.kept"), "yes", "drawn again without a change")
        self.assertTrue(self.browser.script("return document.querySelector('[data-chart=loss] details').open"))
        os.rename(self.runs / "a", self.runs / "away")
        self.assertTrue(self.browser.wait("document.getElementById('live').className.includes('trouble')"))
        self.assertTrue(self.points(60), "what was drawn stays")
        os.rename(self.runs / "away", self.runs / "a")
        self.assertTrue(self.browser.wait("!document.getElementById('live').className.includes('trouble')"))
        (self.runs / "a" / "metrics.jsonl").write_text("".join(self.lines))
        self.assertTrue(self.points(len(self.lines)))
        lock.close()
        self.assertTrue(self.browser.wait("!document.getElementById('again').hidden", 20), self.status())
        self.assertEqual(self.browser.script("return document.getElementById('state').textContent"), "finished")
        self.browser.requests()
        time.sleep(4)
        self.assertEqual(self.browser.requests(), [], "asks on after the end")
        self.browser.screenshot(SHOTS / "live-1400-light")
        self.assertEqual(self.browser.console(), [])

    def test_several_runs_are_a_list(self):
        self.copy("a", 30), self.copy("b", 50)
        server = self.follow(self.runs)
        rows = "document.querySelectorAll('[data-chart=list] tbody tr').length"
        self.assertTrue(self.browser.wait(f"{rows} === 2"))
        self.browser.screenshot(SHOTS / "list-1400-light")
        self.browser.script("document.querySelectorAll('[data-chart=list] a')[1].click()")
        self.assertTrue(self.points(50))
        self.copy("c", 10)
        self.browser.script("document.querySelector('nav a').click()")
        self.assertTrue(self.browser.wait(f"{rows} === 3"))
        asked = self.browser.requests()
        self.assertTrue(all(u.startswith((self.url, "data:", "about:")) for u in asked), asked)
        self.assertEqual(self.browser.console(), [])
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(10), 0)
        self.assertTrue(self.browser.wait("document.getElementById('live').className.includes('trouble')"))
        self.assertIn("does not answer", self.status())

    def test_another_address_takes_the_token(self):
        self.copy("a", 20)
        self.follow(self.runs / "a", "--host", "127.0.0.2")
        self.assertRegex(self.url, "^http://127.0.0.2:[0-9]+/[0-9a-f]{32}/$")
        self.assertTrue(self.points(20))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.url.rsplit("/", 2)[0] + "/run/0.json", timeout=5)
        self.assertEqual(refused.exception.code, 404)
        refused.exception.close()


if __name__ == "__main__":
    TRIREME, SHOTS = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    SHOTS.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
