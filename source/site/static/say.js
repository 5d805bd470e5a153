// What the other scripts say, in the page's language; tools/tongues.py fills in the words.
const WORDS = {};
const say = (text, ...values) =>
  (WORDS[text] ?? text).replace(/\{(\d)\}/g, (_, number) => values[number]);
