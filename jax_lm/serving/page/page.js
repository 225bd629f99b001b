// The page: asks /v1/denoise, shows each commit as it comes, and replays them. No state but this file's.

const HOLE = "⟨HOLE⟩";
const EXAMPLES = {
  complete: ["def fibonacci(n):", "def is_prime(n):", "def gcd(a, b):", "def quicksort(arr):"],
  infill: [
    `def add(a, b):\n    ${HOLE}\n\nprint(add(1, 2))\n`,
    `def area(width, height):\n    ${HOLE}\n    return result\n`,
  ],
  chat: ["Write a function gcd(a, b).", "Write a function that reverses a string."],
};
const PLACEHOLDERS = {
  complete: "Code to go on with",
  infill: "Code with a hole: put the cursor there, or select what to replace, and press Mark hole",
  chat: "What to write",
};
const REPLAY_MS = 40;
const GRAPH = { width: 600, height: 150, dot: 3.5 }; // as the viewBox in index.html

const $ = (id) => document.getElementById(id);
const mode = () => document.querySelector("input[name=mode]:checked").value;
const colour = () => document.querySelector("input[name=colour]:checked").value;
const shortened = (text) => text.trim().split("\n")[0].slice(0, 28);

let run = null; // what is or was shown: { given, after, cells, dots, commits, steps, started, abort }
let turns = []; // the conversation so far
let player = null;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

function say(text, failed = false) {
  $("status").textContent = text;
  $("status").classList.toggle("failed", failed);
}

// --- Asking

function question() {
  const body = {};
  for (const name of ["max_tokens", "steps", "threshold", "block_length", "temperature", "top_p", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  body.preset = $("preset").value;
  body.alg = $("alg").value;
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
      const lines = block.split("\n");
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      yield [field("event"), JSON.parse(field("data"))];
    }
  }
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function generate() {
  stopPlaying();
  let body;
  try {
    body = question();
  } catch (problem) {
    return say(problem.message, true);
  }
  const abort = new AbortController();
  run = { abort, body, commits: [], cells: [], dots: [], steps: 0, forwards: 0, started: performance.now() };
  busy(true);
  say("Waiting for a place…");
  try {
    const response = await fetch("/v1/denoise", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const [name, data] of events(response)) {
      if (name === "start") begin(data);
      else if (name === "commits") take(data);
      else if (name === "done") finish(data);
      else throw new Error(data.error.message);
    }
  } catch (problem) {
    say(problem.name === "AbortError" ? "Stopped." : problem.message, problem.name !== "AbortError");
  }
  busy(false);
}

function busy(is) {
  $("run").disabled = is;
  $("stop").disabled = !is;
  $("canvas").setAttribute("aria-busy", String(is));
  const can = !is && run.commits.length > 0;
  for (const id of ["play", "step", "copy"]) $(id).disabled = !can;
}

// --- Showing

function begin({ length }) {
  const { prompt = "", suffix = "" } = run.body;
  run.started = performance.now();
  run.cells = Array.from({ length }, () => element("span", { className: "cell mask", textContent: "▒▒" }));
  $("canvas").replaceChildren(
    element("span", { className: "given", textContent: prompt }),
    ...run.cells.flatMap((cell) => [cell, element("wbr")]),
    element("span", { className: "given", textContent: suffix }),
  );
  $("order").replaceChildren();
  $("answer").value = "";
  say("Denoising…");
}

function take({ commits, forwards, text }) {
  for (const commit of commits) {
    run.commits.push(commit);
    run.dots.push(dot(commit));
  }
  run.steps = Math.max(...commits.map((commit) => commit.step + 1), run.steps);
  run.forwards = forwards;
  $("step").max = run.steps;
  $("step").value = run.steps;
  $("answer").value = (run.body.prompt ?? "") + text;
  show(run.steps);
  figures(run.commits.length);
}

function dot(commit) {
  const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  $("order").append(circle);
  return Object.assign(circle, { commit });
}

function isEnd(commit) {
  return /^<\|.*\|>$/.test(commit.text);
}

function share(commit) {
  if (colour() === "confidence") return commit.confidence;
  return run.steps > 1 ? commit.step / (run.steps - 1) : 0;
}

// The canvas as it was after so many steps.
function show(steps) {
  const shown = new Map(run.commits.filter((commit) => commit.step < steps).map((c) => [c.position, c]));
  run.cells.forEach((cell, position) => {
    const commit = shown.get(position);
    cell.className = commit ? `cell decided${isEnd(commit) ? " end" : ""}` : "cell mask";
    if (!commit) {
      cell.textContent = "▒▒";
      cell.removeAttribute("title");
      return;
    }
    cell.textContent = isEnd(commit) ? "∎" : commit.text.replaceAll("\n", "⏎\n");
    cell.title = `step ${commit.step + 1}, confidence ${(100 * commit.confidence).toFixed(1)} %`;
    cell.style.setProperty("--share", `${100 * share(commit)}%`);
  });
  for (const circle of run.dots) {
    const { commit } = circle;
    circle.setAttribute("cx", (GRAPH.width * (commit.position + 0.5)) / run.cells.length);
    circle.setAttribute("cy", (GRAPH.height * (commit.step + 0.5)) / run.steps);
    circle.setAttribute("r", GRAPH.dot);
    circle.setAttribute("opacity", commit.step < steps ? 1 : 0.12);
    circle.style.setProperty("--share", `${100 * share(commit)}%`);
  }
  $("step-text").value = `step ${steps} of ${run.steps}`;
}

function figures(tokens) {
  const seconds = (performance.now() - run.started) / 1000;
  $("tokens").textContent = tokens;
  $("forwards").textContent = run.forwards;
  $("per-forward").textContent = (tokens / Math.max(run.forwards, 1)).toFixed(1);
  $("speed").textContent = (tokens / seconds).toFixed(0);
}

function finish({ text, finish_reason, tokens, forwards }) {
  run.forwards = forwards;
  const { prompt = "", suffix = "", messages } = run.body;
  $("answer").value = messages ? text : prompt + text + suffix;
  figures(tokens);
  const seconds = ((performance.now() - run.started) / 1000).toFixed(1);
  say(`${tokens} tokens in ${seconds} s; ended by ${finish_reason === "stop" ? "a stop" : "the length"}.`);
  if (messages) {
    turns = [...messages, { role: "assistant", content: text }];
    $("prompt").value = "";
    conversation();
  }
}

function conversation() {
  $("conversation").replaceChildren(
    ...turns.map(({ role, content }) => element("li", { className: role, textContent: content })),
  );
  $("conversation").hidden = mode() !== "chat" || !turns.length;
}

function legend() {
  const by = colour() === "step" ? ["early", "late"] : ["unsure", "sure"];
  [$("low").textContent, $("high").textContent] = by;
}

// --- Replay

function stopPlaying() {
  clearInterval(player);
  player = null;
  $("play").textContent = "Replay";
}

function play() {
  if (player) return stopPlaying();
  if (Number($("step").value) >= run.steps) $("step").value = 0;
  $("play").textContent = "Pause";
  player = setInterval(() => {
    $("step").value = Number($("step").value) + 1;
    show(Number($("step").value));
    if (Number($("step").value) >= run.steps) stopPlaying();
  }, REPLAY_MS);
}

// --- Controls

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

function choose() {
  const chosen = mode();
  $("examples").replaceChildren(
    ...EXAMPLES[chosen].map((text) => {
      const button = element("button", { type: "button", textContent: shortened(text), title: text });
      button.addEventListener("click", () => {
        $("prompt").value = text;
        $("prompt").focus();
      });
      return button;
    }),
  );
  $("prompt").placeholder = PLACEHOLDERS[chosen];
  $("prompt").value = EXAMPLES[chosen][0];
  $("prompt-label").textContent = { complete: "Prompt", infill: "Code with a hole", chat: "Message" }[chosen];
  $("hole").hidden = chosen !== "infill";
  $("forget").hidden = chosen !== "chat";
  conversation();
}

async function describe() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    const { data, error } = await response.json();
    if (error) throw new Error(error.message);
    const [model] = data;
    $("model").textContent = [model.id, model.notice].filter(Boolean).join(" · ");
    $("chat-tab").hidden = !model.has_chat;
    for (const id of ["max_tokens", "steps", "block_length"]) $(id).max = Math.min(model.max_tokens, model.context - 1);
  } catch (problem) {
    $("model").textContent = problem.message;
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("run").disabled) $("ask").requestSubmit();
  if (event.key === "Escape" && !$("stop").disabled) run.abort.abort();
});
document.querySelectorAll("input[name=mode]").forEach((input) => input.addEventListener("change", choose));
document.querySelectorAll("input[name=colour]").forEach((input) =>
  input.addEventListener("change", () => {
    legend();
    if (run?.commits.length) show(Number($("step").value));
  }),
);
$("stop").addEventListener("click", () => run.abort.abort());
$("hole").addEventListener("click", markHole);
$("forget").addEventListener("click", () => {
  turns = [];
  conversation();
});
$("play").addEventListener("click", play);
$("step").addEventListener("input", () => {
  stopPlaying();
  show(Number($("step").value));
});
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("answer").value);
  say("Copied.");
});
$("key").addEventListener("change", describe);
choose();
legend();
describe();
