"""Headless Chromium, driven through its DevTools: opens a page, counts its marks, reads its console and its requests."""
import base64
import json
import pathlib
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains

ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions",
             "--disable-background-networking", "--no-first-run"]


class Browser:
    def __init__(self):
        options = webdriver.ChromeOptions()
        for a in ARGUMENTS:
            options.add_argument(a)
        options.binary_location = "/usr/bin/chromium"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)

    def close(self):
        self.driver.quit()

    def look(self, width, dark=False):
        """The size and the colours of the next pages."""
        self.width = width
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})

    def open(self, url):
        self.console(), self.requests()
        self.driver.get("about:blank")
        self.driver.get(url)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def wait(self, text, seconds=10):
        """Until the expression is true; its last value."""
        end = time.monotonic() + seconds
        while True:
            value = self.script(f"return {text}")
            if value or time.monotonic() > end:
                return value
            time.sleep(0.05)

    def console(self):
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """Addresses asked for since the last call."""
        out = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                out.append(message["params"]["request"]["url"])
        return out

    def keys(self, *keys):
        chain = ActionChains(self.driver)
        for k in keys:
            chain.send_keys(k)
        chain.perform()

    def screenshot(self, path):
        """The whole page, in pieces that a viewer shows at full size: PATH-0.png and on."""
        height = self.script("return document.documentElement.scrollHeight")
        each = 1200 if self.width > 500 else 2000
        for i, y in enumerate(range(0, height, each)):
            clip = {"x": 0, "y": y, "width": self.width, "height": min(each, height - y), "scale": 1}
            shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            pathlib.Path(f"{path}-{i}.png").write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path):
        made = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": False, "paperWidth": 8.27, "paperHeight": 11.69})
        pathlib.Path(path).write_bytes(base64.b64decode(made["data"]))
