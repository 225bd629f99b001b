// The page: asks /v1/denoise, shows each pass as it comes or slower, and replays it. No state but this file's.

import { Canvas, isEnd } from "./canvas.js";
import { coloured } from "./python.js";
import { fromFragment, packed, toFragment, unpacked } from "./replay.js";

const HOLE = "⟨HOLE⟩";
// What the built-in model gets right (tests/test_page.py runs what it writes), each with the room that it needs.
const EXAMPLES = {
  complete: [
    { text: "def gcd(a, b):", tokens: 64 },
    { text: "def is_prime(n):", tokens: 64 },
    { text: "def fibonacci(n):", tokens: 64 },
    { text: "def running_sum(nums):", tokens: 64 },
    { text: 'def solution(numbers):\n    """Keep the even numbers, square each and add them up."""', tokens: 64 },
  ],
  // A hole is filled to its last token, so that its length must fit.
  infill: [
    { name: "gcd", text: `def gcd(a, b):\n${HOLE}\n    return a\n`, tokens: 20 },
    { name: "fibonacci", text: `def fibonacci(n):\n${HOLE}\n    return a\n`, tokens: 37 },
    {
      name: "is_prime",
      text:
        `def is_prime(n):\n    if n < 2:\n        return False\n    for i in range(2, int(n ** 0.5) + 1):\n${HOLE}\n` +
        "    return True\n",
      tokens: 14,
    },
    {
      name: "find_max",
      text: `def find_max(nums):\n    result = nums[0]\n    for x in nums:\n${HOLE}\n    return result\n`,
      tokens: 14,
    },
  ],
  chat: [
    { text: "Return the sum of a and b.", tokens: 48 },
    { text: "Sort the numbers of a list.", tokens: 48 },
    { text: "Return the numbers of the list in reverse order.", tokens: 48 },
  ],
};
// What a request waits for, by what /ready says.
const WAITS = {
  compiler: "Waiting for the compiler: the server is preparing for texts of this length.",
  queue: "Waiting in the queue: the server is busy with other requests.",
  nothing: "Waiting for the first pass…",
};
const PLACEHOLDERS = {
  complete: "Code to go on with",
  infill: "Code with a hole: put the cursor there, or select what to replace, and press Mark hole",
  chat: "What to write",
};

const $ = (id) => document.getElementById(id);
const mode = () => document.querySelector("input[name=mode]:checked").value;
const colour = () => document.querySelector("input[name=colour]:checked").value;
const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const canvas = new Canvas($);

let run = null; // what is or was shown, see `started` and replay.js
let abort = null; // of the request that is going on
let hasBegun = false; // whether an event of it has come
let turns = []; // the conversation so far
let isPlaying = false, timer = null;
let key = stored("key"); // of the server, if it wants one

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// What the tab keeps; nothing where the browser lets a page store nothing.
function stored(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {
    // The page still knows it until it is closed.
  }
}

function say(text, failed = false) {
  $("status").textContent = text;
  $("status").classList.toggle("failed", failed);
}

// --- Asking

function question() {
  const body = {};
  const isAsked = (name) => $(name).value !== "" && !$(name).closest("[hidden]");
  for (const name of ["max_tokens", "steps", "threshold", "block_length", "temperature", "top_p", "seed"]) {
    if (isAsked(name)) body[name] = Number($(name).value);
  }
  for (const name of ["preset", "alg"]) if (isAsked(name)) body[name] = $(name).value;
  const text = $("prompt").value;
  if (mode() === "chat") {
    body.messages = [...turns, { role: "user", content: text }];
  } else if (mode() === "infill") {
    const parts = text.split(HOLE);
    if (parts.length !== 2) throw new Error("Mark one hole in the code first.");
    [body.prompt, body.suffix] = parts;
  } else {
    body.prompt = text;
  }
  return body;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(":")) continue; // a comment, while nothing else comes
      const lines = block.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      yield [field("event"), JSON.parse(field("data"))];
    }
  }
}

// The answer of the server to a request, for which it may want a key; Error, in one line, if it is a refusal.
async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (problem) {
    throw problem.name === "AbortError" ? problem : new Error("The server does not answer. Is it still running?");
  }
  if (response.status === 401) {
    $("key").value = "";
    $("unlock").hidden = false;
    throw new Error(key ? "The server does not accept this API key." : "The server wants an API key.");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  // Only a host of plain files does not say what is wrong: without a model there is nothing to ask.
  if (!error) $("ask").hidden = true;
  throw new Error(error?.message ?? `There is no model behind this page (${response.status}): it shows replays.`);
}

// Says what the request waits for, until the first event has come.
async function sayWaiting() {
  say("Waiting for the server…");
  for (const asked = abort; ; ) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const answer = await fetch("ready", { signal: asked.signal }).then((response) => response.json()).catch(() => null);
    if (abort !== asked || hasBegun) return;
    const text = answer && WAITS[answer.waits_for ?? "nothing"];
    // A text that stays is not read out again.
    if (text && text !== $("status").textContent) say(text);
  }
}

async function generate() {
  let body;
  try {
    body = question();
  } catch (problem) {
    return say(problem.message, true);
  }
  history.replaceState(null, "", location.pathname);
  stopPlaying();
  abort = new AbortController();
  const former = run;
  busy(true);
  reveal();
  hasBegun = false;
  // The first event comes after the first passes.
  const since = performance.now();
  sayWaiting();
  try {
    const response = await ask("v1/denoise", { method: "POST", body: JSON.stringify(body), signal: abort.signal });
    hasBegun = true;
    for await (const [name, data] of events(response)) {
      if (name === "start") open(started(body, data, since));
      else if (name === "commits") take(data);
      else if (name === "done") finish(body, data);
      else throw new Error(data.error.message);
    }
  } catch (problem) {
    const isBroken = problem instanceof TypeError; // what a reader throws whose connection ends
    const message = isBroken ? "The server broke off its answer." : problem.message;
    say(problem.name === "AbortError" ? "Stopped." : message, problem.name !== "AbortError");
  }
  if (run !== former) {
    end();
    if (run.reason !== "stopped") say(summary());
  }
  abort = null;
  busy(false);
  if (!$("unlock").hidden) $("key").focus();
}

// The button stays enabled, as the keyboard's focus would be lost with it.
function busy(is) {
  $("run").setAttribute("aria-disabled", String(is));
  if (!is && document.activeElement === $("stop")) $("run").focus();
  $("stop").disabled = !is;
  $("cells").setAttribute("aria-busy", String(is));
}

// On a small window the canvas is below the form: bring it to where it is seen.
function reveal() {
  const { top, bottom } = $("result").querySelector(".canvas").getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  $("result").scrollIntoView({ block: "start", behavior: isStill() ? "auto" : "smooth" });
}

// --- A run: as it comes from the server, or from a replay

function started({ prompt = "", suffix = "", messages }, { model, length }, since) {
  return {
    model, length, chat: Boolean(messages), before: messages ? `${messages.at(-1).content}\n` : prompt, after: suffix,
    commits: [], forwards: 0, tokens: 0, text: "", reason: "stopped", seconds: 0,
    since, isOver: false,
  };
}

function open(opened) {
  stopPlaying();
  run = opened;
  canvas.open(run);
  for (const id of ["play", "pass", "copy", "link", "save"]) $(id).disabled = true;
  show(0);
  isPlaying = true;
  if (!run.isOver) say("Denoising…");
}

function take({ commits, forwards, text }) {
  const fresh = numbered(commits, forwards);
  Object.assign(run, { forwards, text, tokens: run.tokens + fresh.filter((commit) => !isEnd(commit)).length });
  run.commits.push(...fresh);
  run.seconds = elapsed();
  canvas.add(fresh);
  figures();
  count();
  go();
}

// Seconds since the request, as a replay keeps them.
function elapsed() {
  return Math.round(performance.now() - run.since) / 1000;
}

// The pass of each commit, as steps of the schedule that decide nothing are not computed: of as many steps as passes
// were made, each is one. Where chance leaves passes empty (order `origin`), no step is passed over.
function numbered(commits, forwards) {
  const steps = [...new Set(commits.map((commit) => commit.step))];
  const isDense = steps.length === forwards - run.forwards;
  return commits.map(({ position, text, confidence, step }) => {
    const pass = isDense ? run.forwards + 1 + steps.indexOf(step) : step + 1;
    return { position, text, confidence: Number(confidence.toFixed(4)), pass };
  });
}

function finish({ messages }, { text, finish_reason, tokens, forwards }) {
  Object.assign(run, { text, tokens, forwards, reason: finish_reason });
  run.seconds = elapsed();
  if (!messages) return;
  turns = [...messages, { role: "assistant", content: text }];
  $("prompt").value = "";
  conversation();
}

// Nothing more will come.
function end() {
  run.isOver = true;
  figures();
  canvas.list();
  const isEmpty = !run.commits.length;
  for (const id of ["play", "pass", "copy", "link", "save"]) $(id).disabled = isEmpty;
  go();
}

function summary() {
  const ends = { stop: "the model ended it", length: "the canvas is full", stopped: "stopped" };
  const time = run.seconds.toFixed(run.seconds < 10 ? 2 : 1);
  const passes = run.forwards === 1 ? "1 pass" : `${run.forwards} passes`;
  const isSlower = isPlaying && run.forwards > run.seconds * Number($("speed").value);
  return `${run.tokens} tokens in ${time} s and ${passes}; ${ends[run.reason]}.${isSlower ? " Slow motion." : ""}`;
}

function figures() {
  $("tokens").textContent = run.tokens;
  $("ends").textContent = run.commits.filter(isEnd).length;
  $("forwards").textContent = run.forwards;
  $("per-forward").textContent = (run.tokens / Math.max(run.forwards, 1)).toFixed(1);
  $("rate").textContent = run.seconds ? (run.tokens / run.seconds).toFixed(0) : "–";
  const text = run.chat ? run.text : run.before + run.text + (run.isOver ? run.after : "");
  $("answer").replaceChildren(...coloured(text, { fenced: run.chat }));
}

// --- Playing

function show(pass) {
  count(pass);
  canvas.show(pass, colour());
}

function count(pass = shown()) {
  $("pass").max = run.forwards;
  $("pass").value = pass;
  $("pass-text").value = `pass ${pass} of ${run.forwards}`;
}

const shown = () => Number($("pass").value);

// Shows the next pass when its time has come, waits where none has come yet, and ends with the last.
function go() {
  if (!isPlaying || timer !== null) return;
  if (isStill() && !run.isReplayed) {
    show(run.forwards);
  } else if (shown() < run.forwards) {
    timer = setTimeout(next, pause());
  } else {
    show(run.forwards);
  }
  if (run.isOver && shown() >= run.forwards) isPlaying = false;
  $("play").textContent = isPlaying ? "Pause" : "Replay";
}

function next() {
  timer = null;
  show(shown() + 1);
  go();
}

// Milliseconds until the next pass.
function pause() {
  const speed = $("speed").value;
  if (speed !== "real") return 1000 / Number(speed);
  return run.isOver ? (1000 * run.seconds) / run.forwards : 0;
}

function stopPlaying() {
  clearTimeout(timer);
  timer = null;
  isPlaying = false;
  $("play").textContent = "Replay";
}

function play() {
  if (isPlaying) return stopPlaying();
  if (shown() >= run.forwards) show(0);
  isPlaying = run.isReplayed = true;
  go();
}

// --- Sharing

async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    say(done);
  } catch {
    // Browsers offer no clipboard to pages from another machine without encryption.
    say("This browser lets the page copy nothing. Select the text, or the link in the address bar.", true);
  }
}

async function link() {
  history.replaceState(null, "", `#${await toFragment(packed(run))}`);
  await copy(location.href, "Link copied: it holds the replay, and opens on any page like this one.");
}

function save() {
  const address = URL.createObjectURL(new Blob([packed(run)], { type: "application/json" }));
  element("a", { href: address, download: "replay.json" }).click();
  URL.revokeObjectURL(address);
}

// Shows a replay that is given as a promise of its text.
async function openReplay(json, kind = "A replay") {
  if (abort) return say("Stop the request first, then open the replay.", true);
  try {
    const replayed = unpacked(await json);
    open({ ...replayed, isOver: true });
    end();
    say(`${kind} of ${run.model}: ${summary()}`);
  } catch (problem) {
    say(problem.message, true);
  }
}

const isLink = () => location.hash.startsWith("#replay=");

async function openLink() {
  if (!isLink()) return;
  await openReplay(fromFragment(location.hash.slice(1)));
  reveal();
}

// What is there before anybody asks anything: a replay that is a file of the page.
async function openStored() {
  const response = await fetch("opening.json");
  if (!run && !abort) await openReplay(response.text(), "A stored replay");
}

// --- Controls

function conversation() {
  $("conversation").replaceChildren(
    ...turns.map(({ role, content }) => element("li", { className: role }, ...coloured(content, { fenced: true }))),
  );
  $("conversation").hidden = mode() !== "chat" || !turns.length;
}

function legend() {
  const by = colour() === "pass" ? ["first", "last pass"] : ["0 %", "100 % sure"];
  [$("low").textContent, $("high").textContent] = by;
}

function markHole() {
  const box = $("prompt");
  const text = box.value, { selectionStart, selectionEnd } = box;
  // Only one hole: an older mark goes.
  const before = text.slice(0, selectionStart).replaceAll(HOLE, "");
  const after = text.slice(selectionEnd).replaceAll(HOLE, "");
  box.value = before + HOLE + after;
  box.focus();
  box.setSelectionRange(before.length, before.length + HOLE.length);
}

function fill({ text, tokens }) {
  $("prompt").value = text;
  $("max_tokens").value = tokens;
}

function choose() {
  const chosen = mode();
  $("examples").replaceChildren(
    ...EXAMPLES[chosen].map((example) => {
      const name = example.name ?? example.text.trim().split("\n")[0];
      const button = element("button", { type: "button", textContent: name, title: example.text });
      button.addEventListener("click", () => {
        fill(example);
        $("prompt").focus();
      });
      return button;
    }),
  );
  $("prompt").placeholder = PLACEHOLDERS[chosen];
  fill(EXAMPLES[chosen][0]);
  $("prompt-label").textContent = { complete: "Prompt", infill: "Code with a hole", chat: "Message" }[chosen];
  $("hole").hidden = chosen !== "infill";
  $("forget").hidden = chosen !== "chat";
  conversation();
}

// Adapts the form to the model that is served.
async function describe() {
  try {
    const { data } = await (await ask("v1/models")).json();
    const [model] = data;
    const isLeftToRight = !model.presets.length;
    const way = isLeftToRight && "autoregressive: writes from left to right";
    $("model").textContent = [model.id, model.notice, way].filter(Boolean).join(" · ");
    $("unlock").hidden = true;
    $("chat-tab").hidden = !model.has_chat;
    for (const id of ["max_tokens", "steps", "block_length"]) $(id).max = Math.min(model.max_tokens, model.context_length - 1);
    for (const setting of document.querySelectorAll(".diffusion")) setting.hidden = isLeftToRight;
    $("preset").replaceChildren(...model.presets.map((name) => element("option", { value: name, textContent: name })));
    if (!isLeftToRight) $("preset").value = model.preset;
  } catch (problem) {
    $("model").textContent = problem.message;
  }
}

const on = (id, event, listener) => $(id).addEventListener(event, listener);

on("ask", "submit", (event) => {
  event.preventDefault();
  if (!abort) generate();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !abort) $("ask").requestSubmit();
  if (event.key === "Escape") abort?.abort();
});
document.querySelectorAll("input[name=mode]").forEach((input) => input.addEventListener("change", choose));
document.querySelectorAll("input[name=colour]").forEach((input) =>
  input.addEventListener("change", () => {
    legend();
    if (run) show(shown());
  }),
);
on("stop", "click", () => abort?.abort());
on("hole", "click", markHole);
on("forget", "click", () => {
  turns = [];
  conversation();
});
on("play", "click", play);
on("pass", "input", () => {
  const pass = shown();
  stopPlaying();
  show(pass);
});
on("copy", "click", () => copy($("answer").textContent, "Text copied."));
on("link", "click", link);
on("save", "click", save);
on("open", "click", () => $("file").click());
on("file", "change", () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (file) openReplay(file.text());
});
on("unlock", "submit", async (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  store("key", key);
  await describe();
  if ($("unlock").hidden) $("run").focus();
});
window.addEventListener("hashchange", openLink);
choose();
legend();
describe();
if (isLink()) openLink();
else openStored();
