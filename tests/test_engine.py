"""The engine: answers that depend on their request alone, bounds, and failures that stay with whom
they concern.
"""

import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")

import itertools

from cases.server import OPTIONS as ONE_SLOT
from cases.server import RecordingListener, started

from jax_lm.host.compile_clock import compile_clock
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.serving.engine import Engine, EngineOptions
from jax_lm.serving.jobs import Job, Request, without_stop_beginning
from jax_lm.serving.queue import RejectedError
from jax_lm.serving.slots import Slots

OPTIONS = replace(ONE_SLOT, slots=4)
GREEDY = GenerationOptions(max_new_tokens=40, temperature=0.0)
FAST = replace(GREEDY, decoding=Decoding(preset="fast"))
PROMPTS = ["def add(a, b):", "def gcd(a, b):\n", "class Stack:", "x = 1\n", "def f(n):"]


class FaultySlots(Slots):
    """Slots into which a test puts faults: functions of the sequences of a call, and what stands
    for a compilation.
    """

    before_run = staticmethod(lambda sequences: None)
    instead_of_compiling = None

    def run(self, sequences, *arguments, **options):
        self.before_run(sequences)
        super().run(sequences, *arguments, **options)

    def compile(self, size, sequence):
        if self.instead_of_compiling is None:
            super().compile(size, sequence)
        else:
            self.instead_of_compiling()


@pytest.fixture(scope="module")
def engine(tiny_inference):
    with started(tiny_inference, OPTIONS, slots_type=FaultySlots) as engine:
        yield engine


@pytest.fixture
def fresh(tiny_inference):
    """Makes engines that are not started, so that what is queued stays queued."""
    return lambda **options: Engine(tiny_inference, replace(OPTIONS, **options))


def ask(engine, prompt, options=GREEDY, **fields):
    return Request(before=tuple(engine.tokenizer.encode_plain(prompt)), options=options, **fields)


def answers(engine, requests, **options):
    """Their texts, decoded together."""
    listener = RecordingListener()
    jobs = engine.submit(requests, listener, **options)
    ends = listener.finished(len(jobs))
    assert all(end.is_answer for end in ends.values()), ends
    return [ends[job].text for job in jobs]


@pytest.fixture(scope="module")
def alone(engine):
    """The greedy answer of each prompt by itself."""
    return [answers(engine, [ask(engine, prompt)])[0] for prompt in PROMPTS]


def test_greedy_answers_are_those_of_generate(engine, alone, tiny_inference):
    assert alone[:2] == [tiny_inference.complete([prompt], GREEDY)[0] for prompt in PROMPTS[:2]]
    assert len(set(alone)) == len(PROMPTS)


@pytest.mark.parametrize("preset", ["exact", "fast"])
def test_an_answer_does_not_depend_on_who_else_is_there(engine, alone, preset):
    options = replace(GREEDY, decoding=Decoding(preset=preset))
    single = (
        alone
        if preset == "exact"
        else [answers(engine, [ask(engine, p, options)])[0] for p in PROMPTS]
    )
    noise = [
        ask(engine, prompt, replace(options, temperature=1.0), seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]
    listener = RecordingListener()
    engine.submit(noise[:3], listener)
    together = answers(engine, [ask(engine, prompt, options) for prompt in PROMPTS])
    listener.finished(3)
    assert together == single


def test_a_drawn_answer_depends_on_seed_and_index_alone(engine):
    options = replace(GREEDY, temperature=1.0)
    first = answers(
        engine, [ask(engine, PROMPTS[0], options, seed=7, index=index) for index in range(3)]
    )
    assert len(set(first)) == 3
    assert answers(engine, [ask(engine, PROMPTS[0], options, seed=7, index=2)])[0] == first[2]
    assert answers(engine, [ask(engine, PROMPTS[0], options, seed=8)])[0] != first[0]


def test_sequences_of_all_kinds_come_and_go_without_compiling(engine, alone):
    assert not engine.compilations.pending
    before = compile_clock().count
    kinds = [
        GREEDY,
        FAST,
        replace(
            GREEDY, max_new_tokens=17, temperature=0.6, top_p=0.8, alg="maskgit_plus", num_steps=9
        ),
        replace(GREEDY, decoding=Decoding(preset="turbo"), max_new_tokens=64),
        replace(GREEDY, alg="origin", top_p=None, max_new_tokens=5),
        replace(GREEDY, decoding=Decoding(commit="threshold", threshold=0.5, block_length=0)),
    ]
    listeners = []
    for number, options in enumerate(kinds):
        listeners.append(RecordingListener())
        engine.submit([ask(engine, PROMPTS[number % 5] * (1 + number % 2), options)], listeners[-1])
        time.sleep(0.02)
    for listener in listeners:
        listener.finished()
    assert compile_clock().count == before
    assert engine.metrics.registry.get_sample_value("diffucoder_compilations_total") > 0


def test_progress_tells_every_position_once_and_text_that_stays(engine, alone):
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[0])], listener)
    (end,) = listener.finished().values()
    texts = [event.text for event in listener.events]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert end.text == alone[0]
    commits = [commit for event in listener.events for commit in event.commits]
    assert len({commit.position for commit in commits}) == len(commits)
    assert [commit.step for commit in commits] == sorted(commit.step for commit in commits)
    by_position = {commit.position: commit for commit in commits}
    assert all(by_position[token.position] == token for token in end.tokens)
    assert all(0 < token.confidence <= 1 for token in end.tokens)
    assert engine.tokenizer.decode([token.token_id for token in end.tokens]) == end.text


def test_a_stop_text_ends_the_answer_before_it(engine, alone):
    stop = alone[1][7:10]
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[1], stop=("never", stop))], listener)
    (end,) = listener.finished().values()
    assert (end.text, end.reason) == (alone[1][: alone[1].index(stop)], "stop")
    assert all(end.text.startswith(event.text) for event in listener.events)
    tokens = engine.tokenizer.decode([token.token_id for token in end.tokens])
    assert tokens.startswith(end.text)
    assert len(tokens) < len(alone[1])


def test_an_answer_that_nothing_ends_fills_its_canvas(engine, alone):
    """The stop tokens are those that the model wrote itself: it does not know any other."""
    listener = RecordingListener()
    (job,) = engine.submit([ask(engine, PROMPTS[0])], listener)
    (end,) = listener.finished().values()
    written = end.tokens[2].token_id
    ids = [token.token_id for token in end.tokens]
    stops = engine.tokenizer.stop_ids
    for early_stop, count in ((True, ids.index(written)), (False, 40)):
        options, listener = replace(GREEDY, early_stop=early_stop), RecordingListener()
        sequence = engine.sequence(ask(engine, PROMPTS[0], options))
        assert sequence.stop_ids == (stops if early_stop else ())
        sequence.tokens[sequence.hole.start : sequence.hole.start + len(ids)] = ids
        sequence.masked[:] = False
        sequence.stop_ids = (written,) if early_stop else ()
        job = Job(
            request=ask(engine, PROMPTS[0], options),
            sequence=sequence,
            tokenizer=engine.tokenizer,
            listen=listener,
            deadline=0.0,
        )
        event = job.next_event()
        assert len(event.tokens) == count
        assert event.reason == ("stop" if early_stop else "length")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ab", "ab"), ("ab\n", "ab"), ("ab\n\n", "ab"), ("ab\n\ndef", "ab\n\ndef"), ("", "")],
)
def test_what_may_become_a_stop_text_is_held_back(text, expected):
    assert without_stop_beginning(text, ("\n\nclass", "\n\n\n")) == expected


def test_a_cancelled_job_leaves_and_the_others_go_on(engine, alone):
    listener, other = RecordingListener(), RecordingListener()
    long = ask(engine, PROMPTS[2], replace(GREEDY, max_new_tokens=80))
    jobs = engine.submit([long] * 6, listener)
    (kept,) = engine.submit([ask(engine, PROMPTS[3])], other)
    engine.cancel(jobs)
    assert {end.reason for end in listener.finished(6).values()} <= {"cancelled", "stop"}
    assert any(end.reason == "cancelled" for end in listener.finished(0).values())
    assert other.finished()[kept].text == alone[3]


def test_a_job_ends_when_its_time_is_over(engine, alone):
    listener = RecordingListener()
    engine.submit(
        [ask(engine, PROMPTS[2], replace(GREEDY, max_new_tokens=80))] * 8, listener, seconds=1e-3
    )
    assert {end.reason for end in listener.finished(8).values()} == {"timeout"}
    assert answers(engine, [ask(engine, PROMPTS[0])]) == alone[:1]


def test_what_does_not_fit_the_queue_is_refused_whole(fresh):
    engine = fresh(queue=3)
    engine.submit([ask(engine, PROMPTS[0])] * 2, RecordingListener())
    with pytest.raises(RejectedError, match="queue_full") as refusal:
        engine.submit([ask(engine, PROMPTS[0])] * 2, RecordingListener())
    assert refusal.value.retry_after >= 1
    assert len(engine.queue.waiting) == 2
    engine.submit([ask(engine, PROMPTS[0])], RecordingListener())
    with pytest.raises(ValueError, match="at most 3"):
        engine.submit([ask(engine, PROMPTS[0])] * 4, RecordingListener())


def test_a_sequence_is_served_before_narrower_shapes_are_compiled(fresh, engine, alone):
    wide = fresh(context=128, queue=4)
    assert [slots.columns for slots in wide.groups] == [96, 96, 128, 160]
    for slots, ready in zip(wide.groups[2:], engine.groups, strict=True):
        slots.sizes = list(ready.sizes)
    sequence = wide.sequence(ask(wide, PROMPTS[0]))
    assert wide.narrowest(sequence) is wide.groups[2]
    wide.groups[0].sizes = [1]
    assert wide.narrowest(sequence) is wide.groups[0]
    wide.groups[0].join(sequence)
    assert wide.narrowest(wide.sequence(ask(wide, PROMPTS[1]))) is wide.groups[2]


def test_who_asks_does_not_wait_for_a_compilation(engine, alone, monkeypatch):
    begun, release = threading.Event(), threading.Event()

    def compile_slowly():
        begun.set()
        release.wait(60)

    monkeypatch.setattr(FaultySlots, "instead_of_compiling", staticmethod(compile_slowly))
    engine.compilations.pending.append((engine.groups[0], 1))
    try:
        assert answers(engine, [ask(engine, PROMPTS[0])]) == alone[:1]
        assert begun.wait(10)
        assert answers(engine, [ask(engine, PROMPTS[1])]) == alone[1:2]
        assert engine.compilations.thread.is_alive()
    finally:
        release.set()


def test_what_a_lone_sequence_needs_is_compiled_first(fresh):
    compilations = fresh(context=128, queue=4).compilations
    assert [(slots.columns, size) for slots, size in compilations.urgent] == [(128, 1), (160, 1)]
    # Then what a crowd needs, and then again few and narrow ones first.
    assert [(slots.columns, size) for slots, size in compilations.soon] == [(128, 4), (160, 4)]
    rest = [(slots.columns, size) for slots, size in compilations.pending]
    assert rest == [(96, 1), (96, 1), (96, 4), (96, 4)]


def test_what_nobody_asks_for_is_not_compiled(fresh, engine, alone, monkeypatch):
    wide, made, done = fresh(context=128), [], threading.Event()

    def record(*shape):
        made.append(shape)
        if len(made) == 2:
            done.set()

    # What the other engine has compiled is found again.
    compilations = wide.compilations
    compilations.urgent, compilations.soon, compilations.pause = [], [], 0.05
    for slots, ready in zip(wide.groups[2:], engine.groups, strict=True):
        slots.sizes = list(ready.sizes)
    monkeypatch.setattr(compilations, "compile", record)
    wide.start()
    try:
        assert answers(wide, [ask(wide, PROMPTS[0])]) == alone[:1]
        assert done.wait(20)
    finally:
        wide.close(0.0)
    narrow, narrow_with_cache, *_ = wide.groups
    assert made == [(narrow, 1), (narrow, 4)]
    left = {slots for slots, _ in compilations.pending}
    assert narrow not in left
    assert narrow_with_cache in left


@pytest.fixture
def poison(monkeypatch):
    """Sequences whose first token is that of "poison" raise when they are put on the device."""

    def fail(sequences):
        if any(sequence.tokens[0] == POISON for sequence in sequences):
            raise RuntimeError("poisoned")

    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(fail))


POISON = 1000


@pytest.mark.parametrize("options", [GREEDY, FAST], ids=["exact", "fast"])
def test_a_poisoned_request_fails_alone(engine, alone, poison, options):
    expected = [answers(engine, [ask(engine, prompt, options)])[0] for prompt in PROMPTS[:3]]
    good, bad = RecordingListener(), RecordingListener()
    jobs = engine.submit([ask(engine, prompt, options) for prompt in PROMPTS[:3]], good)
    engine.submit([Request(before=(POISON, 5), options=options)], bad)
    (end,) = bad.finished().values()
    assert (end.reason, str(end.error)) == ("error", "poisoned")
    ends = good.finished(3)
    assert [ends[job].text for job in jobs] == expected
    assert engine.ready.is_set()
    assert not engine.stopped.is_set()


@pytest.mark.parametrize("options", [GREEDY, FAST], ids=["exact", "fast"])
def test_a_call_of_the_device_that_fails_once_costs_nobody_the_answer(
    engine, alone, monkeypatch, options
):
    requests = [ask(engine, prompt, options) for prompt in PROMPTS[:4]]
    expected = [answers(engine, [request])[0] for request in requests]
    calls = []

    def fail_once(sequences):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("once")

    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(fail_once))
    assert answers(engine, requests) == expected
    assert len(calls) > 4


def test_an_answer_that_cannot_be_read_fails_alone(engine, alone, monkeypatch):
    real, bad, good = Job.next_event, RecordingListener(), RecordingListener()

    def next_event(self):
        if self.listen is bad:
            raise RuntimeError("unreadable")
        return real(self)

    monkeypatch.setattr(Job, "next_event", next_event)
    engine.submit([ask(engine, PROMPTS[0])], bad)
    (job,) = engine.submit([ask(engine, PROMPTS[1])], good)
    assert next(iter(bad.finished().values())).reason == "error"
    assert good.finished()[job].text == alone[1]


def test_a_listener_that_raises_does_not_end_the_engine(engine, alone):
    def listen(event):
        raise RuntimeError("gone")

    engine.submit([ask(engine, PROMPTS[0])], listen)
    assert answers(engine, [ask(engine, PROMPTS[1])]) == alone[1:2]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request(before=(5,), options=replace(GREEDY, max_new_tokens=81)),
            "max_tokens=81: at most 80",
        ),
        (Request(before=(5,) * 100, options=GREEDY), "the context holds 96"),
        (
            Request(before=(5,), options=replace(GREEDY, top_k=51)),
            r"top_k=51: must lie in \[1, 50\]",
        ),
        (Request(before=(5,), options=replace(GREEDY, top_k=None)), "top_k=None"),
        (Request(before=(5,), options=replace(GREEDY, num_steps=41)), "steps=41: at most one"),
        (Request(before=(), options=GREEDY), "one given before it"),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_once(engine, request_, message):
    with pytest.raises(ValueError, match=message):
        engine.submit([request_], RecordingListener())


@pytest.mark.parametrize("field", ["slots", "queue", "max_tokens", "timeout"])
def test_bounds_are_checked(field):
    with pytest.raises(ValueError, match=f"{field}=0"):
        EngineOptions(**{field: 0.0 if field == "timeout" else 0})


def test_shutdown_finishes_what_is_there(fresh, alone):
    engine = fresh()
    listener = RecordingListener()
    engine.start()
    jobs = engine.submit([ask(engine, prompt) for prompt in PROMPTS], listener)
    assert engine.ready.wait(120)
    engine.close(grace=60.0)
    ends = listener.finished(5)
    assert [ends[job].text for job in jobs] == alone
    with pytest.raises(RejectedError, match="shutdown"):
        engine.submit([ask(engine, PROMPTS[0])], RecordingListener())


def test_shutdown_without_grace_fails_what_is_there(fresh):
    engine = fresh()
    listener = RecordingListener()
    engine.start()
    assert engine.ready.wait(120)
    engine.submit([ask(engine, PROMPTS[0])] * 8, listener)
    engine.close(grace=0.0)
    assert "shutdown" in {end.reason for end in listener.finished(8).values()}


def test_what_the_device_still_holds_is_given_up_once(engine, alone, monkeypatch):
    held, release = threading.Event(), threading.Event()

    def hold(sequences):
        held.set()
        release.wait(60)

    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(hold))
    listener = RecordingListener()
    engine.submit([ask(engine, prompt) for prompt in PROMPTS[:3]], listener)
    try:
        assert held.wait(10)
        engine.give_up()
        assert {end.reason for end in listener.finished(3).values()} == {"shutdown"}
    finally:
        release.set()
    assert answers(engine, [ask(engine, PROMPTS[4])]) == alone[4:]
    assert sum(event.reason is not None for event in listener.events) == 3


def test_closing_does_not_wait_for_a_call_of_the_device(fresh, monkeypatch):
    release = threading.Event()
    engine = fresh()
    monkeypatch.setattr(engine.compilations, "compile", lambda *shape: release.wait(60))
    engine.start()
    assert not engine.close(grace=0.0, wait=0.2)
    release.set()
    assert engine.close(grace=0.0, wait=20.0)


def test_shutdown_before_it_is_warm_ends_what_waits(fresh, monkeypatch):
    engine = fresh()
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[0])], listener)
    engine.refuse_new(60.0)
    engine.start()
    assert next(iter(listener.finished().values())).reason == "shutdown"
    assert not engine.ready.is_set()


def test_a_compilation_that_fails_is_tried_again(engine, alone, monkeypatch):
    """As it does when no descriptor is left for it."""
    failures, done = [OSError(24, "Too many open files")] * 2, threading.Event()

    def compile_at_last():
        if failures:
            raise failures.pop()
        done.set()

    monkeypatch.setattr(FaultySlots, "instead_of_compiling", staticmethod(compile_at_last))
    monkeypatch.setattr(engine.compilations, "pause", 0.05)
    engine.compilations.pending.append((engine.groups[0], 1))
    # Wakes the engine's thread, which waits for ever once nothing is left to compile.
    assert answers(engine, [ask(engine, PROMPTS[0])]) == alone[:1]
    assert done.wait(20)
    assert not failures
    assert not engine.compilations.pending


def test_a_defect_of_the_loop_leaves_nobody_waiting(fresh, monkeypatch):
    engine = fresh()
    engine.compilations.urgent.clear()
    monkeypatch.setattr(engine, "admit", lambda: 1 / 0)
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[0])], listener)
    engine.start()
    assert next(iter(listener.finished().values())).reason == "engine_failed"
    assert engine.stopped.wait(5)
    assert isinstance(engine.failure, ZeroDivisionError)
    with pytest.raises(RejectedError, match="engine_failed"):
        engine.submit([ask(engine, PROMPTS[0])], RecordingListener())
