// Colours for Python: cuts a text into pieces of one kind each. Not a parser: what is no Python passes as plain text.

const KEYWORDS = new Set(
  ("and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield").split(" "),
);
const CONSTANTS = new Set(["True", "False", "None"]);
const PIECE = new RegExp(
  [
    String.raw`(?<comment>#[^\n]*)`,
    // A string that is still open ends with its line, one of three quotes with the text.
    String.raw`(?<string>(?:[rR][bBfF]?|[bBfF][rR]?|[uU])?(?:"""(?:\\[^]|[^\\])*?(?:"""|$)|'''(?:\\[^]|[^\\])*?(?:'''|$)` +
      String.raw`|"(?:\\[^]|[^"\\\n])*"?|'(?:\\[^]|[^'\\\n])*'?))`,
    String.raw`(?<number>0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+` +
      String.raw`|(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?[jJ]?)`,
    String.raw`(?<word>[\p{L}_][\p{L}\p{N}_]*)`,
    String.raw`(?<other>[^])`,
  ].join("|"),
  "gu",
);

// Pairs of kind and text: keyword, constant, name (being defined), string, number, comment or plain.
export function* pieces(code) {
  let before = "";
  for (const { 0: text, groups } of code.matchAll(PIECE)) {
    if (groups.word) {
      const isDefined = before === "def" || before === "class";
      yield [KEYWORDS.has(text) ? "keyword" : CONSTANTS.has(text) ? "constant" : isDefined ? "name" : "plain", text];
    } else {
      yield [["comment", "string", "number"].find((kind) => groups[kind]) ?? "plain", text];
    }
    if (text.trim()) before = text;
  }
}

// Elements for a program, or with `fenced` for an answer whose programs stand between lines of ```.
export function coloured(text, { fenced = false } = {}) {
  if (!fenced) return [...pieces(text)].map(([kind, part]) => span(kind, part));
  // "a\n```python\nx\n```\nb": text, fence, program, fence, text
  const parts = text.split(/(^```.*$)/m);
  return parts.flatMap((part, index) => {
    if (index % 2) return span("fence", part);
    const isPython = index % 4 === 2 && /^```(python|py)?\d?\s*$/i.test(parts[index - 1]);
    return isPython ? coloured(part) : span("plain", part);
  });
}

function span(kind, text) {
  if (kind === "plain") return text;
  const made = document.createElement("span");
  made.className = `py-${kind}`;
  made.textContent = text;
  return made;
}
