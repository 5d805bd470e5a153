/* The course's own commands in JupyterLab: what the buttons of a lab do, what is held back until a
   prediction is made, and what is told of newer originals. JupyterLab finds this as a federated
   extension; it is written by hand, so nothing has to be built. Cells are known by their ids, which
   `course_tools.learner.buttons` writes down. */

(() => {
  const cellsOf = panel => panel.content.widgets;
  const indexOf = (panel, id) => cellsOf(panel).findIndex(cell => cell.model.id === id);
  const sourceOf = cell => cell.model.sharedModel.source;
  const isCode = cell => cell.model.type === 'code';
  const raises = cell => (cell.model.getMetadata('tags') || []).includes('raises-exception');
  const isCheck = cell => /\b(check|progress)\(/.test(sourceOf(cell));

  /* The notebook of a button: a notice names it, else it is in front. What runs for some time goes
     on in it, whatever is in front meanwhile. */
  function panelOf(app, { panel } = {}) {
    if (!panel) return app.shell.currentWidget;
    return [...app.shell.widgets('main')].find(({ id }) => id === panel);
  }

  let jupyterlab;  // the modules that it shares with extensions

  async function shared(name) {
    const [{ get }] = Object.values(jupyterlab[name]);
    return (await get())();
  }

  /* The command `notebook:run-cell` runs the active cell only, so the page would follow. */
  async function run(panel, cell) {
    if (panel.isDisposed || !isCode(cell)) return;
    const { NotebookActions } = await shared('@jupyterlab/notebook');
    await NotebookActions.runCells(panel.content, [cell], panel.sessionContext);
  }

  function show(panel, index) {
    if (panel.isDisposed) return;
    panel.content.activeCellIndex = index;
    cellsOf(panel)[index].node.scrollIntoView({ block: 'center', behavior: 'smooth' });
  }

  const saves = new WeakMap();  // by notebook: one after the other, or Lab finds the file changed

  function save(panel) {
    const { context } = panel;
    const saving = async () => {
      const isDue = !panel.isDisposed && context.contentsModel?.writable && context.model.dirty;
      if (isDue) await context.save();
    };
    const next = Promise.resolve(saves.get(panel)).then(saving, saving);
    saves.set(panel, next);
    return next;
  }

  /* The text of a Python expression in the kernel, which shows and counts nothing of it. */
  async function evaluated(panel, expression) {
    const kernel = panel.sessionContext.session?.kernel;
    if (!kernel) return undefined;
    const content = { code: '', silent: true, user_expressions: { expression } };
    let reply;
    do {  // a kernel aborts what waits behind a cell that fails: then it's asked again
      reply = (await kernel.requestExecute(content).done).content;
    } while (reply.status === 'aborted');
    return reply.user_expressions?.expression?.data?.['text/plain'];
  }

  function outputsOf({ model: { outputs } }) {
    return Array.from({ length: outputs?.length ?? 0 }, (_, number) => outputs.get(number));
  }

  /* What an outcome or an error says. */
  function textOf(output) {
    const { data, ename, evalue } = output.toJSON();
    return data ? String(data['text/plain']) : `${ename}: ${evalue}`;
  }

  const missingName = output =>
    textOf(output).match(/NameError: name '(\w+)' is not defined/)?.[1];

  /* Whether a cell failed: if it should, only where it missed a name. */
  const failed = cell => outputsOf(cell).some(
    output => output.type === 'error' && (!raises(cell) || missingName(output))
  );

  /* Which cells this kernel hasn't run as they stand, or has in vain: after a restart, all. */
  async function notRun(panel, cells) {
    if (!panel.sessionContext.session?.kernel) return cells;
    const sources = JSON.stringify(cells.map(sourceOf));  // which Python reads as well
    const ran = 'get_ipython().history_manager.input_hist_raw';
    const missing = `[n for n, source in enumerate(${sources}) if source.rstrip() not in ${ran}]`;
    const answer = await evaluated(panel, missing);
    const numbers = answer ? JSON.parse(answer) : [];
    return cells.filter((cell, number) => numbers.includes(number) || failed(cell));
  }

  /* Which of the cells above others need: `needs.py` reads it off their code. In doubt, all. */
  async function neededBy(panel, wanted, above) {
    const sources = JSON.stringify(above.map(sourceOf));
    const source = JSON.stringify(wanted.map(sourceOf).join('\n'));
    const needs = '__import__("course_tools.learner.needs", fromlist=["needed"])';
    const answer = await evaluated(panel, `${needs}.needed(${sources}, ${source})`);
    return answer ? JSON.parse(answer).map(number => above[number]) : above;
  }

  function notify(app, message, actions = [], autoClose = 20000) {
    const options = { autoClose, actions };
    return app.commands.execute('apputils:notify', { message, type: 'info', options });
  }

  const dismiss = (app, id) => app.commands.execute('apputils:dismiss-notification', { id });

  /* While outputs above the active cell come and go, it stays where it is in the window, until the
     learner scrolls or does something else on the page. */
  async function inPlace({ content, node }, work) {
    const page = node.querySelector('.jp-WindowedPanel-outer');
    const cell = content.activeCell.node;
    const place = () => cell.getBoundingClientRect().top - page.getBoundingClientRect().top;
    const before = place();
    const putBack = () => {
      page.scrollTop += place() - before;
    };
    const sizes = new ResizeObserver(putBack);
    content.widgets.forEach(other => sizes.observe(other.node));
    page.addEventListener('scroll', putBack);
    const letGo = () => {
      sizes.disconnect();
      page.removeEventListener('scroll', putBack);
    };
    const acts = ['wheel', 'touchmove', 'pointerdown', 'keydown'];
    acts.forEach(act => page.addEventListener(act, letGo, { once: true }));
    try {
      await work();
    } finally {
      letGo();
      acts.forEach(act => page.removeEventListener(act, letGo));
    }
  }

  /* Cells may need names from further up: what this kernel hasn't run of that runs first. */
  async function prepare(app, panel, wanted, above) {
    const cells = above.filter(cell => isCode(cell) && !isCheck(cell) && sourceOf(cell).trim());
    const missing = await notRun(panel, await neededBy(panel, wanted, cells));
    if (!missing.length) return;
    const message = words('courseFirst').replace('{count}', missing.length);
    const told = await notify(app, message, [], false);
    await inPlace(panel, async () => {
      for (const cell of missing) await run(panel, cell);
    });
    await dismiss(app, told);
  }

  /* Run the answer, all cells down to its check, and the check. What passes is counted as progress,
     so what was judged is saved: a browser that dies must not lose it. */
  async function check(app, { answer, check }) {
    const panel = panelOf(app);
    const first = indexOf(panel, answer);
    const last = indexOf(panel, check);
    if (first < 0 || last < 0) return;
    const cells = cellsOf(panel).slice(first, last + 1);
    await prepare(app, panel, cells, cellsOf(panel).slice(0, first));
    for (const cell of cells) await run(panel, cell);
    show(panel, last);
    await save(panel);
  }

  /* What can be unfolded below an answer, down to the next heading. */
  function folded(panel, answer, selector) {
    const below = cellsOf(panel).slice(indexOf(panel, answer) + 1);
    const end = below.findIndex(cell => /^## /m.test(isCode(cell) ? '' : sourceOf(cell)));
    const cells = end < 0 ? below : below.slice(0, end);
    return cells.flatMap(cell => [...cell.node.querySelectorAll(selector)]);
  }

  function unfold(details) {
    if (!details) return;
    details.open = true;
    details.scrollIntoView({ block: 'center', behavior: 'smooth' });
  }

  /* Our answer is packed in the button, so that it can't be read by chance: see buttons.py. A second
     click closes it. */
  function ourAnswer(app, { answer, packed, panel: id }) {
    const panel = panelOf(app, { panel: id });
    const details = panel && folded(panel, answer, 'details.course-answer')[0];
    if (!details) return;
    if (details.open) {
      details.open = false;
      return;
    }
    const bytes = Uint8Array.from(atob(packed), sign => sign.charCodeAt(0));
    details.querySelector('code').textContent = new TextDecoder().decode(bytes);
    unfold(details);
  }

  /* The next one. After the last, it says so and offers our answer, if there is one. */
  function hint(app, { answer }) {
    const panel = panelOf(app);
    const hints = folded(panel, answer, 'details:not(.course-answer)');
    const next = hints.find(details => !details.open);
    if (next) return unfold(next);
    const [button] = folded(panel, answer, '[data-commandlinker-command="course:answer"]');
    const actions = [];
    if (button) {
      const args = { ...JSON.parse(button.dataset.commandlinkerArgs), panel: panel.id };
      actions.push({ label: button.textContent, commandId: 'course:answer', args });
    }
    return notify(app, words('courseNoMoreHints'), actions);
  }

  const progressCell = panel =>
    cellsOf(panel).findLastIndex(cell => isCode(cell) && sourceOf(cell).startsWith('progress('));

  let progressNote;  // the last one, whose place the next one takes

  /* What passes is told where the learner is; the list at the end of the page is a click away. */
  async function progress(app) {
    const panel = panelOf(app);
    const index = progressCell(panel);
    if (index < 0) return;
    await save(panel);  // an answer of an earlier kernel is looked up in the file
    // Without the lab's own imports, which may not have run: to run them would move the page.
    const source = sourceOf(cellsOf(panel)[index]);
    const list = await evaluated(panel, `__import__("course_utils").${source}`);
    const args = { panel: panel.id };
    if (!list) return showList(app, args);
    const names = list.split('\n').map(line => line.split(/[:：]/)[0]); // JupyterLab cuts long ones
    const toTheList = { label: words('courseToTheList'), commandId: 'course:list', args };
    if (progressNote) dismiss(app, progressNote);
    const map = panel.context.path.replace(/[^/]*$/, 'course_map.md');
    const toTheMap = { label: words('courseToTheMap'), commandId: 'course:map', args: { map } };
    progressNote = await notify(app, names.join('\n'), [toTheList, toTheMap]);
  }

  /* The course map, with what passed in all labs: the server writes that when a lab is saved. */
  async function showMap(app, { map }) {
    const args = { path: map, factory: 'Markdown Preview' };
    const { context } = await app.commands.execute('docmanager:open', args);
    await context.ready;
    await context.revert();  // it may have been open for long
  }

  async function showList(app, args) {
    const panel = panelOf(app, args);
    const index = panel ? progressCell(panel) : -1;
    if (index < 0) return;
    await save(panel);
    const list = cellsOf(panel)[index];
    await prepare(app, panel, [list], [cellsOf(panel).find(isCode)]);  // the imports
    await run(panel, list);
    show(panel, index);
  }

  /* In a terminal, so that one sees what it does. */
  async function merge(app, { command }) {
    const session = await app.serviceManager.terminals.startNew();
    session.send({ type: 'stdin', content: [`${command}\r`] });
    await app.commands.execute('terminal:open', { name: session.name });
  }

  /* A question is open from the start, until the form below it says otherwise
     (`prediction_forms.py`) or an answer stands in the place of its three dots. */
  function isOpen(cell) {
    const { outputs } = cell.model;
    let isSettled = false;
    for (let number = 0; number < outputs.length; number++) {
      const markup = String(outputs.get(number).data['text/html']);
      if (markup.includes('course-open')) return true;
      isSettled ||= markup.includes('course-form');
    }
    return !isSettled && /\bpredict\(.+,\s*\.\.\./s.test(sourceOf(cell));
  }

  const isHeading = cell => !isCode(cell) && /^#/.test(sourceOf(cell));

  /* The cells that answer an open question: what runs below it, down to the one that measures, and
     the first text below that one, or right below one that fails on purpose. Code between the
     measurement and its text draws what was measured. A heading begins something else. The copies
     fold that text by the same rule (`fold_explanations` in copies.py). */
  function* answering(cells) {
    for (const [index, asking] of cells.entries()) {
      if (!isCode(asking) || !isOpen(asking)) continue;
      for (const [, name] of sourceOf(asking).matchAll(/^(\w+) = predict\(/gm)) {
        yield* answeringOne(cells.slice(index + 1), new RegExp(`\\b${name}\\.measured\\(`));
      }
    }
  }

  function* answeringOne(below, measuring) {
    const measures = cell => isCode(cell) && measuring.test(sourceOf(cell));
    const last = below.findIndex(measures);
    if (last < 0) return;
    let isBefore = true; // the next heading
    let explains = false; // the next text, if no heading comes first
    for (const [index, cell] of below.entries()) {
      if (isHeading(cell)) isBefore = explains = false;
      if (isCode(cell)) {
        if (index > last && !explains) return;
        explains = index >= last || (isBefore && raises(cell));
        if (isBefore || index >= last) yield cell;
      } else if (explains) {
        yield cell;
        explains = false;
      }
    }
  }

  /* Whether a cell has failed since another one did not run first: that answers no question. */
  const missesName = cell => isCode(cell) && !raises(cell) && outputsOf(cell).some(missingName);

  /* What a cell shows is held back while it would answer an open question; a click shows it. */
  function holdBack(panel) {
    const { content } = panel;
    const shownByClick = new Set();
    const update = () => {
      const held = new Set(answering(content.widgets));
      for (const cell of held) if (missesName(cell)) held.delete(cell);
      for (const cell of content.widgets) {
        cell.toggleClass('course-held', held.has(cell) && !shownByClick.has(cell.model.id));
      }
    };
    content.node.addEventListener('click', ({ target }) => {
      if (!target.matches?.('.course-held :is(.jp-OutputArea, .jp-InputArea)')) return;
      const cell = content.widgets.find(cell => cell.node.contains(target));
      shownByClick.add(cell.model.id);
      update();
    });
    panel.context.ready.then(() => {
      content.model.contentChanged.connect(update);
      update();
    });
  }

  /* Whether a cell makes a name: by a definition, an assignment or an import. */
  function makes(cell, name) {
    const definition = `^(async )?(def|class) ${name}\\b`;
    const assignment = `^([\\w\\s,()*]*,\\s*)?[(]?${name}(\\s*,[\\w\\s,()*]*)?\\s*(:[^=\\n]+)?=(?!=)`;
    const imported = `^(from .*)?import [^#]*\\b${name}\\b`;
    const anyOfThem = new RegExp([definition, assignment, imported].join('|'), 'm');
    return isCode(cell) && anyOfThem.test(sourceOf(cell));
  }

  function headingAbove(cells, index) {
    for (const cell of cells.slice(0, index + 1).reverse()) {
      const headings = isCode(cell) ? null : sourceOf(cell).match(/^#+ .*/gm);
      if (headings) return headings.at(-1).replace(/^#+ |[`*]/g, '').slice(0, 45);
    }
    return '';
  }

  /* Who begins in the middle is told which cell makes the name that is missing, and what to click:
     until the cell runs again. */
  function tellOfMissingNames(app, panel) {
    const { content } = panel;
    const known = new WeakSet();  // outputs that were told of, or were there when it opened
    const told = new Map();  // by a cell: the name that it misses, and the note's id once it's there
    function* newErrors() {
      for (const cell of content.widgets) {
        for (const output of outputsOf(cell)) {
          if (known.has(output)) continue;
          known.add(output);
          const name = missingName(output);
          if (name && !raises(cell)) yield [cell, name];
        }
      }
    }
    const misses = (cell, name) => outputsOf(cell).some(output => missingName(output) === name);
    const takeBack = () => {
      for (const [cell, { name, note }] of told) {
        if (!panel.isDisposed && misses(cell, name)) continue;
        told.delete(cell);
        if (note) dismiss(app, note);
      }
    };
    const tell = async (cell, name) => {
      if (told.has(cell)) return;  // Lab makes outputs anew when it begins to trust a notebook
      const entry = { name };
      told.set(cell, entry);
      const above = content.widgets.slice(0, content.widgets.indexOf(cell));
      const maker = above.findLastIndex(other => makes(other, name));
      if (maker < 0 || !(await notRun(panel, [above[maker]])).length) return;
      const heading = headingAbove(above, maker);
      const message = words('courseMissing').replace('{name}', name).replace('{heading}', heading);
      const args = { panel: panel.id, cell: cell.model.id };
      const action = { label: words('courseAbove'), commandId: 'course:above', args };
      entry.note = await notify(app, message, [action], false);
      if (told.get(cell) !== entry) dismiss(app, entry.note);  // it has run again meanwhile
    };
    panel.disposed.connect(takeBack);
    panel.context.ready.then(() => {
      [...newErrors()];
      content.model.contentChanged.connect(() => {
        takeBack();
        const isInFront = app.shell.currentWidget === panel;
        for (const error of newErrors()) if (isInFront) tell(...error);
      });
    });
  }

  /* Run what a cell needs of what is above it, and the cell. */
  async function runAbove(app, { cell: id, panel: panelId }) {
    const panel = panelOf(app, { panel: panelId });
    const index = panel ? indexOf(panel, id) : -1;
    if (index < 0) return;
    const cell = cellsOf(panel)[index];
    panel.content.activeCellIndex = index;
    await prepare(app, panel, [cell], cellsOf(panel).slice(0, index));
    await run(panel, cell);
    show(panel, indexOf(panel, id));
  }

  const passes = cell => outputsOf(cell).some(output => textOf(output).startsWith('✓'));

  /* When cells ran, in the order in which this page saw it: the counts of two kernels can't be
     compared. What had run before the page was there is the oldest. What passes is saved. */
  function runsOf(panel, whenChanged) {
    const runs = new WeakMap();  // by a cell's model: its count, its place in the order, its source
    let order = 0;
    const note = cell => {
      const { model } = cell;
      const count = model.executionCount;  // none while it runs
      const source = sourceOf(cell);
      const last = runs.get(model);
      if (!last) {
        runs.set(model, { count, source, order: 0, changed: 0 });
        model.stateChanged.connect(whenChanged);
      } else if (last.count !== count) {
        last.count = count;
        if (!count) return;
        if (isCheck(cell) && passes(cell)) save(panel);
        last.order = ++order;
        if (last.source !== source) last.changed = order;
        last.source = source;
      }
    };
    return () => {
      cellsOf(panel).filter(isCode).forEach(note);
      return runs;
    };
  }

  /* When an answer was changed: the place of its run in the order, or now, if it has not run. */
  function changeOf(answer, runs) {
    const { source, changed } = runs.get(answer.model);
    return sourceOf(answer) === source ? changed : Infinity;
  }

  /* An answer was changed: what its check has said, and what shows it below, is of the answer
     before. */
  function* outdated(cells, runs) {
    let judged = [];  // names of answers since the last heading, with the last change of each
    for (const [index, cell] of cells.entries()) {
      if (isHeading(cell)) judged = [];
      if (!isCode(cell)) continue;
      const source = sourceOf(cell);
      const { count, order } = runs.get(cell.model);
      const isShown = count && cell.model.outputs.length;
      const name = source.match(/^check\((?:[\w.]+\()?(\w+)/m)?.[1];
      if (name) {
        const answer = cells.slice(0, index).findLast(other => makes(other, name));
        const changed = answer ? changeOf(answer, runs) : 0;
        judged.push({ name, changed });
        if (isShown && changed > order) yield cell;
      } else if (isShown) {
        const isOlder = ({ name, changed }) =>
          changed > order && new RegExp(`\\b${name}\\b`).test(source);
        if (judged.some(isOlder)) yield cell;
      }
    }
  }

  /* The names in a list of exercises lead to their cells. */
  function linkExercises(panel) {
    const { content } = panel;
    content.node.addEventListener('click', ({ target }) => {
      const name = target.closest?.('.course-list td code')?.textContent;
      if (!name) return;
      const index = content.widgets.findIndex(
        cell => isCode(cell) && new RegExp(`^(def|class) ${name}\\b`, 'm').test(sourceOf(cell))
      );
      if (index >= 0) show(panel, index);
    });
  }

  function markOutdated(panel) {
    const { content, context } = panel;
    const update = () => {
      const older = new Set(outdated(content.widgets, noteRuns()));
      for (const cell of content.widgets) {
        cell.toggleClass('course-outdated', older.has(cell));
        const isList = isCode(cell) && sourceOf(cell).startsWith('progress(');
        cell.toggleClass('course-list', isList);
      }
    };
    const noteRuns = runsOf(panel, update);
    context.ready.then(() => {
      content.model.contentChanged.connect(update);
      update();
    });
  }

  /* A form that was answered is drawn anew, and the page would lose the keyboard with its button:
     Shift-Enter would do nothing. The cell below the form gets it; if the form asks anew, its first
     button or field. */
  function keepKeyboard({ content }) {
    let answered; // the cell whose form had the keyboard
    let asksAnew = false;
    content.node.addEventListener('focusin', ({ target }) => {
      const isForm = target.closest('.course-form');
      answered = isForm ? content.widgets.find(cell => cell.node.contains(target)) : undefined;
      asksAnew = Boolean(target.closest('.course-anew'));
    });
    const giveBack = () => {
      if (!answered || document.activeElement !== document.body) return;
      if (asksAnew) {
        const [first] = answered.node.querySelectorAll('.course-form :is(input, button)');
        first?.focus();
        return;
      }
      const below = content.widgets.indexOf(answered) + 1;
      content.activeCellIndex = Math.min(below, content.widgets.length - 1);
      answered = undefined;
      content.activate();
    };
    new MutationObserver(giveBack).observe(content.node, { childList: true, subtree: true });
  }

  /* Every notebook that is opened, the first time that it is in front. */
  function watchNotebooks(app) {
    const watched = new WeakSet();
    const watch = () => {
      for (const panel of app.shell.widgets('main')) {
        const isNotebook = panel.content?.widgets && panel.sessionContext;
        if (!isNotebook || watched.has(panel)) continue;
        watched.add(panel);
        holdBack(panel);
        keepKeyboard(panel);
        markOutdated(panel);
        linkExercises(panel);
        tellOfMissingNames(app, panel);
      }
    };
    app.shell.currentChanged.connect(watch);
    watch();
  }

  /* A picture that a narrow page has made small is as large as it was drawn after a click. */
  function enlarge({ target }) {
    if (target.matches('.jp-RenderedImage img')) target.classList.toggle('course-enlarged');
  }

  function words(name) {
    return JSON.parse(document.getElementById('jupyter-config-data').textContent)[name];
  }

  function tellOfNewer(app) {
    for (const { message, label, command } of words('courseNewer') || []) {
      const actions = [{ label, commandId: 'course:merge', args: { command } }];
      notify(app, message, actions);
    }
  }

  const plugin = {
    id: 'ddp-course:commands',
    autoStart: true,
    activate: app => {
      const commands = {
        'course:check': args => check(app, args),
        'course:hint': args => hint(app, args),
        'course:answer': args => ourAnswer(app, args),
        'course:progress': () => progress(app),
        'course:map': args => showMap(app, args),
        'course:list': args => showList(app, args),
        'course:above': args => runAbove(app, args),
        'course:merge': args => merge(app, args)
      };
      for (const [id, execute] of Object.entries(commands)) app.commands.addCommand(id, { execute });
      app.restored.then(() => {
        tellOfNewer(app);
        watchNotebooks(app);
      });
      document.addEventListener('click', enlarge);
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB['ddp-course'] = {
    init: modules => {
      jupyterlab = modules;
    },
    get: async () => () => ({ __esModule: true, default: plugin })
  };
})();
