// The canvas, the chart of the order and the list of passes: shows a run as it was after any of its passes.
// A run is { before, after, length, forwards, commits: [{ position, pass, text, confidence }] }. Knows no server.

const MASK = "▒▒";
const HINT = "Tap a token, or use the arrow keys, for its pass and confidence.";
const ELEMENTS = ["before", "cells", "after", "order", "token", "passes"];

const percent = (confidence) => `${(100 * confidence).toFixed(1)} %`;
export const isEnd = (commit) => /^<\|.*\|>$/.test(commit.text);
const quoted = (commit) => (isEnd(commit) ? "end of text" : JSON.stringify(commit.text));

export class Canvas {
  constructor(find) {
    for (const name of ELEMENTS) this[name] = find(name);
    this.cells.addEventListener("click", ({ target }) => this.select(this.marks?.indexOf(target.closest(".cell")) ?? -1));
    this.cells.addEventListener("keydown", (event) => this.move(event));
  }

  // Shows a run from its beginning; commits that it gains later are given to `add`.
  open(run) {
    this.run = run;
    this.at = new Map();
    this.selected = -1;
    this.before.textContent = run.before;
    this.after.textContent = run.after;
    this.marks = Array.from({ length: run.length }, (_, position) => option(position));
    // A line may break between any two.
    this.cells.replaceChildren(...this.marks.flatMap((mark) => [mark, document.createElement("wbr")]));
    this.cells.removeAttribute("aria-activedescendant");
    this.token.textContent = HINT;
    this.dots = new Map();
    this.order.replaceChildren();
    this.passes.replaceChildren();
    this.add(run.commits);
  }

  add(commits) {
    for (const commit of commits) {
      this.at.set(commit.position, commit);
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      dot.setAttribute("r", 3.5);
      this.dots.set(commit, dot);
      this.order.append(dot);
    }
  }

  // Shows the canvas after so many passes, coloured by `pass` or `confidence`.
  show(pass, colour) {
    this.pass = pass;
    let hasMask = false, hasEnded = false, fold = null;
    this.marks.forEach((mark, position) => {
      const commit = this.decided(position);
      // What stands behind an end with no mask before it is not read, and end tokens side by side say one thing.
      const isFolded = hasEnded || (commit && isEnd(commit));
      mark.hidden = Boolean(isFolded && fold);
      delete mark.dataset.count;
      if (mark.hidden) {
        fold.count += 1;
      } else {
        fold = isFolded ? { mark, count: 1 } : null;
        draw(mark, commit, this.share(commit, colour));
      }
      if (fold) fold.mark.dataset.count = fold.count;
      if (fold) fold.mark.textContent = fold.count > 1 ? `end ×${fold.count}` : "end";
      hasMask ||= !commit;
      hasEnded ||= Boolean(commit) && isEnd(commit) && !hasMask;
    });
    for (const [commit, dot] of this.dots) {
      dot.setAttribute("cx", `${(100 * (commit.position + 0.5)) / this.run.length}%`);
      dot.setAttribute("cy", `${(100 * (commit.pass - 0.5)) / this.run.forwards}%`);
      dot.setAttribute("class", `${isEnd(commit) ? "end" : ""} ${commit.pass <= pass ? "" : "later"}`);
      dot.style.setProperty("--share", `${100 * this.share(commit, colour)}%`);
    }
    this.tell();
  }

  // The commit of a position, if the pass that is shown has reached it.
  decided(position) {
    const commit = this.at.get(position);
    return commit && commit.pass <= this.pass ? commit : undefined;
  }

  // 0 to 1: how late or how sure.
  share(commit, colour) {
    if (!commit) return 0;
    if (colour === "confidence") return commit.confidence;
    return this.run.forwards > 1 ? (commit.pass - 1) / (this.run.forwards - 1) : 0;
  }

  select(position) {
    if (position < 0) return;
    this.marks[this.selected]?.setAttribute("aria-selected", "false");
    this.selected = position;
    const mark = this.marks[position];
    mark.setAttribute("aria-selected", "true");
    this.cells.setAttribute("aria-activedescendant", mark.id);
    this.tell();
  }

  move(event) {
    const places = this.marks?.flatMap((mark, position) => (mark.hidden ? [] : [position])) ?? [];
    if (!places.length) return;
    const now = places.indexOf(this.selected), last = places.length - 1;
    const goal = {
      ArrowRight: Math.min(now + 1, last), ArrowDown: Math.min(now + 1, last),
      ArrowLeft: Math.max(now - 1, 0), ArrowUp: Math.max(now - 1, 0), Home: 0, End: last,
    }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    this.select(places[goal]);
    this.marks[places[goal]].scrollIntoView({ block: "nearest" });
  }

  // Says what is known of the selected position.
  tell() {
    const mark = this.marks[this.selected];
    if (!mark) return;
    this.token.textContent = this.describe(this.selected);
    mark.setAttribute("aria-label", this.token.textContent);
  }

  describe(position) {
    const mark = this.marks[position], commit = this.decided(position), place = `Position ${position + 1}`;
    if (mark.dataset.count > 1) return `${place} and the ${mark.dataset.count - 1} after it: end of text.`;
    if (!commit) return `${place}: masked, not decided yet.`;
    const when = `decided in pass ${commit.pass} of ${this.run.forwards}`;
    return `${place}: ${quoted(commit)}, ${when}, confidence ${percent(commit.confidence)}.`;
  }

  // Lists in words what each pass decided.
  list() {
    const passes = Map.groupBy(this.run.commits, (commit) => commit.pass);
    this.passes.replaceChildren(
      ...[...passes].map(([pass, commits]) => {
        const ends = commits.filter(isEnd).length;
        const texts = commits.filter((c) => !isEnd(c)).map((c) => `${quoted(c)} ${percent(c.confidence)}`);
        if (ends) texts.push(`end of text${ends > 1 ? ` ×${ends}` : ""}`);
        const item = document.createElement("li");
        item.value = pass;
        item.textContent = texts.join(", ");
        return item;
      }),
    );
  }
}

function option(position) {
  const made = document.createElement("span");
  made.id = `position-${position}`;
  made.setAttribute("role", "option");
  made.setAttribute("aria-selected", "false");
  return made;
}

function draw(mark, commit, share) {
  mark.style.setProperty("--share", `${100 * share}%`);
  mark.className = `cell ${!commit ? "mask" : isEnd(commit) ? "end" : "decided"}`;
  mark.setAttribute("aria-label", commit ? `${quoted(commit)}, pass ${commit.pass}, ${percent(commit.confidence)}` : "masked");
  mark.replaceChildren(...(commit ? lines(commit.text) : [MASK]));
}

// A text whose line ends are seen.
function lines(text) {
  return text.split("\n").flatMap((line, index) => {
    if (!index) return [line];
    const sign = document.createElement("i");
    sign.textContent = "↵";
    return [sign, "\n", line];
  });
}
