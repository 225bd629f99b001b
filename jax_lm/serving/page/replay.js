// A run as data: kept in the fragment of a link, which no server sees, or in a file. What comes back is checked.

const FORMAT = "diffucoder-replay-1";
const LONGEST = 2 ** 20; // characters of a replay, and bytes that a link may unpack to
const MOST_TOKENS = 4096;
const FINISHED = ["stop", "length", "stopped"];

// What of a run can be shared: everything that is shown, and no key.
export function packed({ model, before, after, chat, length, forwards, seconds, tokens, reason, text, commits }) {
  const rows = commits.map((c) => [c.position, c.pass, c.text, c.confidence]);
  return JSON.stringify({
    format: FORMAT, model, before, after, chat, length, forwards, seconds, tokens, reason,
    text, commits: rows,
  });
}

// The run again; Error, in one line, if that is no replay.
export function unpacked(json) {
  if (json.length > LONGEST) throw new Error(`The replay is longer than ${LONGEST} characters.`);
  let data;
  try {
    data = JSON.parse(json);
  } catch {
    throw new Error("That is no replay: not JSON.");
  }
  if (data?.format !== FORMAT) throw new Error(`That is no replay of the format ${FORMAT}.`);
  const isCount = (value, least, most) => Number.isInteger(value) && value >= least && value <= most;
  const isTime = (value) => typeof value === "number" && value >= 0;
  const areTexts = ["model", "before", "after", "text"].every((name) => typeof data[name] === "string");
  const areNumbers =
    isCount(data.length, 1, MOST_TOKENS) && isCount(data.forwards, 1, MOST_TOKENS) &&
    isCount(data.tokens, 0, data.length) && isTime(data.seconds);
  const isCommit = (row) =>
    Array.isArray(row) && row.length === 4 && isCount(row[0], 0, data.length - 1) && isCount(row[1], 1, data.forwards) &&
    typeof row[2] === "string" && isTime(row[3]) && row[3] <= 1;
  const isWhole = areTexts && areNumbers && typeof data.chat === "boolean" && FINISHED.includes(data.reason);
  if (!isWhole || !Array.isArray(data.commits) || !data.commits.every(isCommit)) {
    throw new Error("The replay is damaged.");
  }
  const commits = data.commits.map(([position, pass, text, confidence]) => ({ position, pass, text, confidence }));
  if (new Set(commits.map((c) => c.position)).size < commits.length) throw new Error("The replay is damaged.");
  return { ...data, commits: commits.sort((a, b) => a.pass - b.pass) };
}

export async function toFragment(json) {
  const bytes = await bytesOf(new Blob([json]).stream().pipeThrough(new CompressionStream("deflate-raw")));
  const text = bytes.reduce((all, byte) => all + String.fromCharCode(byte), "");
  return "replay=" + btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export async function fromFragment(fragment) {
  let bytes;
  try {
    const text = atob(fragment.replace(/^replay=/, "").replaceAll("-", "+").replaceAll("_", "/"));
    const stream = new Blob([Uint8Array.from(text, (letter) => letter.charCodeAt(0))]).stream();
    bytes = await bytesOf(stream.pipeThrough(new DecompressionStream("deflate-raw")));
  } catch {
    throw new Error("The link is damaged: its replay cannot be unpacked.");
  }
  return new TextDecoder().decode(bytes);
}

// All bytes of a stream; Error if they are more than a replay has, as a small link may unpack to any size.
async function bytesOf(stream) {
  const parts = [];
  let size = 0;
  for (const reader = stream.getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > LONGEST) {
      await reader.cancel();
      throw new Error("too long");
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
