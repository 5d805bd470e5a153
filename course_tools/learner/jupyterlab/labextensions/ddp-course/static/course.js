/* The course's own commands in JupyterLab: what the buttons of a lab do, what is held back until a
   prediction is made, and what is told of newer originals. JupyterLab finds this as a federated
   extension; it is written by hand, so nothing has to be built. Cells are known by their ids, which
   `course_tools.learner.buttons` writes down. */

(() => {
  const cellsOf = app => app.shell.currentWidget.content.widgets;
  const indexOf = (app, id) => cellsOf(app).findIndex(cell => cell.model.id === id);
  const sourceOf = cell => cell.model.sharedModel.source;
  const isCode = cell => cell.model.type === 'code';
  const isCheck = cell => /\b(check|progress)\(/.test(sourceOf(cell));

  async function run(app, index) {
    const notebook = app.shell.currentWidget.content;
    if (!isCode(notebook.widgets[index])) return;
    notebook.deselectAll();
    notebook.activeCellIndex = index;
    await app.commands.execute('notebook:run-cell');
  }

  function show(app, index) {
    app.shell.currentWidget.content.activeCellIndex = index;
    cellsOf(app)[index].node.scrollIntoView({ block: 'center', behavior: 'smooth' });
  }

  /* Which cells this kernel hasn't run as they stand: after a restart, all. */
  async function notRun(app, cells) {
    const kernel = app.shell.currentWidget.sessionContext.session?.kernel;
    if (!kernel) return cells;
    const sources = JSON.stringify(cells.map(sourceOf));  // which Python reads as well
    const ran = 'get_ipython().history_manager.input_hist_raw';
    const missing = `[n for n, source in enumerate(${sources}) if source.rstrip() not in ${ran}]`;
    const content = { code: '', silent: true, user_expressions: { missing } };
    const reply = await kernel.requestExecute(content).done;
    const answer = reply.content.user_expressions?.missing?.data?.['text/plain'];
    return answer ? JSON.parse(answer).map(number => cells[number]) : [];
  }

  /* A cell may need names from further up: what this kernel hasn't run of them runs first. */
  async function prepare(app, cells) {
    const missing = await notRun(app, cells.filter(cell => isCode(cell) && sourceOf(cell).trim()));
    if (!missing.length) return;
    const options = { message: words('courseFirst'), type: 'info', options: { autoClose: 8000 } };
    app.commands.execute('apputils:notify', options);
    for (const cell of missing) await run(app, cellsOf(app).indexOf(cell));
  }

  /* Run the answer, all cells down to its check, and the check. What passes is counted as progress,
     so what was judged is saved: a browser that dies must not lose it. */
  async function check(app, { answer, check }) {
    const first = indexOf(app, answer);
    const last = indexOf(app, check);
    if (first < 0 || last < 0) return;
    await prepare(app, cellsOf(app).slice(0, first).filter(cell => !isCheck(cell)));
    for (let index = first; index <= last; index++) await run(app, index);
    show(app, last);
    await app.commands.execute('docmanager:save');
  }

  /* What can be unfolded below an answer, down to the next heading. */
  function folded(app, answer, selector) {
    const below = cellsOf(app).slice(indexOf(app, answer) + 1);
    const end = below.findIndex(cell => /^## /m.test(isCode(cell) ? '' : sourceOf(cell)));
    const cells = end < 0 ? below : below.slice(0, end);
    return cells.flatMap(cell => [...cell.node.querySelectorAll(selector)]);
  }

  function unfold(details) {
    if (!details) return;
    details.open = true;
    details.scrollIntoView({ block: 'center', behavior: 'smooth' });
  }

  /* Our answer is packed in the button, so that it can't be read by chance: see buttons.py. */
  function ourAnswer(app, { answer, packed }) {
    const details = folded(app, answer, 'details.course-answer')[0];
    if (!details) return;
    const bytes = Uint8Array.from(atob(packed), sign => sign.charCodeAt(0));
    details.querySelector('code').textContent = new TextDecoder().decode(bytes);
    unfold(details);
  }

  function hint(app, { answer }) {
    const hints = folded(app, answer, 'details:not(.course-answer)');
    unfold(hints.find(details => !details.open) || hints.at(-1));
  }

  async function progress(app) {
    const index = cellsOf(app).findLastIndex(
      cell => isCode(cell) && sourceOf(cell).startsWith('progress(')
    );
    if (index < 0) return;
    await prepare(app, [cellsOf(app).find(isCode)]);  // the imports
    await run(app, index);
    show(app, index);
  }

  /* In a terminal, so that one sees what it does. */
  async function merge(app, { command }) {
    const session = await app.serviceManager.terminals.startNew();
    session.send({ type: 'stdin', content: [`${command}\r`] });
    await app.commands.execute('terminal:open', { name: session.name });
  }

  /* A question is open while the form below it says so (`prediction_forms.py`). */
  function isOpen(cell) {
    const { outputs } = cell.model;
    for (let number = 0; number < outputs.length; number++) {
      const markup = outputs.get(number).data['text/html'];
      if (String(markup).includes('course-open')) return true;
    }
    return false;
  }

  const isHeading = cell => !isCode(cell) && /^#/.test(sourceOf(cell));
  const raises = cell => (cell.model.getMetadata('tags') || []).includes('raises-exception');

  /* The cells that answer an open question: what runs below it, down to the one that measures, and
     the text right below that one, or below one that fails on purpose. A heading begins something
     else. */
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
    let explains = false;
    for (const [index, cell] of below.entries()) {
      if (isHeading(cell)) isBefore = explains = false;
      if (isCode(cell)) {
        if (index > last) return;
        explains = index === last || (isBefore && raises(cell));
        if (isBefore || index === last) yield cell;
      } else if (explains) {
        yield cell;
        explains = false;
      }
    }
  }

  /* What a cell shows is held back while it would answer an open question; a click shows it. */
  function holdBack(panel) {
    const { content } = panel;
    const shownByClick = new Set();
    const update = () => {
      const held = new Set(answering(content.widgets));
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

  /* A form that was answered is drawn anew, and the page would lose the keyboard with its button:
     Shift-Enter would do nothing. The cell below the form gets it. */
  function keepKeyboard({ content }) {
    let answered; // the cell whose form had the keyboard
    content.node.addEventListener('focusin', ({ target }) => {
      const isForm = target.closest('.course-form');
      answered = isForm ? content.widgets.find(cell => cell.node.contains(target)) : undefined;
    });
    const giveBack = () => {
      if (!answered || document.activeElement !== document.body) return;
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
      }
    };
    app.shell.currentChanged.connect(watch);
    watch();
  }

  function words(name) {
    return JSON.parse(document.getElementById('jupyter-config-data').textContent)[name];
  }

  function tellOfNewer(app) {
    for (const { message, label, command } of words('courseNewer') || []) {
      const actions = [{ label, commandId: 'course:merge', args: { command } }];
      const options = { autoClose: 20000, actions };
      app.commands.execute('apputils:notify', { message, type: 'info', options });
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
        'course:merge': args => merge(app, args)
      };
      for (const [id, execute] of Object.entries(commands)) app.commands.addCommand(id, { execute });
      app.restored.then(() => {
        tellOfNewer(app);
        watchNotebooks(app);
      });
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB['ddp-course'] = {
    init: () => {},
    get: async () => () => ({ __esModule: true, default: plugin })
  };
})();
