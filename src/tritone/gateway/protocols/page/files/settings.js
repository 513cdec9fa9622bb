// The settings: which models there are, and what was chosen.

const NO_MODEL = "none";
const SMALL = /^demo-(asr|transducer)(-streaming)?$/;

export class Settings {
  constructor(find) {
    this.find = find;
    this.searches = new Map(); // of models by name: those to choose from, null where nobody knows
    find("options").addEventListener("change", () => this.chosen());
  }

  // Fills the choices with what the gateway has, and keeps what was chosen before.
  fill({ models, live: own, files, vad, turns }) {
    const of = (kind) => models.filter((model) => model.kind === kind).map((model) => model.name);
    // A model for whole recordings alone writes each utterance at its end, which voice activity finds.
    const whole = of("activity-streaming").length ? of("offline") : [];
    const live = [...of("streaming"), ...whole.filter((name) => !of("streaming").includes(`${name}-streaming`))];
    this.choices("live-model", live, own);
    this.choices("file-model", of("offline"), files);
    this.choices("final-model", of("offline"), "", "none");
    this.choices("vad-model", of("activity-streaming"), vad || (of("activity-streaming")[0] ?? ""), "the rules of the model");
    this.searches = new Map(models.map((model) => [model.name, model.searches]));
    this.find("speakers").disabled = !models.some((model) => /^(embedding|diarization)/.test(model.kind));
    this.find("turns").disabled = !turns;
    this.chosen();
    return { live: live.length > 0, files: of("offline").length > 0 };
  }

  // What follows from the models that are chosen: the searches that one of them has, and a warning.
  chosen() {
    const search = this.find("search");
    const models = ["live-model", "file-model"].map((id) => this.find(id).value).filter(Boolean);
    for (const option of search.options) {
      option.hidden = option.disabled = option.value !== "" && !models.some((name) => this.has(name, option.value));
    }
    if (search.selectedOptions[0]?.disabled) search.value = "";
    search.disabled = [...search.options].every((option) => option.disabled || option.value === "");
    this.warn();
  }

  // Whether a model can search so.
  has(model, search) {
    const known = this.searches.get(model);
    return known === null || (known ?? []).includes(search);
  }

  // Says what the chosen models do not know, if they are the small ones that come with Tritone.
  warn() {
    const chosen = ["live-model", "file-model", "final-model"].map((id) => this.find(id).value);
    this.find("small-models").hidden = !chosen.some((name) => SMALL.test(name));
  }

  choices(id, names, first, without) {
    const select = this.find(id);
    const before = select.value;
    const options = names.map((name) => new Option(name, name));
    if (without) options.unshift(new Option(without, ""));
    if (!options.length) options.push(new Option(NO_MODEL, ""));
    select.replaceChildren(...options);
    select.value = names.includes(before) ? before : first;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
    select.disabled = !names.length;
  }

  // What is asked for, by the gateway's names; what is not set is left out.
  get asked() {
    const value = (id) => this.find(id).value.trim();
    const search = value("search");
    const checked = (id) => this.find(id).checked && !this.find(id).disabled;
    return {
      live: value("live-model"),
      files: value("file-model"),
      finalModel: value("final-model"),
      vad: value("vad-model"),
      turns: checked("turns"),
      search: (model) => (this.has(model, search) ? search : ""), // the other searches as it is served
      hotwords: value("hotwords"),
      punctuate: checked("punctuate"),
      numbers: checked("numbers"),
      speakers: checked("speakers"),
      channels: checked("channels"),
      profanity: value("profanity"),
      clean: checked("clean"),
    };
  }
}
