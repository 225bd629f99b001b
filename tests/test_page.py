"""The page in a real browser: it opens, generates, fills its canvas, replays, infills, chats. Skipped without one."""

import shutil

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from playwright import sync_api
from playwright.sync_api import expect
from serving import listening, started

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def address(tiny_inference):
    with started(tiny_inference) as engine, listening(engine) as address:
        yield "http://{}:{}/".format(*address)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page, opened; whatever it complains of fails the test."""
    context = browser.new_context()
    page, complaints = context.new_page(), []
    page.on("console", lambda message: is_complaint(message) and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
    page.goto(address)
    expect(page.locator("#model")).to_have_text("tiny")
    yield page
    context.close()
    assert complaints == []


def is_complaint(message):
    """Chromium also logs what the server refuses, which a test may be about."""
    return message.type in ("error", "warning") and "status of 400" not in message.text


def generate(page):
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_contain_text("tokens in", timeout=60_000)


def masks(page):
    return page.locator(".cell.mask").count()


def test_the_canvas_fills_and_replays(page):
    page.get_by_role("button", name="def gcd(a, b):").click()
    page.get_by_text("Settings").click()
    page.get_by_label("Tokens to fill").fill("48")
    page.evaluate(
        """() => {
            window.seen = [];
            const look = () => window.seen.push(document.querySelectorAll('.cell.mask').length);
            new MutationObserver(look).observe(document.getElementById('canvas'), { childList: true, subtree: true });
        }"""
    )
    generate(page)
    seen = page.evaluate("window.seen")
    # The first steps may arrive with the empty canvas.
    assert max(seen) >= 40
    assert len(set(seen)) > 4, "the canvas filled at once"
    assert page.locator(".cell.decided").count() > 0
    left = masks(page)
    assert page.get_by_label("Text").input_value().startswith("def gcd(a, b):")
    slider = page.get_by_label("Step of the replay")
    steps = int(slider.get_attribute("max"))
    assert int(slider.input_value()) == steps > 4
    slider.fill("0")
    assert masks(page) == 48
    slider.fill(str(steps // 2))
    assert left < masks(page) < 48
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("#step-text")).to_have_text(f"step {steps} of {steps}", timeout=20_000)
    assert masks(page) == left
    assert page.locator("#order circle").count() == page.locator(".cell.decided").count()
    by_step = page.locator(".cell.decided").first.get_attribute("style")
    page.get_by_label("by confidence").check()
    assert page.locator(".cell.decided").first.get_attribute("style") != by_step or by_step == "--share: 100%;"
    assert page.locator("#forwards").inner_text().isdigit()


def test_a_hole_is_marked_and_filled_from_the_keyboard(page):
    page.get_by_label("Infill").check(force=True)
    box = page.locator("#prompt")
    box.fill("def f(x):\n    y = GAP\n    return y\n")
    start = box.input_value().index("GAP")
    box.evaluate(f"box => box.setSelectionRange({start}, {start + 3})")
    page.get_by_role("button", name="Mark hole").click()
    assert box.input_value() == "def f(x):\n    y = ⟨HOLE⟩\n    return y\n"
    box.press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("tokens in", timeout=60_000)
    text = page.get_by_label("Text").input_value()
    assert text.startswith("def f(x):\n    y = ")
    assert text.endswith("\n    return y\n")
    assert "HOLE" not in text
    box.fill("no hole")
    page.get_by_role("button", name="Generate").click()
    assert "Mark one hole" in page.locator("#status").inner_text()


def test_a_conversation_goes_on(page):
    page.get_by_label("Chat").check(force=True)
    page.get_by_text("Settings").click()
    page.get_by_label("Tokens to fill").fill("8")
    for count in (2, 4):
        page.locator("#prompt").fill("Write gcd.")
        generate(page)
        assert page.locator("#conversation li").count() == count
        page.evaluate("document.getElementById('status').textContent = ''")
    page.get_by_role("button", name="New chat").click()
    assert page.locator("#conversation li").count() == 0


def test_what_the_server_refuses_is_said(page):
    page.get_by_text("Settings").click()
    page.get_by_label("Preset").select_option("turbo")
    page.get_by_label("Steps").fill("3")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("#status.failed")
    assert "steps" in page.locator("#status").inner_text()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 740})
    generate(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
