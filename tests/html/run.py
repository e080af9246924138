#!/usr/bin/env python3
"""Opens pages that allocwall wrote in a headless Chromium, and uses them as a reader would.

    tests/html/run.py --binary target/debug/allocwall [--keep DIR] [TEST…]

The page is made from a diagnosis of a program whose names are hostile. Chromium is driven by chromedriver's own protocol (W3C
WebDriver). --keep DIR keeps the page there, with pictures of it: wide, dark, narrow, and as printed.
"""

import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In the command line of the target: markup that would run, text that would end a script, a character that reverses text.
HOSTILE = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202eesrever\x1b[31m"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"right": "\ue014", "left": "\ue012", "down": "\ue015", "up": "\ue013", "enter": "\ue007", "escape": "\ue00c", "end": "\ue010"}
LARGEST = 2_000_000


class Driver:
    """A session of a browser."""

    def __init__(self, folder):
        self.server = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = None
        for line in self.server.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                port = found.group(1)
                break
        if port is None:
            raise RuntimeError("chromedriver did not start")
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/chromium"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{answer['sessionId']}"

    def send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {json.load(error)['value']['message']}") from None

    def open(self, page):
        self.send("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script, *arguments):
        return self.send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command, **parameters):
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width, height):
        # A window of Chromium can't be narrower than 500 pixels, but a screen can.
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def keys(self, *names):
        actions = [{"type": kind, "value": KEYS.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        self.send("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def move(self, selector, part=0.5):
        """Moves the mouse over an element, to this part of its width."""
        element = self.send("POST", "/element", {"using": "css selector", "value": selector})
        width = self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'}); return arguments[0].clientWidth", element)
        move = {"type": "pointerMove", "duration": 0, "origin": element, "x": int((part - 0.5) * width), "y": 0}
        self.send("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def errors(self):
        log = self.send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def picture(self, file):
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return document.documentElement.clientWidth")
        self.size(width, height)
        file.write_bytes(base64.b64decode(self.send("GET", "/screenshot")))

    def end(self):
        try:
            self.send("DELETE", "")
        finally:
            self.server.terminate()
            self.server.wait()


class Made:
    """Pages, and a browser."""

    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder
        self.environment = dict(os.environ, XDG_STATE_HOME=str(folder / "state"), XDG_CACHE_HOME=str(folder / "cache"))
        self.page = folder / "page.html"
        program = subprocess.Popen(
            [HOSTILE, "subject", "cold-touch", "--dial", "0.6", "--seconds", "60"], executable=binary, stdout=subprocess.DEVNULL
        )
        try:
            time.sleep(1)
            self.diagnosed = self.allocwall("diagnose", "-p", str(program.pid), "-d", "3s", "--no-calibrate", "-o", str(self.page))
        finally:
            program.kill()
            program.wait()
        self.driver = Driver(folder)
        self.driver.open(self.page)

    def allocwall(self, *arguments):
        return subprocess.run([self.binary, *arguments], env=self.environment, check=True, capture_output=True, text=True, timeout=120)


def the_recording_is_kept_beside_the_page(made):
    kept = list((made.folder / "state").rglob("*.allocwall"))
    assert len(kept) == 1, kept
    assert "VERDICT" in made.diagnosed.stdout and str(made.page) in made.diagnosed.stderr
    again = made.folder / "again.html"
    made.allocwall("report", str(kept[0]), "-o", str(again))
    # The path of the recording is the same, so every byte is.
    assert again.read_bytes() == made.page.read_bytes()
    text = made.folder / "again.txt"
    made.allocwall("report", str(kept[0]), "-o", str(text))
    assert "<html" not in text.read_text()


def it_is_one_small_file_that_asks_for_nothing(made):
    assert made.page.stat().st_size < LARGEST
    asked = made.driver.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert asked == [], asked


def the_browser_reports_no_error(made):
    made.driver.open(made.page)
    errors = made.driver.errors()
    assert errors == [], errors


def a_script_of_others_is_refused(made):
    """The near twin: the same page with one byte more in its script has an error, so the policy is in force."""
    other = made.folder / "other.html"
    text = made.page.read_text()
    head, tail = text.rsplit("</script>", 1)
    other.write_text(f"{head} </script>{tail}")
    made.driver.open(other)
    errors = made.driver.errors()
    made.driver.open(made.page)
    assert any("Content Security Policy" in error for error in errors), errors


def hostile_names_stay_text(made):
    made.driver.open(made.page)
    title = made.driver.run("return document.title")
    assert title != "run" and "<script>" in title, title
    assert made.driver.run("return document.images.length") == 0
    assert made.driver.run("return document.querySelector('h1').textContent.includes(\"<img src=x\")")
    text = made.page.read_text()
    assert "\u202e" not in text and "\x1b" not in text and "\\u{202e}" in text


def the_verdict_is_the_first_text(made):
    order = "const at = (s) => document.querySelector(s).getBoundingClientRect().top; return [at('.verdict'), at('nav'), at('#bill')]"
    verdict, navigation, bill = made.driver.run(order)
    assert 0 < verdict < navigation < bill


def the_bars_sum_as_the_text_does(made):
    shares = made.driver.run("return [...document.querySelectorAll('#bill table')][0].innerText")
    found = [float(share) for share in re.findall(r"\t([\d.]+) %\t", shares)]
    assert abs(sum(found[:-1]) - 100) < 0.001 and found[-1] == 100.0, found
    bars = made.driver.run("return [...document.querySelector('#bill .whole').children].map((bar) => bar.getBoundingClientRect().width)")
    whole = made.driver.run("return document.querySelector('#bill .whole').getBoundingClientRect().width")
    assert abs(sum(bars) - whole) < 2, (bars, whole)


def the_cursor_shows_all_charts_at_one_time(made):
    driver = made.driver
    driver.size(1200, 900)
    plots = "#timeline figure:nth-of-type(1) .plot"
    driver.move(plots, 0.4)
    places = driver.run("return [...document.querySelectorAll('#timeline figure.pointed .cursor')].map((cursor) => cursor.getAttribute('x1'))")
    assert len(places) >= 3 and len(set(places)) == 1 and places[0] != "0", places
    value = "return document.querySelector('#timeline figure .legend b').textContent"
    assert driver.run(value) != ""
    driver.move("h1", 0.5)
    assert driver.run("return document.querySelectorAll('figure.pointed').length") == 0


def arrow_keys_move_the_cursor(made):
    driver = made.driver
    driver.run("document.querySelector('#timeline .plot').focus()")
    seen = []
    for _ in range(3):
        driver.keys("right")
        seen.append(driver.run("return document.querySelector('#timeline figcaption output').textContent"))
    assert len(set(seen)) == 3 and "" not in seen, seen
    spoken = driver.run("return document.querySelector('[role=status]').textContent")
    assert seen[-1] in spoken and "application" in spoken, spoken
    driver.keys("escape")
    assert driver.run("return document.querySelectorAll('figure.pointed').length") == 0


def search_marks_boxes_and_says_their_share(made):
    driver = made.driver
    driver.run("document.querySelector('.flame input').focus()")
    driver.keys(*"fault")
    share = driver.run("return document.querySelector('.flame output').textContent")
    assert 0 < float(share.split()[0]) < 100 and share.endswith("% of the drawn samples match"), share
    assert driver.run("return document.querySelectorAll('.box.hit').length") > 0
    assert driver.run("return document.querySelectorAll('.box.miss').length") > 0
    driver.keys("escape")
    assert driver.run("return document.querySelectorAll('.box.hit, .box.miss').length") == 0
    driver.keys(*"no such function")
    assert driver.run("return document.querySelector('.flame output').textContent").startswith("0.0 %")
    driver.keys("escape")


def the_graph_zooms_by_click_and_by_key(made):
    driver = made.driver
    widths = "return [...document.querySelectorAll('.box')].map((item) => [item.box.name, item.clientWidth])"
    before = dict(driver.run(widths))
    narrow = driver.run(
        "const whole = document.querySelector('.boxes').clientWidth;"
        "const item = [...document.querySelectorAll('.box')].find((item) => item.clientWidth < whole * 0.7 && item.clientWidth > 40);"
        "item.click(); return item.box.name"
    )
    whole = driver.run("return document.querySelector('.boxes').clientWidth")
    assert dict(driver.run(widths))[narrow] > before[narrow] and dict(driver.run(widths))[narrow] >= whole - 2
    driver.keys("escape")
    assert dict(driver.run(widths))[narrow] == before[narrow]
    driver.run("document.querySelector('.box[tabindex=\"0\"]').focus()")
    driver.keys("up", "down", "enter")
    assert driver.run("return document.activeElement.clientWidth") >= whole - 2
    driver.keys("escape")
    about = driver.run("return document.querySelector('.about').textContent")
    assert "samples" in about, about


def a_phone_scrolls_in_one_direction(made):
    driver = made.driver
    driver.size(400, 800)
    try:
        width = driver.run("return document.documentElement.scrollWidth")
        assert width <= 400, width
        # A figure of a table is not broken into lines.
        lines = driver.run(
            "return [...document.querySelectorAll('td:not(:has(svg))')].filter((cell) => cell.firstChild).map((cell) => {"
            "const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length; })"
        )
        assert lines and max(lines) == 1, lines
        # The numbers of the bill are not beyond its edge.
        bill = "return [...document.querySelectorAll('#bill .scroll')].map((box) => box.scrollWidth - box.clientWidth)"
        assert max(driver.run(bill)) <= 0, driver.run(bill)
        labels = driver.run("return [...document.querySelectorAll('.plot text')].map((text) => text.getBoundingClientRect().left)")
        assert labels and min(labels) >= 0, labels
        small = driver.run("return parseFloat(getComputedStyle(document.querySelector('.plot svg text')).fontSize)")
        assert small >= 11, small
    finally:
        driver.size(1200, 900)


def the_labels_of_an_axis_are_beside_the_data(made):
    driver = made.driver
    over = (
        "return [...document.querySelectorAll('#timeline .plot')].map((plot) => {"
        "const left = plot.querySelector('svg svg').getBoundingClientRect().left;"
        "const labels = [...plot.querySelectorAll('text[text-anchor=end][x=\"-6\"]')];"
        "return [labels.length, labels[0].textContent, labels.filter((label) => label.getBoundingClientRect().right > left).length]; })"
    )
    for lines, first, inside in driver.run(over):
        assert 3 <= lines <= 5 and first.startswith("0") and inside == 0, (lines, first, inside)


def dark_mode_is_dark(made):
    ground = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(made.driver.run(ground)) > 200
    made.driver.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert max(made.driver.run(ground)) < 60
    finally:
        made.driver.devtools("Emulation.setEmulatedMedia", features=[])


CONTRAST = """
const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = (colour) => rgb(colour).slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, nth) => sum + c * [0.2126, 0.7152, 0.0722][nth], 0);
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if ((rgb(colour)[3] ?? 1) > 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const poor = [];
for (const node of document.querySelectorAll('p, li, td, th, dt, dd, strong, span, a, code, summary, h1, h2, h3, .box, output, label, button')) {
  if (!node.textContent.trim() || node.closest('.miss, .above')) continue;
  const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) poor.push([node.tagName, node.className, node.textContent.slice(0, 30), ratio]);
}
return poor;
"""


def text_has_enough_contrast(made):
    """4.5 to 1, WCAG 2.1 level AA."""
    for scheme in ("light", "dark"):
        made.driver.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        poor = made.driver.run(CONTRAST)
        made.driver.devtools("Emulation.setEmulatedMedia", features=[])
        assert poor == [], (scheme, poor[:5])


def readers_of_the_screen_have_a_table_for_each_chart(made):
    driver = made.driver
    assert driver.run("return document.documentElement.lang") == "en"
    levels = driver.run("return [...document.querySelectorAll('h1, h2, h3')].map((heading) => Number(heading.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:])), levels
    without = driver.run("return [...document.querySelectorAll('figure.chart')].filter((one) => !one.querySelector('tbody tr')).length")
    assert without == 0 and driver.run("return document.querySelectorAll('figure.chart').length") >= 3
    unnamed = "return [...document.querySelectorAll('[tabindex], input, button')].filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim())).length"
    assert driver.run(unnamed) == 0


def paper_has_every_table_that_is_not_long(made):
    driver = made.driver
    driver.run("dispatchEvent(new Event('beforeprint'))")
    assert driver.run("return document.querySelectorAll('details:not([open])').length") == 0
    shown = (
        "return [...document.querySelectorAll('.chart details')].map((one) => "
        "[one.querySelectorAll('tbody tr').length > 20, getComputedStyle(one).display !== 'none'])"
    )
    driver.devtools("Emulation.setEmulatedMedia", media="print")
    printed = driver.run(shown)
    driver.devtools("Emulation.setEmulatedMedia", media="")
    assert printed and all(is_long != is_shown for is_long, is_shown in printed), printed
    driver.run("dispatchEvent(new Event('afterprint'))")
    assert driver.run("return document.querySelectorAll('details:not([open])').length") > 0


def it_can_be_read_without_a_script(made):
    driver = made.driver
    driver.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        driver.open(made.page)
        text = driver.send("POST", "/element", {"using": "css selector", "value": "body"})[ELEMENT]
        shown = driver.send("GET", f"/element/{text}/text")
        assert "Verdict" in shown or "VERDICT" in shown
        assert "needs the script of this file" in shown
    finally:
        driver.devtools("Emulation.setScriptExecutionDisabled", value=False)
        driver.open(made.page)


def other_reports_are_pages_too(made):
    """A trial, from its own run and from its file, counted calls, a series of windows, and a bench."""
    driver = made.driver
    names = ("trial", "count", "again-trial", "series", "pipeline")
    trial, count, again, series, pipeline = (made.folder / f"{name}.html" for name in names)
    made.allocwall("trial", "--with", "none", "--blocks", "10", "-o", str(trial), "--", "/bin/true")
    saved = list((made.folder / "state").rglob("*.trial"))
    assert len(saved) == 1, saved
    made.allocwall("report", str(saved[0]), "-o", str(again))
    assert again.read_bytes() == trial.read_bytes()
    made.allocwall("count", "-o", str(count), "--", "/bin/ls", "-lR", "/etc")
    busy = ("--", "sh", "-c", "while :; do :; done")
    made.allocwall("diagnose", "--repeat", "3", "-d", "500ms", "--every", "1s", "-o", str(series), *busy)
    small = ("--orders", "20k", "--warm-up", "1k", "--rate", "max", "--check", "0", "--allocators", "none", "--variants", "by-value")
    made.allocwall("bench", "pipeline", "--blocks", "1", *small, "-o", str(pipeline))
    driver.size(400, 800)
    try:
        for page in (trial, count, series, pipeline):
            driver.open(page)
            assert driver.errors() == [], page
            assert driver.run("return document.documentElement.scrollWidth") <= 400, page
            assert driver.run("return document.querySelectorAll('main table').length") > 0, page
    finally:
        driver.size(1200, 900)
        driver.open(made.page)


TESTS = [
    the_recording_is_kept_beside_the_page, it_is_one_small_file_that_asks_for_nothing, the_browser_reports_no_error,
    a_script_of_others_is_refused, hostile_names_stay_text, the_verdict_is_the_first_text, the_bars_sum_as_the_text_does,
    the_cursor_shows_all_charts_at_one_time, arrow_keys_move_the_cursor, search_marks_boxes_and_says_their_share,
    the_graph_zooms_by_click_and_by_key, a_phone_scrolls_in_one_direction, the_labels_of_an_axis_are_beside_the_data,
    dark_mode_is_dark, text_has_enough_contrast, readers_of_the_screen_have_a_table_for_each_chart,
    paper_has_every_table_that_is_not_long, it_can_be_read_without_a_script, other_reports_are_pages_too,
]  # fmt: skip


def keep(made, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(made.page, folder)
    driver = made.driver
    for name, width, scheme in (("wide", 1200, "light"), ("dark", 1200, "dark"), ("narrow", 400, "light")):
        driver.size(width, 900)
        driver.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        driver.open(made.page)
        driver.picture(folder / f"{name}.png")
    driver.devtools("Emulation.setEmulatedMedia", features=[])
    driver.run("dispatchEvent(new Event('beforeprint'))")
    printed = driver.devtools("Page.printToPDF", printBackground=False)
    (folder / "printed.pdf").write_bytes(base64.b64decode(printed["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/debug/allocwall")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    arguments = parser.parse_args()
    subprocess.run([ROOT / "tools/need.sh", "chromium=chromium", "chromedriver=chromium-driver"], check=True)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="allocwall-html-") as folder:
        made = Made(arguments.binary.resolve(), Path(folder))
        try:
            for test in TESTS:
                if arguments.tests and test.__name__ not in arguments.tests:
                    continue
                try:
                    test(made)
                    passed += 1
                except Exception:
                    failed += 1
                    print(f"failed: {test.__name__}: {traceback.format_exc().strip()}")
            if arguments.keep:
                keep(made, arguments.keep)
        finally:
            made.driver.end()
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
