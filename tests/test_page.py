"""The page in a real browser: generating, replaying slowly, sharing, by keyboard, on a phone.

Skipped without one. `page/opening.json` was made by the page itself, from the example
`def is_prime(n):` with preset exact: "Save replay".
"""

import http.server
import io
import json
import keyword
import math
import re
import shutil
import threading
import time
import tokenize
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright")

from cases.causal import write_causal
from cases.server import OPTIONS, call, listening, started
from playwright import sync_api
from playwright.sync_api import expect

from jax_lm.inference import DiffuCoderInference
from jax_lm.serving import api
from jax_lm.serving.api import ServerSettings
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.middleware import RequestLimits
from jax_lm.serving.page_files import PAGE, PAGE_FILES
from jax_lm.serving.slots import Slots
from untrusted import run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
PHONE = {"width": 390, "height": 844}
REPLAY = {
    "format": "diffucoder-replay-1", "model": "m", "before": "def f():", "after": "", "chat": False, "length": 6,
    "forwards": 3, "seconds": 0.2, "tokens": 3, "reason": "stop", "text": " return 1",
    "commits": [[5, 1, "<|endoftext|>", 0.99], [3, 1, "<|endoftext|>", 0.98], [0, 2, "\n    ", 0.9],
                [2, 2, "<b>1</b>", 0.5], [1, 3, "return ", 0.25]],
}  # fmt: skip


STORED = json.loads((PAGE / "opening.json").read_text())


@pytest.fixture(scope="module")
def tiny_engine(tiny_inference):
    with started(tiny_inference) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(tiny_engine):
    with listening(tiny_engine) as address:
        yield "http://{}:{}/".format(*address)


@pytest.fixture(scope="module")
def builtin_address(engine):
    options = EngineOptions(slots=1, queue=12, context=256, max_tokens=144)
    settings = ServerSettings(model="builtin", defaults={"preset": "turbo"})
    with started(engine, options) as builtin, listening(builtin, settings) as address:
        yield "http://{}:{}/".format(*address)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens the page, and waits for the stored replay and the model, or for `model` in its place.

    Whatever the page complains of, or asks of another host, fails the test.
    """
    contexts, complaints = [], []

    def opened(address, model=re.compile("tiny|builtin"), **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: is_complaint(message) and complaints.append(message.text)
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: is_own(request.url, address) or complaints.append(request.url),
        )
        page.goto(address)
        expect(page.locator("#model")).to_contain_text(model)
        if "#" not in address:
            expect(page.locator("#status")).to_contain_text("A stored replay of")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(visit, address):
    return visit(address)


def is_complaint(message):
    """Chromium also logs refused requests and servers that are gone, which a test may be about."""
    is_refusal = re.search("status of (40[01]|501)|ERR_CONNECTION_REFUSED", message.text)
    path = message.location["url"].rpartition("/")[2]
    is_absent = "status of 404" in message.text and path == "models"
    is_starting = "status of 503" in message.text and path == "ready"
    return message.type in ("error", "warning") and not (is_refusal or is_absent or is_starting)


def is_own(url, address):
    """The page makes blobs to save files."""
    return url.removeprefix("blob:").startswith(address.split("#")[0])


def generate(page, **settings):
    """Generate, and wait until the server is done; the page may still be playing."""
    if settings:
        page.locator("#ask details").evaluate("details => { details.open = true; }")
    for name, value in settings.items():
        field = page.locator(f"#{name}")
        field.select_option(value) if name in ("preset", "alg") else field.fill(value)
    page.get_by_role("button", name="Generate").click()
    is_done(page)


def is_done(page):
    """Wait for the end of what was asked; replays say that they are replays."""
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d+ tokens in"), timeout=60_000)


def shown(page):
    """The pass that is shown, and all that there are."""
    found = re.fullmatch(r"pass (\d+) of (\d+)", page.locator("#pass-text").inner_text())
    assert found
    return tuple(map(int, found.groups()))


def masks(page):
    return page.locator("#cells .cell.mask:visible").count()


def cells(page):
    return page.locator("#cells .cell:visible").all_inner_texts()


def written(page):
    """The text without trailing layout: what a user copies."""
    return page.locator("#answer").evaluate("answer => answer.textContent")


def test_all_files_of_the_page_come_without_a_key_and_under_its_policy(tiny_engine):
    with listening(tiny_engine, limits=RequestLimits(keys=("k" * 16,), hosts=())) as address:
        assert set(PAGE_FILES.values()) == set(PAGE.iterdir())
        for path, file in PAGE_FILES.items():
            status, headers, text = call(address, "GET", path)
            content = file.read_text()
            assert (status, text) == (200, json.loads(content) if path[-5:] == ".json" else content)
            assert headers["content-security-policy"].startswith(
                "default-src 'none'; script-src 'self';"
            )


@contextmanager
def static_host():
    """Serve the files of the page below a path, without a model."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return super().translate_path(path.removeprefix("/demo"))

        def log_message(self, *_):
            pass

    host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=PAGE))
    with host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{host.server_port}/demo/"
        host.shutdown()


def test_the_page_opens_with_a_replay_that_plays_without_a_server(visit):
    with static_host() as address:
        page = visit(address, model="no model behind this page")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        at, passes = shown(page)
        assert at < passes == STORED["forwards"] == 63
        expect(page.locator("#pass-text")).not_to_have_text(f"pass {at} of {passes}")
        assert shown(page)[0] > at
        page.get_by_label("Pass", exact=True).fill(str(passes))
        assert written(page) == STORED["before"] + STORED["text"]
        assert masks(page) == 0
        # There is nothing to ask, so the replay comes first.
        expect(page.get_by_role("button", name="Generate")).to_be_hidden()
        expect(page.locator("#ask")).to_be_hidden()


def test_a_link_opens_instead_of_the_stored_replay_and_in_place_of_the_form(visit, address):
    page = visit(address)
    fragment = page.evaluate(
        "json => import('/replay.js').then(({ toFragment }) => toFragment(json))",
        json.dumps(REPLAY),
    )
    phone = visit(f"{address}#{fragment}", viewport=PHONE, has_touch=True)
    expect(phone.locator("#status")).to_contain_text("A replay of m: 3 tokens in")
    for place in ("#status", ".canvas", "#play"):
        expect(phone.locator(place)).to_be_in_viewport(ratio=1)
    expect(phone.locator("#prompt")).not_to_be_in_viewport()
    assert phone.locator("#before").inner_text() == "def f():"
    # Without a link the form comes first, and the replay begins on the same screen.
    first = visit(address, viewport=PHONE, has_touch=True)
    expect(first.locator("#run")).to_be_in_viewport(ratio=1)
    expect(first.locator(".canvas")).to_be_in_viewport(ratio=0.3)


def test_the_form_begins_with_the_default_of_the_server(visit, tiny_engine):
    settings = ServerSettings(model="tiny", defaults={"preset": "turbo"})
    with listening(tiny_engine, settings) as address:
        page = visit("http://{}:{}/".format(*address))
        names = [model["preset"] for model in call(address, "GET", "/v1/models")[2]["data"]]
        assert names == ["turbo", "exact", "fast", "turbo"]
        assert page.locator("#preset option").all_text_contents() == ["exact", "fast", "turbo"]
        assert page.locator("#preset").input_value() == "turbo"
        with page.expect_request("**/v1/denoise") as sent:
            generate(page, max_tokens="8")
        assert sent.value.post_data_json["preset"] == "turbo"


def test_an_autoregressive_model_is_offered_no_diffusion(visit, tmp_path, tiny_config):
    inference = DiffuCoderInference(write_causal(tmp_path, tiny_config), verbose=False)
    options = EngineOptions(slots=1, context=96, max_tokens=80)
    with started(inference, options) as causal, listening(causal) as address:
        page = visit("http://{}:{}/".format(*address), reduced_motion="reduce")
        assert "autoregressive" in page.locator("#model").inner_text()
        page.get_by_text("Settings").click()
        labels = page.locator(".settings label:visible").all_inner_texts()
        assert labels == ["Temperature", "Top p", "Seed"]
        expect(page.get_by_label("Chat")).not_to_be_visible()
        generate(page, max_tokens="9")
        assert shown(page) == (9, 9)
        page.get_by_text("Passes in words").click()
        passes = page.locator("#passes li").evaluate_all("all => all.map(each => each.value)")
        assert passes == list(range(1, 10))
        page.get_by_label("Infill").check(force=True)
        generate(page, max_tokens="9")
        assert "HOLE" not in written(page)


def test_a_request_says_what_it_waits_for(visit, tiny_inference, monkeypatch):
    """The compiler until the engine has started, the queue while another request has the slot.

    Comments that keep a slow stream open are no events.
    """
    run_slots = Slots.run
    monkeypatch.setattr(api, "HEARTBEAT_SECONDS", 0.05)

    def run_after(seconds):
        def run_slowly(self, *arguments):
            time.sleep(seconds)
            run_slots(self, *arguments)

        monkeypatch.setattr(Slots, "run", run_slowly)

    engine = Engine(tiny_inference, OPTIONS)
    with listening(engine) as address:
        page = visit("http://{}:{}/".format(*address), reduced_motion="reduce")
        page.get_by_label("Tokens to fill").fill("8")
        page.get_by_role("button", name="Generate").click()
        expect(page.locator("#status")).to_contain_text("Waiting for the compiler")
        assert call(address, "GET", "/ready")[2] == {"status": "not ready", "waits_for": "compiler"}
        engine.start()
        try:
            is_done(page)
            assert call(address, "GET", "/ready")[2] == {"status": "ready", "waits_for": None}
            run_after(0.5)
            body = {"prompt": "x", "max_tokens": 40, "preset": "exact"}
            other = threading.Thread(target=call, args=(address, "POST", "/v1/denoise", body))
            other.start()
            while not engine.queue.running:
                time.sleep(0.01)
            page.get_by_role("button", name="Generate").click()
            expect(page.locator("#status")).to_contain_text("Waiting in the queue")
            run_after(0.1)
            is_done(page)
            other.join()
        finally:
            engine.close(grace=0.0)


def test_a_missing_key_is_asked_for_and_kept_for_the_tab(visit, tiny_engine):
    key = "k" * 16
    with listening(tiny_engine, limits=RequestLimits(keys=(key,), hosts=())) as address:
        address = "http://{}:{}/".format(*address)
        page = visit(address, model="wants an API key", reduced_motion="reduce")
        field = page.get_by_label("This server wants an API key")
        expect(field).to_be_visible()
        page.get_by_role("button", name="Generate").click()
        expect(page.locator("#status.failed")).to_contain_text("wants an API key")
        expect(field).to_be_focused()
        field.fill("wrong")
        field.press("Enter")
        expect(page.locator("#model")).to_have_text("The server does not accept this API key.")
        field.fill(key)
        page.get_by_role("button", name="Use key").click()
        expect(page.locator("#model")).to_have_text("tiny")
        expect(field).not_to_be_visible()
        assert focused(page) == "run"
        generate(page, max_tokens="8")
        page.reload()
        expect(page.locator("#model")).to_have_text("tiny")
        expect(field).not_to_be_visible()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save replay").click()
        assert key not in Path(saved.value.path()).read_text()
        # Another tab is asked again.
        visit(address, model="wants an API key")


def test_a_server_that_is_gone_is_said_to_be_gone(visit, tiny_engine):
    with listening(tiny_engine) as address:
        page = visit("http://{}:{}/".format(*address))
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status.failed")).to_have_text(
        "The server does not answer. Is it still running?"
    )


def test_every_setting_is_explained_in_a_line(visit, address):
    page = visit(address, viewport={"width": 1280, "height": 844})
    page.get_by_text("Settings").click()
    fields = page.locator("#ask :is(.settings, .row) :is(input, select)")
    told = fields.evaluate_all(
        """fields => fields.map((field) => {
            const why = document.getElementById(field.getAttribute("aria-describedby"));
            return [field.id, why.textContent, why.getClientRects().length, why.offsetHeight];
        })"""
    )
    assert [name for name, *_ in told] == [
        "max_tokens", "preset", "alg", "steps", "threshold", "block_length", "temperature", "top_p",
        "seed",
    ]  # fmt: skip
    for name, text, parts, height in told:
        assert text.endswith("."), name
        assert (parts, height < 30) == (1, True), f"{name}: {text}"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit, address, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    size = {"width": width, "height": 844}
    page = visit(address, color_scheme=scheme, viewport=size, reduced_motion="reduce")
    page.locator("#unlock").evaluate("form => { form.hidden = false; }")
    page.get_by_text("Settings").click()
    page.get_by_text("Passes in words").click()
    for mode in ("Infill", "Chat"):
        page.get_by_label(mode).check(force=True)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert len(found.response["passes"]) > 20


def test_the_canvas_fills_slowly_and_replays(page):
    page.get_by_role("button", name="def gcd(a, b):").click()
    generate(page, max_tokens="48")
    # The server is done long before the page has shown it all at ten passes per second.
    at, passes = shown(page)
    assert at < passes
    assert passes > 4
    assert int(page.locator("#forwards").inner_text()) == passes
    assert masks(page) > 0
    seen = {masks(page)}
    page.get_by_label("Speed").select_option("30")
    while shown(page)[0] < passes:
        seen.add(masks(page))
    assert len(seen) > 4, "the canvas filled at once"
    expect(page.get_by_role("button", name="Replay", exact=True)).to_be_enabled()
    assert written(page).startswith("def gcd(a, b):")
    left, slider = masks(page), page.get_by_label("Pass", exact=True)
    assert int(slider.input_value()) == int(slider.get_attribute("max")) == passes
    slider.fill("0")
    assert masks(page) == 48
    slider.fill(str(passes // 2))
    assert left < masks(page) < 48
    page.get_by_label("Speed").select_option("real")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator("#pass-text")).to_have_text(f"pass {passes} of {passes}", timeout=20_000)
    assert masks(page) == left


def test_the_time_of_an_answer_begins_with_its_request(page):
    def delayed(route):
        time.sleep(0.5)
        route.continue_()

    page.route("**/v1/denoise", delayed)
    generate(page)
    seconds = re.search(r"tokens in ([\d.]+) s", page.locator("#status").inner_text())
    assert seconds
    assert float(seconds[1]) >= 0.5


def test_a_paused_replay_stays_where_it_is(page):
    generate(page)
    page.get_by_role("button", name="Pause").click()
    at = shown(page)
    assert at[0] < at[1]
    page.wait_for_timeout(400)
    assert shown(page) == at
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#pass-text")).not_to_have_text("pass {} of {}".format(*at))
    assert shown(page)[0] > at[0]


@pytest.mark.parametrize("preset", ["exact", "fast", "turbo"])
@pytest.mark.parametrize("alg", ["entropy", "origin", "left_to_right"])
def test_passes_are_the_models_evaluations(page, preset, alg):
    """Passes, forwards and the list in words say the same, also where steps are skipped or decide
    nothing.
    """
    if preset == "turbo" and alg == "origin":
        pytest.skip("turbo decides by probability, origin by chance")
    page.evaluate(
        """() => {
            const ask = window.fetch;
            window.fetch = async (...given) => {
                const answer = await ask(...given);
                if (given[0].endsWith("denoise")) window.heard = answer.clone().text();
                return answer;
            };
        }"""
    )
    generate(page, preset=preset, alg=alg, max_tokens="40")
    heard = page.evaluate("window.heard").splitlines()
    events = [json.loads(line[6:]) for line in heard if line.startswith("data: ")]
    forwards = events[-1]["forwards"]
    page.get_by_label("Pass", exact=True).fill(str(forwards))
    assert shown(page) == (forwards, forwards)
    assert page.locator("#forwards").inner_text() == str(forwards)
    page.get_by_text("Passes in words").click()
    listed = page.locator("#passes li").evaluate_all("items => items.map(item => item.value)")
    assert listed == sorted(set(listed))
    assert listed[-1] == forwards
    steps = {commit["step"] for event in events for commit in event.get("commits", [])}
    assert len(listed) == len(steps)
    if alg != "origin":
        assert listed == list(range(1, forwards + 1))


def test_who_wants_no_motion_sees_the_end_at_once(visit, address):
    page = visit(address, reduced_motion="reduce")
    generate(page)
    at, passes = shown(page)
    assert at == passes > 4
    page.get_by_label("Speed").select_option("2")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_timeout(300)
    assert shown(page)[0] < passes


def test_end_tokens_are_folded_and_markup_is_text(visit, address):
    page = visit(address, reduced_motion="reduce")
    open_file(page, json.dumps(REPLAY))
    assert cells(page) == ["↵\n    ", "return ", "<b>1</b>", "end \u00d73"]
    page.get_by_label("Pass", exact=True).fill("1")
    assert cells(page) == ["▒▒", "▒▒", "▒▒", "end", "▒▒", "end"]
    page.get_by_label("Pass", exact=True).fill("2")
    assert cells(page) == ["↵\n    ", "▒▒", "<b>1</b>", "end", "▒▒", "end"]
    page.get_by_label("Pass", exact=True).fill("3")
    page.get_by_text("Passes in words").click()
    words = page.locator("#passes li").all_inner_texts()
    assert words == [
        "end of text \u00d72",
        '"\\n    " 90.0 %, "<b>1</b>" 50.0 %',
        '"return " 25.0 %',
    ]
    assert written(page) == "def f(): return 1"
    assert page.locator("#order circle").count() == 5
    assert page.locator("#figures div").all_inner_texts()[:4] == [
        "Tokens\n3", "End tokens\n2", "Passes (forwards)\n3", "Tokens per pass\n1.0",
    ]  # fmt: skip


def test_a_token_tells_its_pass_and_confidence_by_tap_and_keyboard(visit, address):
    page = visit(address, reduced_motion="reduce", has_touch=True, viewport=PHONE)
    open_file(page, json.dumps(REPLAY))
    page.locator("#cells .cell", has_text="return").tap()
    expect(page.locator("#token")).to_have_text(
        'Position 2: "return ", decided in pass 3 of 3, confidence 25.0 %.'
    )
    page.keyboard.press("ArrowRight")
    chosen = page.locator("#cells [aria-selected=true]")
    assert chosen.inner_text() == "<b>1</b>"
    assert page.locator("#cells").get_attribute("aria-activedescendant") == chosen.get_attribute(
        "id"
    )
    assert "50.0 %" in (chosen.get_attribute("aria-label") or "")
    page.keyboard.press("End")
    expect(page.locator("#token")).to_have_text("Position 4 and the 2 after it: end of text.")
    page.keyboard.press("Home")
    page.get_by_label("Pass", exact=True).fill("1")
    expect(page.locator("#token")).to_have_text("Position 1: masked, not decided yet.")


def test_colours_tell_pass_or_confidence(visit, address):
    page = visit(address, reduced_motion="reduce")
    open_file(page, json.dumps(REPLAY))

    def shares():
        decided = page.locator("#cells .decided")
        return decided.evaluate_all(
            "marks => marks.map(mark => mark.style.getPropertyValue('--share'))"
        )

    assert shares() == ["50%", "100%", "50%"]
    page.get_by_label("confidence").check()
    assert shares() == ["90%", "25%", "50%"]
    assert "100 % sure" in page.locator(".legend").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ramp_has_one_way_in_luminance_and_text_on_it_is_read(visit, address, scheme):
    """So that its order is seen without hues, as by the colour-blind."""
    page = visit(address, color_scheme=scheme)
    colours = page.evaluate(
        """() => {
            const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
            const measured = (property, value) => {
                const probe = document.querySelector('#model');
                probe.style.setProperty(property, value);
                pen.fillStyle = getComputedStyle(probe)[property];
                pen.fillRect(0, 0, 1, 1);
                return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
            };
            const ramp = Array.from({ length: 21 }, (_, i) =>
                measured('color', `color-mix(in oklch, var(--last) ${5 * i}%, var(--first))`));
            const code = ['keyword', 'string', 'number', 'name', 'soft'].map((n) => measured('color', `var(--${n})`));
            const of = (name) => measured('color', `var(--${name})`);
            return { ramp, code, ink: of('tint-ink'), paper: of('paper'), mask: of('mask') };
        }"""
    )
    ramp = [luminance(colour) for colour in colours["ramp"]]
    assert ramp == sorted(ramp, reverse=scheme == "light")
    assert min(contrast(tint, luminance(colours["ink"])) for tint in ramp) >= 4.5
    assert contrast(ramp[0], ramp[-1]) >= 3
    # Five passes can be told apart, and each of them from a mask and from the paper.
    passes = [oklab(colour) for colour in colours["ramp"][::5]]
    for other in ("mask", "paper"):
        assert min(math.dist(each, oklab(colours[other])) for each in passes) >= 0.05, other
    assert min(math.dist(*pair) for pair in pairwise(passes)) >= 0.08
    assert min(contrast(luminance(c), luminance(colours["paper"])) for c in colours["code"]) >= 4.5


def linear(colour):
    """Linear parts of an sRGB colour."""
    parts = [part / 255 for part in colour]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour):
    """Relative luminance of an sRGB colour, WCAG 2.1."""
    return dot((0.2126, 0.7152, 0.0722), linear(colour))


def oklab(colour):
    """An sRGB colour in Oklab, where equal distances look alike; a step of 0.02 is just seen."""
    to_cones = ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
    to_lab = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
    cones = [dot(row, linear(colour)) ** (1 / 3) for row in to_cones]
    return [dot(row, cones) for row in to_lab]


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def contrast(one, other):
    """Of two luminances, WCAG 2.1."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_a_hole_is_marked_and_filled_from_the_keyboard(page):
    page.get_by_label("Infill").check(force=True)
    box = page.locator("#prompt")
    box.fill("def f(x):\n    y = GAP\n    return y\n")
    start = box.input_value().index("GAP")
    box.evaluate(f"box => box.setSelectionRange({start}, {start + 3})")
    page.get_by_role("button", name="Mark hole").click()
    assert box.input_value() == "def f(x):\n    y = ⟨HOLE⟩\n    return y\n"
    box.press("Control+Enter")
    is_done(page)
    assert written(page).startswith("def f(x):\n    y = ")
    assert written(page).endswith("\n    return y\n")
    assert "HOLE" not in written(page)
    assert page.locator("#after").inner_text() == "\n    return y\n"
    box.fill("no hole")
    page.get_by_role("button", name="Generate").click()
    assert "Mark one hole" in page.locator("#status").inner_text()


def test_a_conversation_goes_on(page):
    page.get_by_label("Chat").check(force=True)
    for count in (2, 4):
        page.locator("#prompt").fill("Write gcd.")
        generate(page, max_tokens="8")
        assert page.locator("#conversation li").count() == count
        assert page.locator("#before").inner_text().startswith("Write gcd.")
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


def test_a_request_that_comes_to_nothing_leaves_the_last_replay(visit, address):
    page = visit(address, reduced_motion="reduce")
    generate(page, max_tokens="8")
    made = outcome(page)
    page.evaluate(
        """() => {
            window.fetch = (_, { signal }) => new Promise((_, refuse) => {
                signal.addEventListener('abort', () => refuse(signal.reason));
            });
        }"""
    )
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#status")).to_have_text("Waiting for the server…")
    expect(page.get_by_role("button", name="Generate")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="Generate").click(force=True)
    open_file(page, json.dumps(REPLAY))
    expect(page.locator("#status")).to_contain_text("Stop the request first")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("Stopped.")
    assert focused(page) == "run"
    assert outcome(page) == made
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator("#pass-text")).to_have_text(f"pass {made[-1][1]} of {made[-1][1]}")


@pytest.mark.parametrize("width", [360, 390, 1280])
def test_the_canvas_is_in_the_window_and_nothing_is_wider(visit, address, width):
    page = visit(address, viewport={"width": width, "height": 844})
    page.get_by_role("button", name="Generate").click()
    expect(page.locator(".canvas")).to_be_in_viewport(ratio=1)
    expect(page.locator("#status")).to_be_in_viewport(ratio=1)
    is_done(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#play")).to_be_in_viewport(ratio=1)


def test_the_keyboard_reaches_everything_and_keeps_its_place(visit, address):
    page = visit(address, reduced_motion="reduce")
    page.locator("#prompt").focus()
    page.keyboard.press("Tab")
    assert focused(page) == "run"
    page.keyboard.press("Enter")
    is_done(page)
    assert focused(page) == "run", "the focus was lost with a button that was disabled"
    order = []
    while (place := focused(page)) and place not in order:
        order.append(place)
        page.keyboard.press("Tab")
    reached = [
        place
        for place in order
        if place
        in (
            "run",
            "max_tokens",
            "cells",
            "play",
            "pass",
            "speed",
            "answer",
            "copy",
            "link",
            "save",
            "open",
        )
    ]
    assert reached == [
        "run",
        "max_tokens",
        "cells",
        "play",
        "pass",
        "speed",
        "answer",
        "copy",
        "link",
        "save",
        "open",
    ]


def focused(page):
    """The id of what has the focus, else its name or text; empty at the page's end."""
    return page.evaluate(
        "(e => e === document.body ? '' : e.id || e.name || e.textContent.trim())(document.activeElement)"
    )


def test_everything_that_takes_the_focus_has_a_name(visit, address):
    page = visit(address, reduced_motion="reduce")
    generate(page, max_tokens="8")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
        and any(p["name"] == "focusable" and p["value"]["value"] for p in node["properties"])
    ]
    assert len(named) > 25
    assert [role for role, name in named if not name.strip() and role != "RootWebArea"] == []
    assert {"listbox", "slider", "combobox", "button", "radio", "textbox"} <= {
        role for role, _ in named
    }
    live = page.locator("[role=status], output").evaluate_all(
        "all => all.map(e => [e.id, e.ariaLive])"
    )
    # Only the status is read out of itself: a replay would talk ten times a second.
    assert live == [["status", None], ["pass-text", "off"]]


def open_file(page, text):
    """Open a saved replay."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open replay").click()
    chooser.value.set_files(
        {"name": "replay.json", "mimeType": "application/json", "buffer": text.encode()}
    )
    expect(page.locator("#status")).not_to_have_text(re.compile("^A stored replay"))


def outcome(page):
    """All that a replay must bring back."""
    page.get_by_label("Pass", exact=True).fill(
        page.get_by_label("Pass", exact=True).get_attribute("max")
    )
    figures = page.locator("#figures dd").all_inner_texts()
    title = page.locator("#cells .cell").evaluate_all("marks => marks.map(mark => mark.ariaLabel)")
    return figures, title, cells(page), written(page), shown(page)


def test_a_replay_is_shared_by_link_and_by_file(visit, address, tmp_path):
    page = visit(
        address, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"]
    )
    page.locator("#prompt").fill("def f(ä):  # ∎ <b>")
    generate(page, max_tokens="24", temperature="0.7", seed="3")
    made = outcome(page)
    page.get_by_role("button", name="Copy link to replay").click()
    expect(page.locator("#status")).to_contain_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = visit(link, reduced_motion="reduce")
    expect(other.locator("#status")).to_contain_text("A replay of tiny")
    assert outcome(other) == made
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save replay").click()
    assert saved.value.suggested_filename == "replay.json"
    text = Path(saved.value.path()).read_text()
    third = visit(address, reduced_motion="reduce")
    open_file(third, text)
    expect(third.locator("#status")).to_contain_text("A replay of tiny")
    assert outcome(third) == made
    # What is generated next is not what the link in the address bar says.
    generate(page)
    assert "#" not in page.url


def test_an_indentation_at_the_end_of_a_line_stays_in_the_canvas(visit, address):
    # the new lines before the indentations are masks
    commits = [[1, 1, "b" * 22, 1], [2, 1, " " * 12, 1], [3, 1, "c", 1], [5, 1, " " * 60, 1]]
    page = visit(address, viewport=PHONE, reduced_motion="reduce")
    open_file(page, json.dumps(REPLAY | {"commits": commits}))
    expect(page.locator("#status")).to_contain_text("A replay of m")
    ends = page.locator("#cells .cell").evaluate_all(
        "cells => cells.flatMap((cell) => [...cell.getClientRects()].map(({ right }) => right))"
    )
    assert len(ends) > 5
    assert max(ends) <= page.locator(".canvas").evaluate("box => box.getBoundingClientRect().right")


BROKEN = {
    "no JSON": "x",
    "another format": "{}",
    "null": "null",
    "too long": " " * 2**20 + json.dumps(REPLAY),
    "a position twice": json.dumps(REPLAY | {"commits": [[0, 1, "a", 1], [0, 2, "b", 1]]}),
    "a position outside": json.dumps(REPLAY | {"commits": [[6, 1, "a", 1]]}),
    "a pass too many": json.dumps(REPLAY | {"commits": [[0, 4, "a", 1]]}),
    "no text": json.dumps(REPLAY | {"text": 1}),
    "an endless canvas": json.dumps(REPLAY | {"length": 10**9}),
    "an own reason": json.dumps(REPLAY | {"reason": "<script>"}),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_replay_is_refused(page, text):
    before = page.locator("#cells .cell").count()
    open_file(page, text)
    page.wait_for_selector("#status.failed")
    assert re.match("That is no replay|The replay is", page.locator("#status").inner_text())
    assert page.locator("#cells .cell").count() == before == 64


def test_links_that_are_damaged_or_unpack_to_too_much_are_refused(visit, address):
    page = visit(address + "#replay=!!!")
    expect(page.locator("#status")).to_contain_text("The link is damaged")
    bomb = page.evaluate(
        "import('/replay.js').then(({ toFragment }) => toFragment(' '.repeat(2 ** 20 - 1)))"
    )
    page.evaluate("fragment => { location.hash = fragment; }", bomb)
    expect(page.locator("#status")).to_contain_text("not JSON")
    with pytest.raises(sync_api.Error, match="damaged"):
        page.evaluate(
            """async () => {
                const { fromFragment } = await import('/replay.js');
                const zip = new CompressionStream('deflate-raw');
                const packed = new Response(new Blob(['a'.repeat(2 ** 26)]).stream().pipeThrough(zip));
                const bytes = new Uint8Array(await packed.arrayBuffer());
                await fromFragment(btoa(bytes.reduce((all, byte) => all + String.fromCharCode(byte), '')));
            }"""
        )


def test_code_is_coloured_as_python_reads_it(page):
    """Compared with the interpreter's own tokenizer, on the programs of this package and on what is
    hard.
    """
    hard = "def f(r'x'):\n    return b'a\\'b' + rb\"#\" + '''x\n'y' ''' + 0x_ff + 1_0.5e-3j + .5 if a2 else 'open\n"
    programs = [
        path.read_text() for path in sorted(Path(run.__code__.co_filename).parent.glob("*.py"))
    ]
    for program in [*programs, "x = 1 # no end of line", "@wraps\nclass A: pass\n", "é = None\n"]:
        kinds = coloured(page, program)
        assert "".join(text for _, text in kinds) == program
        assert [pair for pair in kinds if pair[0] != "plain"] == [*python_kinds(program)]
    assert "".join(text for _, text in coloured(page, hard)) == hard
    assert ["string", "'open"] in coloured(page, hard)


def test_only_python_is_coloured_in_a_message(page):
    marked = page.evaluate(
        """text => import('/python.js').then(({ coloured }) => {
            const message = document.createElement('p');
            message.append(...coloured(text, { fenced: true }));
            return [...message.querySelectorAll('span')].map((each) => each.textContent);
        })""",
        "for all\n```python\nfor x\n```\nor\n```json\nTrue\n```\n```\nNone\n```\nis",
    )
    assert marked == ["```python", "for", "```", "```json", "```", "```", "None", "```"]


def coloured(page, program):
    return page.evaluate(
        "code => import('/python.js').then(({ pieces }) => [...pieces(code)])", program
    )


def python_kinds(program):
    """What `tokenize` says, in the page's kinds."""
    lines, before, opened, depth = program.splitlines(keepends=True), "", None, 0
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        name, text = tokenize.tok_name[token.type], token.string
        if name == "FSTRING_START" and opened is None:
            opened, depth = token.start, 0
        if opened is not None:
            # From Python 3.12 on, an f-string comes in pieces.
            depth += (name == "FSTRING_START") - (name == "FSTRING_END")
            if not depth:
                yield ["string", between(lines, opened, token.end)]
                opened = None
        elif name in ("STRING", "NUMBER", "COMMENT"):
            yield [name.lower(), text]
        elif name == "NAME" and (keyword.iskeyword(text) or before in ("def", "class")):
            yield [
                "name"
                if before in ("def", "class")
                else "constant"
                if text[0].isupper()
                else "keyword",
                text,
            ]
        before = text


def between(lines, start, end):
    """The text from one (line, column) to another."""
    first, last = start[0] - 1, end[0] - 1
    if first == last:
        return lines[first][start[1] : end[1]]
    return lines[first][start[1] :] + "".join(lines[first + 1 : last]) + lines[last][: end[1]]


CHECKS = {
    "def gcd(a, b):": "assert (answer(12, 18), answer(7, 5), answer(9, 0)) == (6, 1, 9)",
    "def is_prime(n):": "assert [i for i in range(20) if answer(i)] == [2, 3, 5, 7, 11, 13, 17, 19]",
    "def fibonacci(n):": "assert [answer(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]",
    "def running_sum(nums):": "assert (answer([1, 2, 3]), answer([])) == ([1, 3, 6], [])",
    "def solution(numbers):": "assert (answer([1, 2, 3, -4]), answer([])) == (20, 0)",
    "gcd": "assert (answer(12, 18), answer(7, 5), answer(9, 0)) == (6, 1, 9)",
    "fibonacci": "assert [answer(i) for i in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]",
    "is_prime": "assert [i for i in range(20) if answer(i)] == [2, 3, 5, 7, 11, 13, 17, 19]",
    "find_max": "assert (answer([1, 5, 2]), answer([-3, -1])) == (5, -1)",
    "Return the sum of a and b.": "assert (answer(1, 2), answer(-1, 1)) == (3, 0)",
    "Sort the numbers of a list.": "assert (answer([3, 1, 2]), answer([])) == ([1, 2, 3], [])",
    "Return the numbers of the list in reverse order.": "assert (answer([3, 1, 2]), answer([])) == ([2, 1, 3], [])",
}
"""What the function that the built-in model writes for each of the page's examples must do."""


def test_the_examples_are_what_the_builtin_model_gets_right(visit, builtin_address):
    page = visit(builtin_address, reduced_motion="reduce")
    tried = []
    for mode in ("Complete", "Infill", "Chat"):
        page.get_by_label(mode).check(force=True)
        buttons = page.locator("#examples button")
        # What is there before anybody chooses is the first example.
        assert page.locator("#prompt").input_value() == buttons.first.get_attribute("title")
        for button in buttons.all():
            page.locator("#forget").evaluate("forget => forget.click()")
            button.click()
            page.evaluate("document.getElementById('status').textContent = ''")
            generate(page)
            name, text = button.inner_text(), written(page)
            assert page.locator("#cells .cell.mask:visible").count() == 0
            if mode == "Chat":
                said = page.locator("#conversation .assistant")
                assert said.locator(".py-keyword").first.inner_text() == "def"
                assert said.evaluate("message => message.textContent") == text
            elif name == "def is_prime(n):":
                assert page.locator("#preset").input_value() == "turbo"
                assert page.locator("#ends").inner_text() == "8"
                generate(page, preset="exact")
                with page.expect_download() as saved:
                    page.get_by_role("button", name="Save replay").click()
                made = json.loads(Path(saved.value.path()).read_text())
                assert without_order(made) == without_order(STORED)
                page.locator("#preset").select_option("turbo")
            fenced = re.fullmatch(r"```python\n(.*?)```\s*", text, re.DOTALL)
            assert bool(fenced) == (mode == "Chat"), text
            program = fenced[1] if fenced else text
            (function,) = re.findall(r"^def (\w+)", program, re.MULTILINE)
            result = run(f"{program}\nanswer = {function}\n", [CHECKS[name]], allow_unsafe=True)
            assert result.passed, f"{name}\n{text}\n{result.detail}"
            tried.append(name)
    assert sorted(tried) == sorted(CHECKS)


def without_order(replay):
    """What a replay says on any machine: rounding may decide the order of positions alike."""
    decided = sorted((position, text) for position, _, text, _ in replay["commits"])
    left_out = ("seconds", "commits", "model")
    return {name: each for name, each in replay.items() if name not in left_out}, decided
