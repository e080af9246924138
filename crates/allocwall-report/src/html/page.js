(() => {
  'use strict';
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);

  // For paper, tables are shown; the style sheet leaves out long ones of charts.
  let closed = [];
  addEventListener('beforeprint', () => {
    closed = all('details:not([open])');
    for (const details of closed) details.open = true;
  });
  addEventListener('afterprint', () => {
    for (const details of closed) details.open = false;
  });

  // What a keyboard's cursor says; the charts' own values would all speak at once.
  const status = document.createElement('p');
  status.className = 'hidden';
  status.setAttribute('role', 'status');
  document.body.append(status);

  // Charts: the values are those of their tables.
  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.linked = figure.dataset.linked;
      this.low = Number(figure.dataset.low);
      this.high = Number(figure.dataset.high);
      this.log = 'log' in figure.dataset;
      this.points = 'points' in figure.dataset;
      this.plot = one('.plot', figure);
      this.cursor = one('.cursor', figure);
      this.output = one('output', figure);
      this.output.setAttribute('aria-live', 'off');
      this.values = all('.legend li', figure).map((item) => [Number(item.dataset.series), one('b', item)]);
      this.names = all('thead th', figure).slice(1).map((head) => head.textContent);
      this.rows = all('tbody tr', figure).map((row) => ({
        x: Number(one('data', row).value),
        shown: one('th', row).textContent,
        cells: all('td', row).map((cell) => cell.textContent),
      }));
      this.at = 0;
    }

    place(x) {
      const part = this.log
        ? Math.log(x / this.low) / Math.log(this.high / this.low)
        : (x - this.low) / (this.high - this.low);
      return Math.min(1, Math.max(0, part));
    }

    value(part) {
      return this.log ? this.low * (this.high / this.low) ** part : this.low + part * (this.high - this.low);
    }

    // The slice that holds x, or the point that is nearest.
    row(x) {
      let found = 0;
      for (let nth = 0; nth < this.rows.length && this.rows[nth].x <= x; nth += 1) found = nth;
      const next = this.rows[found + 1];
      if (this.points && next && next.x - x < x - this.rows[found].x) found += 1;
      return found;
    }

    show(x) {
      if (this.rows.length === 0) return;
      this.at = this.row(x);
      const row = this.rows[this.at];
      const place = `${(this.place(x) * 100).toFixed(2)}%`;
      this.cursor.setAttribute('x1', place);
      this.cursor.setAttribute('x2', place);
      this.figure.classList.add('pointed');
      this.output.textContent = row.shown;
      for (const [series, item] of this.values) item.textContent = row.cells[series];
    }

    hide() {
      this.figure.classList.remove('pointed');
      this.output.textContent = '';
      for (const [, item] of this.values) item.textContent = '';
    }

    text() {
      const row = this.rows[this.at];
      return `${row.shown}: ${this.names.map((name, nth) => `${name} ${row.cells[nth]}`).join(', ')}`;
    }
  }

  const charts = all('figure.chart').map((figure) => new Chart(figure));
  for (const chart of charts) {
    const group = charts.filter((other) => other.linked === chart.linked);
    const show = (x) => group.forEach((other) => other.show(x));
    const hide = () => group.forEach((other) => other.hide());
    const follow = (event) => {
      const box = chart.plot.getBoundingClientRect();
      show(chart.value(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width))));
    };
    chart.plot.addEventListener('pointermove', follow);
    chart.plot.addEventListener('pointerdown', follow);
    chart.plot.addEventListener('pointerleave', (event) => {
      if (event.pointerType === 'mouse') hide();
    });
    chart.plot.addEventListener('keydown', (event) => {
      const last = chart.rows.length - 1;
      const shown = chart.figure.classList.contains('pointed');
      const steps = { ArrowLeft: chart.at - 1, ArrowRight: chart.at + (shown ? 1 : 0), Home: 0, End: last };
      if (event.key === 'Escape') {
        hide();
      } else if (event.key in steps && last >= 0) {
        const row = Math.min(last, Math.max(0, steps[event.key]));
        // The middle of a slice, so that charts with other slices show the same time.
        const from = chart.rows[row].x;
        const to = chart.points ? from : (chart.rows[row + 1] || { x: chart.high }).x;
        show((from + to) / 2);
        status.textContent = chart.text();
      } else {
        return;
      }
      event.preventDefault();
    });
  }

  // The flamegraph. Each box has its parent's place in the list, its name, its class and its samples.
  const source = one('#flame-data');
  if (!source) return;
  const { names, classes, boxes: numbers } = JSON.parse(source.textContent);
  const boxes = [];
  for (let nth = 0; nth < numbers.length; nth += 4) {
    const [parent, name, kind, samples] = numbers.slice(nth, nth + 4);
    const above = nth === 0 ? null : boxes[parent];
    const box = { above, name: names[name], kind, samples, below: [], from: 0, filled: 0, depth: 0 };
    if (above) {
      box.from = above.from + above.filled;
      box.depth = above.depth + 1;
      above.filled += samples;
      above.below.push(box);
    }
    boxes.push(box);
  }
  const whole = boxes[0];
  const flame = one('.flame');
  const area = one('.boxes', flame);
  const about = one('.about', flame);
  const found = one('output', flame);
  const search = one('input', flame);
  const percent = (samples) => `${((samples / whole.samples) * 100).toFixed(1)} %`;
  const ROW = 20;
  let zoomed = whole;
  let focused = whole;
  let term = '';

  const matches = (box) => term !== '' && box.name.toLowerCase().includes(term);
  const describe = (box) => {
    const kind = box === whole ? '' : `, ${classes[box.kind][0]}`;
    return `${box.name}: ${percent(box.samples)} (${box.samples} samples)${kind}`;
  };
  const within = (box, other) => {
    while (box && box !== other) box = box.above;
    return box === other;
  };

  const draw = () => {
    const width = area.clientWidth || 800;
    const scale = width / zoomed.samples;
    const drawn = document.createDocumentFragment();
    let deepest = 0;
    for (const box of boxes) {
      const holds = within(zoomed, box);
      if (!holds && !within(box, zoomed)) continue;
      const pixels = holds ? width : box.samples * scale;
      if (pixels < 1) continue;
      const item = document.createElement('div');
      item.className = 'box';
      if (term) item.classList.add(matches(box) ? 'hit' : 'miss');
      if (holds && box !== zoomed) item.classList.add('above');
      item.tabIndex = box === focused ? 0 : -1;
      item.setAttribute('role', 'button');
      item.setAttribute('aria-label', describe(box));
      item.title = describe(box);
      // Parts of the width, so that paper has its own.
      item.style.left = `${holds ? 0 : ((box.from - zoomed.from) / zoomed.samples) * 100}%`;
      item.style.top = `${box.depth * ROW}px`;
      item.style.width = `max(1px, calc(${holds ? 100 : (box.samples / zoomed.samples) * 100}% - 0.5px))`;
      item.style.backgroundColor = box === whole ? classes[0][1] : classes[box.kind][1];
      if (pixels > 24) item.textContent = box.name;
      item.box = box;
      box.item = item;
      deepest = Math.max(deepest, box.depth);
      drawn.append(item);
    }
    area.replaceChildren(drawn);
    area.style.height = `${(deepest + 1) * ROW}px`;
  };

  const zoom = (box) => {
    zoomed = box;
    focused = box;
    draw();
    about.textContent = describe(box);
  };
  const focus = (box) => {
    if (!box) return;
    focused = box;
    if (!box.item || !box.item.isConnected) zoom(box.above && within(box, zoomed) ? zoomed : box);
    all('.box', area).forEach((item) => { item.tabIndex = item.box === focused ? 0 : -1; });
    if (box.item && box.item.isConnected) box.item.focus();
  };
  // The samples that pass through a match, each once.
  const matched = () => {
    const sum = (box) => (matches(box) ? box.samples : box.below.reduce((all, child) => all + sum(child), 0));
    return sum(whole);
  };

  area.addEventListener('click', (event) => {
    const item = event.target.closest('.box');
    if (item) {
      zoom(item.box);
      item.box.item.focus();
    }
  });
  area.addEventListener('pointerover', (event) => {
    const item = event.target.closest('.box');
    if (item) about.textContent = describe(item.box);
  });
  area.addEventListener('focusin', (event) => {
    about.textContent = describe(event.target.box);
  });
  area.addEventListener('keydown', (event) => {
    const box = event.target.box;
    if (!box) return;
    const beside = (step) => box.above && box.above.below[box.above.below.indexOf(box) + step];
    const steps = {
      ArrowUp: () => focus(box.above),
      ArrowDown: () => focus(box.below[0]),
      ArrowLeft: () => focus(beside(-1)),
      ArrowRight: () => focus(beside(1)),
      Enter: () => { zoom(box); box.item.focus(); },
      ' ': () => { zoom(box); box.item.focus(); },
      Escape: () => { zoom(whole); focus(box); },
    };
    if (event.key in steps) {
      event.preventDefault();
      steps[event.key]();
    }
  });
  search.addEventListener('input', () => {
    term = search.value.trim().toLowerCase();
    draw();
    found.textContent = term ? `${percent(matched())} of the drawn samples match` : '';
  });
  search.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') {
      search.value = '';
      search.dispatchEvent(new Event('input'));
    }
  });
  one('button', flame).addEventListener('click', () => zoom(whole));
  let width = 0;
  new ResizeObserver(() => {
    if (area.clientWidth !== width) {
      width = area.clientWidth;
      draw();
    }
  }).observe(area);
})();
