"""A generated text in a notebook: the replay of its canvas, with everything that was decided."""

import html
import json
import pickle
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from jax_lm.options import GenerationOptions
from jax_lm.reports.replay import Replay, ReplayedText
from jax_lm.templates import Template

PROMPT = "def double(x): # <b>&"


def traces(text):
    [frame] = re.findall(
        r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', text._repr_html_()
    )
    page = html.unescape(frame)
    assert "<h2>Pictures</h2>" not in page
    assert "default-src 'none'" in page
    return json.loads(
        re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    )


def test_a_notebook_replays_what_was_generated(tiny_inference):
    options = GenerationOptions(max_new_tokens=16, temperature=0.0)
    [row] = tiny_inference.decode([Template.completion(PROMPT, 16)], options).rows
    text = tiny_inference.generate(PROMPT, 16, temperature=0.0)
    assert isinstance(text, str)
    assert text == PROMPT + row.text
    [trace] = traces(text)
    assert trace["prompt"] == PROMPT
    assert trace["pieces"] == [tiny_inference.tokenizer.decode([token]) for token in row.token_ids]
    assert (trace["commit_step"], trace["end"]) == (list(row.commit_step), len(row.token_ids))
    assert trace["confidence"] == [round(value, 4) for value in row.confidence]
    assert traces(
        tiny_inference.generate([PROMPT], 16, temperature=0.0, return_full_text=False)[0]
    ) == [trace]


def test_it_is_a_string_to_everybody_else(tiny_inference):
    text = tiny_inference.generate(PROMPT, 8, temperature=0.0)
    assert json.loads(json.dumps([text])) == [str(text)]
    assert traces(pickle.loads(pickle.dumps(text))) == traces(text)
    assert ReplayedText("x")._repr_html_() is None


def test_an_animated_picture_shows_each_token_at_its_place_and_step():
    replay = Replay(
        prompt="def f(<x>):",
        pieces=("\n    ", "return", " x"),
        commit_step=(2, 0, 1),
        confidence=(0.99, 0.7, 0.2),
        temperature=0.0,
    )
    picture = ElementTree.fromstring(replay.animation())
    name = "{http://www.w3.org/2000/svg}"
    texts = [(text.text, text.get("class")) for text in picture.iter(f"{name}text")]
    # Blanks have no letters to show; their mask disappears at their step.
    assert texts == [("def f(<x>):", "given"), ("return", "likely"), (" x", "unsure")]
    given, word, last = picture.iter(f"{name}text")
    assert float(word.get("y")) > float(given.get("y"))
    assert float(last.get("x")) == float(word.get("x")) + float(word.get("textLength"))
    assert float(word.get("x")) == float(given.get("x")) + float(word.get("textLength")) / 6 * 4
    # Three steps in three quarters of the time.
    shares = [
        float(mask.find(f"{name}animate").get("keyTimes").split(";")[1])
        for mask in picture.iter(f"{name}rect")
        if mask.get("class") == "mask"
    ]
    assert shares == [0.75, 0.25, 0.5]
    colored = replace(replay, prompt="\x1b[0m\x00")
    given = next(ElementTree.fromstring(colored.animation()).iter(f"{name}text"))
    assert given.text == "\ufffd[0m\ufffd"
    empty = Replay(prompt="", pieces=(), commit_step=(), confidence=(), temperature=0.0)
    ElementTree.fromstring(empty.animation())
