/* The course's own commands in JupyterLab: what the buttons of a lab do, and what is told of newer
   originals. JupyterLab finds this as a federated extension; it is written by hand, so nothing has
   to be built. Cells are known by their ids, which `course_tools.learner.buttons` writes down. */

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

  function missesAName(cell) {
    return /NameError/.test(JSON.stringify(cell.model.sharedModel.getOutputs()));
  }

  /* Run the answer, all cells down to its check, and the check. In a new kernel names from further
     up are missing; then these cells run first, but for the other checks. */
  async function check(app, { answer, check }) {
    const first = indexOf(app, answer);
    const last = indexOf(app, check);
    if (first < 0 || last < 0) return;
    const between = async () => {
      for (let index = first; index <= last; index++) await run(app, index);
    };
    await between();
    if (cellsOf(app).slice(first, last + 1).some(cell => isCode(cell) && missesAName(cell))) {
      for (let index = 0; index < first; index++) {
        const cell = cellsOf(app)[index];
        if (isCode(cell) && !isCheck(cell)) await run(app, index);
      }
      await between();
    }
    show(app, last);
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
    await run(app, index);
    if (missesAName(cellsOf(app)[index])) {
      await run(app, cellsOf(app).findIndex(isCode)); // the imports
      await run(app, index);
    }
    show(app, index);
  }

  /* In a terminal, so that one sees what it does. */
  async function merge(app, { command }) {
    const session = await app.serviceManager.terminals.startNew();
    session.send({ type: 'stdin', content: [`${command}\r`] });
    await app.commands.execute('terminal:open', { name: session.name });
  }

  function tellOfNewer(app) {
    const config = JSON.parse(document.getElementById('jupyter-config-data').textContent);
    for (const { message, label, command } of config.courseNewer || []) {
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
      app.restored.then(() => tellOfNewer(app));
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB['ddp-course'] = {
    init: () => {},
    get: async () => () => ({ __esModule: true, default: plugin })
  };
})();
