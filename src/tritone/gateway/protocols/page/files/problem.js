// An error that people can do something about: `message` says what. `key`: the gateway wants another key. `gone`: it
// does not answer.

export class Problem extends Error {
  constructor(message, { key = false, gone = false } = {}) {
    super(message);
    Object.assign(this, { key, gone });
  }
}
