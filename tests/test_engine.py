"""The engine: answers that depend on their request alone, bounds, and failures that stay with whom
they concern.
"""

import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")

import itertools

import jax
import numpy as np
from cases.server import OPTIONS as ONE_SLOT
from cases.server import RecordingListener, make_engine, started

from jax_lm.host.compile_clock import compile_clock
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.planning.serving import cheapest_size, useful_sizes
from jax_lm.serving.engine import EngineOptions
from jax_lm.serving.errors import failure
from jax_lm.serving.jobs import Job, Request, without_stop_beginning
from jax_lm.serving.queue import RejectedError
from jax_lm.serving.slots import Slots
from jax_lm.serving.worker import STEPS_PER_CALL

OPTIONS = replace(ONE_SLOT, slots=4, warm_up=("1", "fast:1", "1x4", "fast:1x4"))
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

    def compile(self, *shape):
        if self.instead_of_compiling is None:
            super().compile(*shape)
        else:
            self.instead_of_compiling()


@pytest.fixture(scope="module")
def engine(tiny_inference):
    with started(tiny_inference, OPTIONS, slots_type=FaultySlots) as engine:
        yield engine


@pytest.fixture
def fresh(tiny_inference):
    """Makes engines that are not started, so that what is queued stays queued."""
    return lambda **options: make_engine(tiny_inference, replace(OPTIONS, **options), FaultySlots)


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


def test_a_listener_without_progress_hears_the_end_alone(engine, alone):
    listener = RecordingListener()
    (job,) = engine.submit([ask(engine, PROMPTS[0])], listener, with_progress=False)
    assert listener.finished(1)[job].text == alone[0]
    assert len(listener.events) == 1


def test_a_drawn_answer_depends_on_seed_and_index_alone(engine):
    options = replace(GREEDY, temperature=1.0)
    first = answers(
        engine, [ask(engine, PROMPTS[0], options, seed=7, index=index) for index in range(3)]
    )
    assert len(set(first)) == 3
    assert answers(engine, [ask(engine, PROMPTS[0], options, seed=7, index=2)])[0] == first[2]
    assert answers(engine, [ask(engine, PROMPTS[0], options, seed=8)])[0] != first[0]


def test_sequences_of_all_kinds_come_and_go_without_compiling(engine, alone):
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


def job_with_text(engine, text, **asked):
    """A job whose answer begins with a text."""
    request = ask(engine, PROMPTS[0], **asked)
    return Job(
        request=request,
        sequence=engine.sequence(request),
        tokenizer=engine.tokenizer,
        listen=RecordingListener(),
        deadline=1.0,
        text=text,
    )


def test_a_stop_text_far_from_the_end_is_found_by_few_decodings(engine, monkeypatch):
    """One by one, the tokens after it took as many decodings, on the thread of the engine."""
    job = job_with_text(engine, "def f", stop=("x",))
    ids = engine.tokenizer.encode_plain("def f(x):\n    return x + 1\n" * 2)
    decode, counts = Job.decode, []
    monkeypatch.setattr(Job, "decode", lambda self, ids: counts.append(0) or decode(self, ids))
    tokens = job.tokens(ids, is_cut=True)
    assert len(tokens) == len(engine.tokenizer.encode_plain("def f"))
    assert len(counts) <= len(ids).bit_length() + 1


def test_an_answer_of_whole_characters_has_all_of_its_tokens(engine):
    for text in ("done \N{PARTY POPPER}", "你好世界"):
        job = job_with_text(engine, text)
        ids = engine.tokenizer.encode_plain(text)
        assert len(ids) > len(text)
        assert len(job.tokens(ids, is_cut=False)) == len(ids)


def test_too_many_answers_are_refused_before_any_is_prepared(engine, monkeypatch):
    monkeypatch.setattr(engine, "sequence", None)
    request = ask(engine, PROMPTS[0])
    with pytest.raises(ValueError, match="completions at once: at most"):
        engine.submit([request] * (engine.options.queue + 1), RecordingListener())


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


def test_a_sequence_takes_wider_slots_unless_waiting_pays(fresh):
    (wide,) = fresh(context=128).workers
    assert [slots.columns for slots in wide.groups] == [96, 96, 128, 160]
    narrow, _, widest, _ = wide.groups
    widest.sizes = [[1]]
    engine = fresh(context=128)
    first, second = (engine.sequence(ask(engine, prompt)) for prompt in PROMPTS[:2])
    # 40 steps of 32 + 128 rows instead of 32 + 96: 40 ms more at 32 microseconds a row
    wide.pace.seconds_per_row, wide.compilations.seconds = 32e-6, 0.05
    assert wide.place(first) is widest
    wide.compilations.seconds = 0.03
    assert wide.place(first) is None
    wide.compilations.failed.add(narrow)
    assert wide.place(first) is widest
    narrow.sizes = [[1]]
    assert wide.place(first) is narrow
    for _ in range(4):
        narrow.join(engine.sequence(ask(engine, PROMPTS[0])))
    assert wide.place(second) is widest


@contextmanager
def one_program_less(engine):
    """Make the engine compile the program for four sequences again."""
    slots = engine.workers[0].groups[0]
    slots.sizes[0].remove(4)
    slots.peak = 4
    yield slots
    if 4 not in slots.sizes[0]:
        slots.sizes[0].append(4)


def test_who_asks_does_not_wait_for_a_compilation(engine, alone, monkeypatch):
    """Compilations begin while there is work, and do not hold it up."""
    begun, release = threading.Event(), threading.Event()

    def compile_slowly():
        begun.set()
        release.wait(60)

    monkeypatch.setattr(FaultySlots, "instead_of_compiling", staticmethod(compile_slowly))
    with one_program_less(engine):
        try:
            assert answers(engine, [ask(engine, PROMPTS[0])]) == alone[:1]
            assert begun.wait(10)
            assert answers(engine, [ask(engine, PROMPTS[1])]) == alone[1:2]
            assert engine.workers[0].compilations.thread.is_alive()
        finally:
            release.set()
            engine.workers[0].compilations.thread.join()


def test_programs_follow_from_what_is_asked_for(fresh):
    """A refresh and a whole canvas are bound by arithmetic on a CPU, a window of 33 rows is not."""
    (worker,) = fresh(context=512, slots=16).workers
    plain, cached = worker.groups[:2]
    wide = worker.groups[4]
    assert not any(slots.missing() for slots in worker.groups)
    plain.peak = cached.peak = wide.peak = 1
    assert (plain.missing(), cached.missing()) == ([(0, 1)], [(0, 1), (1, 1)])
    plain.sizes, cached.sizes, wide.sizes = [[1]], [[1], [1]], [[1]]
    plain.peak = cached.peak = wide.peak = 2
    assert not any(slots.missing() for slots in worker.groups)
    plain.peak = cached.peak = wide.peak = 16
    # 16 sequences are not worth a program of their own but in a window
    assert plain.missing() == [(0, 4)]
    assert cached.missing() == [(0, 4), (1, 16)]
    assert wide.missing() == []
    # an accelerator reads the weights in the time of 256 rows
    worker.pace.fixed_rows = 256
    assert plain.missing() == [(0, 16)]
    assert wide.missing() == [(0, 4)]
    # ahead of need: what fewer would use as well, of slots that were used
    plain.peak, cached.peak = 1, 0
    assert plain.missing() == []
    assert plain.missing(is_ahead=True) == [(0, 4), (0, 16)]
    assert cached.missing(is_ahead=True) == []
    programs = sum(
        len(useful_sizes(16, slots.rows(number), 32))
        for slots in worker.groups
        for number in range(len(slots.passes))
    )
    assert programs == 22


def test_a_pause_is_used_to_compile_for_more_requests(fresh):
    engine = fresh(slots=4)
    engine.start()
    slots = engine.workers[0].groups[0]
    assert answers(engine, [ask(engine, PROMPTS[0])])
    try:
        for _ in range(600):
            if not slots.missing(is_ahead=True):
                break
            time.sleep(0.1)
        assert slots.sizes == [[1, 4]]
        # nothing is left to compile: the worker waits without polling
        assert engine.workers[0].idle_seconds is None
    finally:
        engine.close(0.0)


def test_a_stated_list_is_compiled_before_the_engine_is_ready(fresh, monkeypatch):
    engine = fresh(context=192, preset="turbo", warm_up=("1", "500x4", "exact:100"))
    (worker,) = engine.workers
    compiled = []

    def compile_shape(slots, number, size):
        compiled.append((slots.columns, slots.is_cached, number, size))
        slots.sizes[number].append(size)

    monkeypatch.setattr(worker.compilations, "compile", compile_shape)
    monkeypatch.setattr(worker.compilations, "try_step", lambda slots: None)
    assert worker.compilations.warm_up(engine.options.shapes)
    assert compiled == [
        (96, True, 0, 1),
        (96, True, 1, 1),
        (224, True, 0, 4),
        (224, True, 1, 4),
        (192, False, 0, 1),
    ]


def test_short_requests_go_first_and_long_ones_go_on(fresh, monkeypatch):
    engine = fresh(context=192)
    (worker,) = engine.workers
    narrow, _, wide, _ = worker.groups
    narrow.sizes, wide.sizes = [[1]], [[1]]
    costs, calls = {narrow: 0.02, wide: 1.0}, []

    def advance(slots, first):
        first.seconds += costs[slots]
        calls.append(slots)
        first.served_at = len(calls)

    monkeypatch.setattr(worker, "advance", advance)
    long = Request(before=(5,) * 100, options=GREEDY)
    engine.submit([long] * 4, RecordingListener())
    worker.admit()
    for _ in range(8):
        worker.step()
    assert calls == [wide] * 8
    assert {sequence.seconds for sequence in worker.running} == {2.0}
    # however many short ones come, they do not push the others aside
    engine.submit([ask(engine, PROMPTS[0])], RecordingListener())
    worker.admit()
    for _ in range(40):
        worker.step()
    assert calls[8:] == [narrow, wide] * 20


def test_a_short_answer_waits_for_few_calls(fresh, monkeypatch):
    """Counted, as seconds depend on the machine: beside eight long ones it takes four calls of its
    own, and at most as many of theirs: every second call is for the one that has waited longest.
    """
    engine, calls = fresh(slots=12), []
    (worker,) = engine.workers
    worker.groups[0].sizes = [[1]]

    def run(self, sequences, number, steps, size):
        calls.append(sequences)
        for sequence in sequences:
            # two tokens for each call
            columns = np.flatnonzero(sequence.masked)[:2]
            sequence.masked[columns] = False
            sequence.seconds, sequence.served_at = sequence.seconds + 0.01, len(calls)

    monkeypatch.setattr(FaultySlots, "run", run)
    long = replace(GREEDY, max_new_tokens=80, early_stop=False)
    engine.submit([ask(engine, "x", long)] * 8, RecordingListener())
    worker.admit()
    for _ in range(80):
        worker.step()
    short, listener = replace(long, max_new_tokens=8), RecordingListener()
    engine.submit([ask(engine, "x", short)], listener)
    worker.admit()
    begun = len(calls)
    while not any(event.reason for event in listener.events):
        worker.step()
    assert len(calls) - begun <= 8
    # the long ones have had equal turns
    counts = Counter(sequence for (sequence,) in calls[:begun])
    assert max(counts.values()) - min(counts.values()) <= 1
    # however many short ones come, the long ones go on
    begun = len(calls)
    for _ in range(8):
        engine.submit([ask(engine, "x", short)], RecordingListener())
        worker.admit()
        for _ in range(4):
            worker.step()
    assert sum(sequence.most == 80 for (sequence,) in calls[begun:]) >= 10


def test_a_cancelled_job_is_gone_after_the_call_in_progress(engine, monkeypatch):
    listener, calls, run = RecordingListener(), [], Slots.run

    def run_and_cancel(self, sequences, number, steps, size):
        calls.append(steps)
        if len(calls) == 3:
            engine.cancel(jobs)
        run(self, sequences, number, steps, size)

    monkeypatch.setattr(FaultySlots, "run", run_and_cancel)
    long = replace(GREEDY, max_new_tokens=80, early_stop=False)
    jobs = engine.submit([ask(engine, "x", long) for _ in range(4)], listener)
    assert {end.reason for end in listener.finished(4).values()} == {"cancelled"}
    assert len(calls) == 3
    assert max(calls) <= STEPS_PER_CALL


def test_two_or_three_do_not_run_in_a_large_program(engine):
    (worker,) = engine.workers
    for slots in worker.groups[:2]:
        rows = slots.rows(len(slots.passes) - 1)
        sizes = useful_sizes(16, rows, 32)
        chosen = [cheapest_size(sizes, count, rows, 32) for count in (1, 2, 3, 4, 8, 16)]
        assert chosen == ([1, 1, 1, 4, 4, 4] if rows == 96 else [1, 1, 4, 4, 4, 16])


@pytest.fixture
def poison(monkeypatch):
    """Sequences whose first token is that of "poison" raise when they are put on the device."""

    def fail(sequences):
        if any(sequence.tokens[0] == POISON for sequence in sequences):
            raise RuntimeError("poisoned")

    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(fail))


POISON = 1000


@pytest.mark.parametrize("options", [GREEDY, FAST], ids=["exact", "fast"])
def test_a_poisoned_request_fails_alone(engine, alone, poison, options, caplog):
    expected = [answers(engine, [ask(engine, prompt, options)])[0] for prompt in PROMPTS[:3]]
    good, bad = RecordingListener(), RecordingListener()
    jobs = engine.submit([ask(engine, prompt, options) for prompt in PROMPTS[:3]], good)
    engine.submit([Request(before=(POISON, 5), options=options)], bad)
    (end,) = bad.finished().values()
    assert end.reason == "error"
    assert "a sequence failed alone too: poisoned" in caplog.text
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
        (Request(before=(5,) * 100, options=GREEDY), "maximum context length is 96 tokens"),
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
    assert sum(bool(event.reason) for event in listener.events) == 3


def test_closing_does_not_wait_for_a_call_of_the_device(fresh, monkeypatch):
    release = threading.Event()
    engine = fresh()
    (worker,) = engine.workers
    monkeypatch.setattr(worker.compilations, "compile", lambda *shape: release.wait(60))
    engine.start()
    assert not engine.close(grace=0.0, wait=0.2)
    release.set()
    assert engine.close(grace=0.0, wait=20.0)


def test_a_timeout_while_the_program_is_compiled_says_so(fresh, monkeypatch):
    """Clients repeat it, as the next attempt finds the program."""
    release = threading.Event()
    engine = fresh()
    (worker,) = engine.workers
    monkeypatch.setattr(worker.compilations, "warm_up", lambda shapes: True)
    monkeypatch.setattr(worker.compilations, "compile", lambda *shape: release.wait(60))
    engine.start()
    try:
        assert engine.ready.wait(20)
        listener = RecordingListener()
        engine.submit([ask(engine, PROMPTS[0])], listener, seconds=0.2)
        (end,) = listener.finished().values()
        assert (end.reason, failure(end.reason).status) == ("compiling", 503)
        assert "x-should-retry" not in failure(end.reason).headers
    finally:
        release.set()
        engine.close(grace=0.0, wait=20.0)


def test_shutdown_before_it_is_warm_ends_what_waits(fresh, monkeypatch):
    engine = fresh()
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[0])], listener)
    engine.refuse_new(60.0)
    engine.start()
    assert next(iter(listener.finished().values())).reason == "shutdown"
    assert not engine.ready.is_set()


def test_a_warm_up_that_ends_after_the_shutdown_began_is_not_ready(fresh, monkeypatch):
    """The last step of a warm-up is not cancelled any more."""
    engine = fresh()
    (worker,) = engine.workers
    monkeypatch.setattr(worker, "is_ready", True)
    engine.refuse_new(60.0)
    engine.on_ready()
    assert engine.metrics.registry.get_sample_value("diffucoder_ready") == 0


def test_a_compilation_that_fails_is_tried_again(engine, alone, monkeypatch):
    """As it does when no descriptor is left for it."""
    failures, done = [OSError(24, "Too many open files")] * 2, threading.Event()

    def compile_at_last():
        if failures:
            raise failures.pop()
        slots.sizes[0].append(4)
        done.set()

    monkeypatch.setattr(FaultySlots, "instead_of_compiling", staticmethod(compile_at_last))
    monkeypatch.setattr(engine.workers[0].compilations, "pause", 0.05)
    with one_program_less(engine) as slots:
        # Wakes the worker, which waits for ever once nothing is left to compile.
        assert answers(engine, [ask(engine, PROMPTS[0])]) == alone[:1]
        assert done.wait(20)
        assert not failures
        assert not slots.missing()


def test_a_lack_of_memory_in_the_warm_up_says_what_would_fit(fresh, monkeypatch, caplog):
    def lack():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 39.9G")

    monkeypatch.setattr(FaultySlots, "instead_of_compiling", staticmethod(lack))
    engine = fresh()
    engine.start()
    assert engine.stopped.wait(20)
    (record,) = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert "out of memory: 1 x 96 tokens in float32 take about" in record.message
    assert "Try --dtype int8 (about" in record.message
    assert "--context 48 (about" in record.message
    assert record.exc_info is None


def test_a_device_that_fails_for_everything_ends_the_engine(fresh, monkeypatch):
    def fail(sequences):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    engine = fresh()
    listener = RecordingListener()
    engine.start()
    assert engine.ready.wait(120)
    monkeypatch.setattr(FaultySlots, "before_run", staticmethod(fail))
    engine.submit([ask(engine, prompt) for prompt in PROMPTS[:2]], listener)
    assert {end.reason for end in listener.finished(2).values()} == {"engine_failed"}
    assert engine.stopped.wait(5)
    assert "the device fails for every request: CUDA_ERROR" in str(engine.failure)


def test_a_defect_of_the_loop_leaves_nobody_waiting(fresh, monkeypatch):
    engine = fresh()
    (worker,) = engine.workers
    monkeypatch.setattr(worker.compilations, "warm_up", lambda _: True)
    monkeypatch.setattr(worker, "admit", lambda: 1 / 0)
    listener = RecordingListener()
    engine.submit([ask(engine, PROMPTS[0])], listener)
    engine.start()
    assert next(iter(listener.finished().values())).reason == "engine_failed"
    assert engine.stopped.wait(5)
    assert isinstance(engine.failure, ZeroDivisionError)
    with pytest.raises(RejectedError, match="engine_failed"):
        engine.submit([ask(engine, PROMPTS[0])], RecordingListener())
