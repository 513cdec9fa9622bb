// The transcript on the page: final segments with their words, the text under way, and the word that is played.

const PAUSE_S = 1; // between words, that begins a new row
const SLACK_S = 0.05; // by which words of one voice may overlap
const UNSPACED = /^[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]/u; // scripts without spaces
const SURE = [[0.9, "high"], [0.6, "some"], [0, "low"]];
const SAID = { some: "less sure", low: "doubtful" };

export const clock = (seconds, digits = 0) => {
  const minutes = Math.floor(seconds / 60);
  const rest = (seconds - 60 * minutes).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
  return minutes < 60 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
};

function made(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

const differ = (one, other) => (one.speaker ?? "") !== (other.speaker ?? "");
const overlap = (one, other) => Math.min(one.end_s, other.end_s) - Math.max(one.start_s, other.start_s) > SLACK_S;

// Whether somebody else's word stands alone between a row and the speaker's next word.
const interrupted = (row, word) =>
  row.between.some((other) => other.start_s >= row.end_s - SLACK_S && other.end_s <= word.start_s + SLACK_S);

function sayWhoTalksAtOnce(rows) {
  for (const row of rows) {
    const others = rows.filter((other) => other !== row && differ(row, other) && overlap(row, other));
    if (!others.length) continue;
    const names = [...new Set(others.map((other) => other.speaker))].join(", ");
    row.item.dataset.overlap = "";
    row.side.append(made("span", { className: "overlap", textContent: `while ${names} speaks` }));
  }
}

export class TranscriptView {
  constructor({ list, partial, turn, nothing, announcer, onPlay }) {
    Object.assign(this, { list, underWay: partial, state: turn, nothing, announcer, onPlay });
    list.addEventListener("click", ({ target }) => {
      const word = target.closest("[data-start]");
      if (word) onPlay(Number(word.dataset.start));
    });
    this.clear();
  }

  clear() {
    this.parts = []; // transcripts, as the gateway sent them
    this.words = []; // {text, start_s, end_s, element}
    this.voices = [];
    this.current = null;
    this.list.replaceChildren();
    this.announcer.textContent = "";
    this.partial("");
    this.state.hidden = true;
  }

  // Says what was decided on the turn under way: it may be over, goes on, or is over.
  turn({ type, turn }) {
    const { trigger, probability } = turn ?? {};
    const sure = probability === undefined ? "" : `, ${Math.round(100 * probability)} % sure`;
    const why = trigger === "silence" ? " after a long silence" : trigger === "classifier" ? sure : "";
    const texts = { eager_end: `The turn may be over${sure}`, resumed: "The turn goes on", final: `The turn is over${why}` };
    this.state.textContent = texts[type] ?? "";
    this.state.hidden = !(type in texts);
  }

  // The text under way, of which the first `settled` characters do not change any more, with who says its words.
  partial(text, settled = 0, words = []) {
    const parts = [];
    const add = (from, to) => {
      const known = Math.min(Math.max(settled, from), to);
      if (known > from) parts.push(made("span", { textContent: text.slice(from, known) }));
      parts.push(text.slice(known, to));
    };
    let cursor = 0;
    let shown = 0;
    let last = "";
    for (const { text: word, speaker = "" } of words) {
      const at = text.indexOf(word, cursor);
      if (at < 0) break;
      if (speaker && speaker !== last) {
        add(shown, at);
        parts.push(this.name(speaker), " ");
        shown = at;
      }
      last = speaker || last;
      cursor = at + word.length;
    }
    add(shown, text.length);
    this.underWay.replaceChildren(...parts);
    this.underWay.hidden = !text;
    this.nothing.hidden = Boolean(text || this.parts.length);
  }

  // A final part: one row, or several where the speaker changes or somebody pauses. Rows of speakers who talk at once
  // overlap, and say so.
  add(part) {
    const words = part.words?.length
      ? part.words
      : (part.segments ?? []).filter((each) => each.text.trim()).map((each) => ({ ...each, confidence: null }));
    this.partial("");
    if (!part.text && !words.length) return;
    this.parts.push(part);
    const atOnce = words.some((word, index) => index && differ(words[index - 1], word) && overlap(words[index - 1], word));
    let cursor = 0;
    let row = null;
    const rows = [];
    const latest = new Map(); // the last row of each speaker
    for (const word of words) {
      const own = latest.get(word.speaker ?? "");
      const goesOn = own && word.start_s <= own.end_s + PAUSE_S && (own === row || !interrupted(own, word));
      row = goesOn ? own : this.row(word);
      if (!goesOn) rows.push(row);
      latest.set(row.speaker, row);
      for (const other of latest.values()) if (other !== row) other.between.push(word);
      row.between = [];
      row.end_s = Math.max(row.end_s, word.end_s);
      let between = UNSPACED.test(word.text) ? "" : " ";
      if (!atOnce) {
        const found = part.text.indexOf(word.text, cursor);
        if (found >= 0) {
          between = part.text.slice(cursor, found);
          cursor = found + word.text.length;
        }
      }
      row.words.append(row.words.childElementCount ? between : between.trimStart(), this.word(word));
    }
    if (row === null) this.row({ start_s: 0 }).words.append(part.text);
    else if (!atOnce) row.words.append(part.text.slice(cursor));
    if (atOnce) sayWhoTalksAtOnce(rows);
    this.nothing.hidden = true;
    this.announcer.append(made("span", {}, `${part.text} `));
    while (this.announcer.childElementCount > 5) this.announcer.firstChild.remove();
  }

  row({ start_s, speaker = "" }) {
    const words = made("span", { className: "words" });
    const when = made("button", { type: "button", className: "plain at", textContent: clock(start_s) });
    when.setAttribute("aria-label", `Play from ${clock(start_s)}`);
    when.dataset.start = start_s;
    const side = made("span", { className: "when" }, when);
    if (speaker) side.prepend(this.name(speaker));
    const item = made("li", {}, side, words);
    this.list.append(item);
    return { speaker, words, item, side, start_s, end_s: start_s, between: [] };
  }

  name(speaker) {
    if (!this.voices.includes(speaker)) this.voices.push(speaker);
    const name = made("span", { className: "speaker", textContent: speaker });
    name.dataset.voice = this.voices.indexOf(speaker) % 4;
    return name;
  }

  word(word) {
    const element = made("span", { className: "word", textContent: word.text });
    element.dataset.start = word.start_s;
    if (typeof word.confidence === "number") {
      const [, sure] = SURE.find(([least]) => word.confidence >= least) ?? SURE.at(-1);
      element.dataset.sure = sure;
      element.title = `${Math.round(100 * word.confidence)} % sure, ${clock(word.start_s, 1)}`;
      if (SAID[sure]) element.append(made("span", { className: "unseen", textContent: ` (${SAID[sure]})` }));
    }
    this.words.push({ text: word.text, start_s: word.start_s, end_s: word.end_s, element });
    return element;
  }

  // Marks the word at a position; null marks none. Returns it.
  mark(position_s) {
    const word = position_s === null ? undefined : this.words.findLast((each) => each.start_s <= position_s + 1e-3);
    const now = word && position_s < word.end_s + 0.05 ? word : null;
    if (this.current !== now) {
      this.current?.element.classList.remove("now");
      now?.element.classList.add("now");
      this.current = now;
    }
    return now;
  }

  // The start of the word after a position, or of the one before it; undefined at the ends.
  beside(position_s, forward) {
    if (forward) return this.words.find((each) => each.start_s > position_s + 1e-3)?.start_s;
    return this.words.findLast((each) => each.start_s < position_s - 1e-3)?.start_s;
  }

  get text() {
    return this.parts.map((part) => part.text).join("\n");
  }

  // One transcript of the whole recording, with the gateway's names.
  whole(audio_s) {
    const words = this.parts.flatMap((part) => part.words ?? []);
    const segments = this.parts.map((part) => ({
      text: part.text,
      start_s: part.words?.[0]?.start_s ?? part.segments?.[0]?.start_s ?? 0,
      end_s: part.words?.at(-1)?.end_s ?? part.segments?.at(-1)?.end_s ?? audio_s,
      ...(part.words?.[0]?.speaker ? { speaker: part.words[0].speaker } : {}),
    }));
    const known = words.length > 0 && words.every((word) => typeof word.confidence === "number");
    const sum = words.reduce((total, word) => total + word.confidence, 0);
    return {
      text: this.parts.map((part) => part.text).join(" "),
      words,
      segments,
      confidence: known ? sum / words.length : null,
      audio_s,
    };
  }
}
