// What the other scripts say, in the page's language; course_tools.i18n.site_languages fills in the words.
const WORDS = {};
const say = (text, ...values) =>
  (WORDS[text] ?? text).replace(/\{(\d)\}/g, (_, number) => values[number]);
