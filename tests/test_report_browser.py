"""The report in a real browser: desktop and phone, light and dark, with and without scripts.

KVEXACT_SCREENSHOTS names a folder for pictures of it.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from example_run import EVIL, make_run

from kvexact.fuzz import results, summary_file
from kvexact.fuzz.report import files as report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

#: Width, height.
DESKTOP, PHONE = (1280, 900), (390, 844)


@dataclass
class Browser:
    """Opens the report, and notes what the browser complains of."""

    browser: Any
    html: Path
    complaints: list[str]

    def open(self, size: tuple[int, int], **options: Any) -> Any:
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            permissions=["clipboard-read", "clipboard-write"],
            **options,
        )
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._requested)
        page.goto(self.html.as_uri())
        return page

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(("data:", self.html.as_uri())):
            self.complaints.append(f"asked for {request.url}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any, tmp_path: Path) -> Iterator[Browser]:
    report.write(make_run(tmp_path), tmp_path)
    used = Browser(chromium, tmp_path / report.PAGE, [])
    yield used
    assert used.complaints == []


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("KVEXACT_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits(browser: Browser, size: tuple[int, int], scheme: str) -> None:
    page = browser.open(size, color_scheme=scheme)
    picture(page, f"{'phone' if size == PHONE else 'desktop'}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.title().startswith("2 new failures")
    loaded = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
    assert loaded == [True, True]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    channel = int(ground.removeprefix("rgb(").split(",")[0])
    assert (channel < 60) == (scheme == "dark")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_control_does_what_it_says(browser: Browser, size: tuple[int, int]) -> None:
    page = browser.open(size)
    for file in page.locator("details.file > summary").all():
        file.click()
        assert file.evaluate("one => one.parentElement.open")
    buttons = page.locator(".code button")
    assert buttons.count() == 6
    for button in buttons.all():
        button.click()
        playwright.expect(button).to_have_text("Copied")
        shown = button.evaluate("one => one.parentElement.querySelector('pre').textContent")
        assert page.evaluate("navigator.clipboard.readText()") == shown != ""
    for card in page.locator("details.card > summary").all():
        card.click()
        assert not card.evaluate("one => one.parentElement.open")
    for link in page.locator("nav a").all():
        link.click()
        target = page.locator(link.get_attribute("href"))
        playwright.expect(target).to_be_in_viewport()


def test_a_link_to_a_failure_opens_it(browser: Browser) -> None:
    page = browser.open(DESKTOP)
    page.locator("#failure-2 > summary").click()
    page.evaluate("location.hash = 'failure-2'")
    playwright.expect(page.locator("#failure-2 pre.lines")).to_be_visible()


def test_it_is_whole_without_scripts(browser: Browser) -> None:
    page = browser.open(PHONE, java_script_enabled=False)
    picture(page, "phone-without-scripts")
    assert page.locator("button:visible").count() == 0
    page.locator("details.file > summary").first.click()
    test = page.locator("details.file pre").first
    playwright.expect(test).to_contain_text("def test_reproducer")


def test_it_runs_nothing_of_a_target(browser: Browser) -> None:
    page = browser.open(DESKTOP)
    assert page.title().startswith("2 new failures")
    assert EVIL in page.inner_text("body")
    assert page.locator("script").count() == 1


def test_a_script_that_got_in_would_not_run(browser: Browser) -> None:
    """The second wall: even unescaped, a script is not the one whose hash the page allows."""
    html = browser.html.read_text()
    browser.html.write_text(html.replace("<main", "<script>document.title='owned'</script><main"))
    page = browser.open(DESKTOP)
    assert page.title().startswith("2 new failures")
    assert "Content Security Policy" in browser.complaints.pop()


def test_a_sound_run(browser: Browser, tmp_path: Path) -> None:
    sound = results.Result(summary_file.load(tmp_path).runs)
    report.write(sound, tmp_path)
    page = browser.open(PHONE)
    picture(page, "phone-sound")
    assert page.title().startswith("Sound")
