"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const ms = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms`;
  const named = (run, doing) => run.names[doing] ?? data.doing[doing][0];
  const redraws = [];
  const expand = ([rank, host, letters, numbers]) => {
    let last = 0, at = 0;
    const segments = [...letters].map((doing) => {
      const start = last + numbers[at], end = start + numbers[at + 1];
      const other = doing === "w" && numbers[at + 2] >= 0 ? numbers[at + 2] : null;
      at += doing === "w" ? 3 : 2;
      last = end;
      return [doing, start / 1000, end / 1000, other];
    });
    return { rank, host, segments };
  };
  for (const run of data.runs) {
    for (const one of run.timelines) one.lanes = one.lanes.map(expand);
  }

  // --- theme and print
  const themed = (theme) => {
    root.dataset.theme = theme;
    redraws.forEach((redraw) => redraw());
  };
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.getElementById("theme").addEventListener("click", () =>
    themed(root.dataset.theme === "dark" ? "light" : "dark"));
  let opened = [], before = "light";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
    themed("light");
  });
  addEventListener("afterprint", () => {
    opened.forEach((one) => { one.open = false; });
    themed(before);
  });

  // --- data of a chart as CSV
  const cell = (value) => {
    // A spreadsheet must not run what a name begins with.
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value !== "number" && /^[=+@\t\r-]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const tables = {
    parts: () => [["scenario", "part", "ms", "pct"], ...data.parts],
    waterfall: (run) => [["part", "ms", "pct"], ...data.parts.filter((row) => row[0] === run.name).map((row) => row.slice(1))],
    workers: (run) => [["worker", ...run.workers.columns], ...run.workers.rows.map((name, at) => [name, ...run.workers.values[at]])],
    heat: (run) => [["row", ...run.heat.columns], ...run.heat.rows.map((name, at) => [name, ...run.heat.values[at]])],
    timeline: (run) => [["rank", "host", "doing", "start_ms", "end_ms", "waits_for_rank", "global_step"],
      ...run.timelines.flatMap(({ step, lanes }) => lanes.flatMap((lane) => lane.segments.map(
        ([doing, start, end, rank]) => [lane.rank, lane.host, named(run, doing), start, end, rank, step])))],
    steps: (run) => [["global_step", "ms", "steady", "timed_part_by_part"],
      ...run.steps.x.map((x, at) => [x, run.steps.ms[at], run.steps.steady[at], run.steps.detailed[at]])],
    monitors: (run) => [["node", "what", "seconds", "pct", "lowest_pct", "highest_pct"],
      ...run.monitors.flatMap((strip) => strip.curves.flatMap((curve) => curve.x.map((x, at) =>
        [strip.name, curve.name, x, curve.y[at], curve.low?.[at], curve.high?.[at]])))],
  };
  for (const button of document.querySelectorAll("button[data-csv]")) {
    button.addEventListener("click", () => {
      const rows = tables[button.dataset.csv](data.runs[button.dataset.run ?? 0]);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\n") + "\n"], { type: "text/csv" }));
      link.download = `${button.dataset.name}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  // --- the step of all ranks
  const tip = document.createElement("div");
  tip.className = "tip";
  document.body.append(tip);

  function timeline(canvas, run) {
    const left = 92, foot = 26, figure = canvas.parentElement;
    const status = figure.querySelector(".status");
    let lanes, tall, span, where, from, to, chosen, drag;
    const show = (step) => {
      lanes = run.timelines[step].lanes;
      tall = Math.max(4, Math.min(24, Math.floor(900 / lanes.length)));
      span = Math.max(...lanes.map((lane) => Math.max(...lane.segments.map((item) => item[2]))));
      where = new Map(lanes.map((lane, at) => [lane.rank, at]));
      [from, to, chosen, drag] = [0, span, null, null];
      status.textContent = "";
      canvas.style.height = `${lanes.length * tall + foot}px`;
    };
    show(0);
    const width = () => canvas.clientWidth - left - 8;
    const x = (time) => left + (time - from) / (to - from) * width();
    const time = (at) => from + (at - left) / width() * (to - from);

    const words = ({ lane, item }) => {
      const [doing, start, end, rank] = lanes[lane].segments[item];
      const host = lanes[lane].host ? ` on ${lanes[lane].host}` : "";
      const what = doing === "w" && rank !== null ? `waits for rank ${rank}` : named(run, doing);
      return `rank ${lanes[lane].rank}${host}: ${what}, ${ms(end - start)} (from ${ms(start)} to ${ms(end)})`;
    };
    const find = (lane, moment) => {
      const items = lanes[lane]?.segments ?? [];
      for (let at = 0; at < items.length; at += 1) {
        if (items[at][0] !== "u" && items[at][1] <= moment && moment < items[at][2]) return { lane, item: at };
      }
      return null;
    };
    function box(pen, lane, segment) {
      const [doing, start, end] = segment;
      if (end < from || start > to) return;
      const first = Math.max(x(start), left), last = Math.min(x(end), left + width());
      const top = lane * tall + (doing === "u" ? 0.62 * tall : 0.1 * tall);
      pen.fillStyle = data.doing[doing][1];
      pen.fillRect(first, top, Math.max(last - first, 0.6), doing === "u" ? 0.2 * tall : 0.8 * tall);
    }
    function draw() {
      const scale = devicePixelRatio || 1;
      if (!canvas.clientWidth) return;
      canvas.width = canvas.clientWidth * scale;
      canvas.height = (lanes.length * tall + foot) * scale;
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const each = Math.ceil(13 / tall);
      lanes.forEach((lane, at) => {
        lane.segments.forEach((segment) => box(pen, at, segment));
        if (at % each === 0) {
          pen.fillStyle = css("--ink");
          pen.fillText(`rank ${lane.rank}`, 0, (at + 0.5) * tall, left - 8);
        }
      });
      pen.fillStyle = css("--faint");
      const marks = Math.max(Math.min(Math.floor(width() / 90), 5), 1);
      for (let mark = 0; mark <= marks; mark += 1) {
        const at = from + (to - from) * mark / marks;
        pen.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
        pen.fillText(ms(at), x(at), lanes.length * tall + foot / 2);
      }
      pen.textAlign = "left";
      if (chosen) {
        const [doing, start, end, rank] = lanes[chosen.lane].segments[chosen.item];
        pen.strokeStyle = css("--ink");
        pen.lineWidth = 2;
        pen.strokeRect(Math.max(x(start), left), chosen.lane * tall + 1, Math.max(Math.min(x(end), left + width()) - Math.max(x(start), left), 2), tall - 2);
        if (doing === "w" && where.has(rank)) {
          const other = where.get(rank), at = Math.min(Math.max(x(end), left), left + width());
          pen.beginPath();
          pen.moveTo(at, (chosen.lane + 0.5) * tall);
          pen.lineTo(at, (other + 0.5) * tall);
          pen.stroke();
          pen.beginPath();
          pen.arc(at, (other + 0.5) * tall, 4, 0, 7);
          pen.fillStyle = css("--ink");
          pen.fill();
        }
      }
      if (drag && drag.to !== drag.from) {
        pen.fillStyle = "rgba(110, 150, 200, 0.35)";
        pen.fillRect(Math.min(drag.from, drag.to), 0, Math.abs(drag.to - drag.from), lanes.length * tall);
      }
      canvas.dataset.from = from.toFixed(4);
      canvas.dataset.to = to.toFixed(4);
    }
    const zoom = (factor, centre = (from + to) / 2) => {
      const long = Math.min(Math.max((to - from) * factor, span / 2000), span);
      const first = Math.min(Math.max(centre - (centre - from) / (to - from) * long, 0), span - long);
      from = first;
      to = first + long;
      draw();
    };
    const pan = (share) => {
      const move = Math.min(Math.max(share * (to - from), -from), span - to);
      from += move;
      to += move;
      draw();
    };
    const choose = (found, event) => {
      chosen = found;
      const text = found ? words(found) : "";
      if (status.textContent !== text) status.textContent = text;
      tip.textContent = event ? text : "";
      if (event && text) {
        tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
        tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
      }
      draw();
    };
    const place = (event) => {
      const bounds = canvas.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [at, down] = place(event);
      if (drag) {
        drag.to = Math.min(Math.max(at, left), left + width());
        draw();
      } else {
        choose(at < left ? null : find(Math.floor(down / tall), time(at)), event);
      }
    });
    canvas.addEventListener("pointerleave", () => { if (!drag) choose(null); });
    canvas.addEventListener("pointerdown", (event) => {
      const [at] = place(event);
      if (event.pointerType === "mouse" && event.button === 0 && at >= left) {
        drag = { from: at, to: at };
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener("pointerup", () => {
      if (drag && Math.abs(drag.to - drag.from) > 4) {
        const [first, last] = [time(Math.min(drag.from, drag.to)), time(Math.max(drag.from, drag.to))];
        from = first;
        to = Math.max(last, first + span / 2000);
      }
      drag = null;
      draw();
    });
    canvas.addEventListener("dblclick", () => zoom(Infinity));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, time(place(event)[0]));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const at = chosen ?? { lane: 0, item: -1 };
      const lane = (step) => find(Math.min(Math.max(at.lane + step, 0), lanes.length - 1),
        chosen ? lanes[at.lane].segments[at.item].slice(1, 3).reduce((a, b) => a + b) / 2 : (from + to) / 2);
      const item = (step) => {
        const next = at.item + step, segment = lanes[at.lane].segments[next];
        return segment && segment[0] !== "u" ? { lane: at.lane, item: next } : chosen;
      };
      const keys = {
        "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => zoom(Infinity),
        "ArrowUp": () => choose(lane(-1) ?? chosen), "ArrowDown": () => choose(lane(1) ?? chosen),
        "ArrowLeft": () => event.shiftKey ? pan(-0.3) : choose(item(-1)),
        "ArrowRight": () => event.shiftKey ? pan(0.3) : choose(item(1)),
        "Escape": () => choose(null),
      };
      if (keys[event.key]) {
        event.preventDefault();
        keys[event.key]();
      }
    });
    const steps = [...figure.querySelectorAll("[data-step]")];
    for (const button of steps) {
      button.addEventListener("click", () => {
        show(Number(button.dataset.step));
        figure.querySelector(".note").textContent = run.timelines[button.dataset.step].about;
        steps.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        draw();
      });
    }
    for (const [name, act] of [["in", () => zoom(0.6)], ["out", () => zoom(1 / 0.6)], ["all", () => zoom(Infinity)]]) {
      figure.querySelector(`[data-zoom="${name}"]`).addEventListener("click", act);
    }
    new ResizeObserver(draw).observe(canvas);
    redraws.push(draw);
    draw();
  }

  // --- lines over steps and over time
  function lines(place, make) {
    let plot = null;
    const draw = () => {
      if (!place.clientWidth) return;
      const { options, values } = make(css);
      plot?.destroy();
      const axis = { stroke: css("--ink"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
      options.axes = options.axes.map((one) => ({ ...axis, ...one }));
      plot = new uPlot({ width: place.clientWidth, cursor: { drag: { x: true, y: false } }, ...options }, values, place);
      place.plot = plot;
    };
    new ResizeObserver(() => {
      if (!plot) draw();
      else if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: plot.height });
    }).observe(place);
    redraws.push(draw);
    draw();
  }
  const shade = (window_, colour) => ({
    hooks: { drawClear: [(plot) => {
      if (!window_) return;
      const [first, last] = window_.map((at) => plot.valToPos(at, "x", true));
      const { left, width, top, height } = plot.bbox;
      plot.ctx.fillStyle = colour;
      plot.ctx.fillRect(Math.max(first, left), top, Math.min(last, left + width) - Math.max(first, left), height);
    }] },
  });
  const stepTimes = (steps) => (css_) => {
    const all = steps.x.filter((_, at) => steps.steady[at]);
    const flat = (value) => steps.x.map(() => value);
    const series = [{ label: "step" }, { label: "slowest rank, ms", stroke: css_("--accent"), width: 1.2 }];
    const values = [steps.x, steps.ms];
    for (const [name, value, dash] of [["median, ms", steps.median, []], ["p95, ms", steps.p95, [6, 4]]]) {
      if (value !== null) {
        series.push({ label: name, stroke: css_("--faint"), dash, points: { show: false } });
        values.push(flat(value));
      }
    }
    return { values, options: {
      height: 240, series, scales: { x: { time: false }, y: { range: [0, steps.top] } },
      axes: [{ label: "optimizer step" }, { label: "ms" }],
      plugins: [shade(all.length ? [all[0], all.at(-1)] : null, css_("--steady"))] } };
  };
  const monitors = (strip, window_) => (css_) => {
    const x = [...new Set(strip.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const on = (curve, key) => {
      const known = new Map(curve.x.map((at, place) => [at, curve[key][place]]));
      return x.map((at) => known.get(at));  // undefined: no sample then, the line goes on
    };
    const series = [{ label: "seconds" }], values = [x], bands = [];
    for (const curve of strip.curves) {
      series.push({ label: `${curve.name}, %`, stroke: curve.colour, width: 1.4, spanGaps: true });
      values.push(on(curve, "y"));
      if (curve.low) {
        bands.push({ series: [series.length, series.length + 1], fill: `${curve.colour}33` });
        series.push({ label: "highest", stroke: `${curve.colour}66`, points: { show: false } }, { label: "lowest", stroke: `${curve.colour}66`, points: { show: false } });
        values.push(on(curve, "high"), on(curve, "low"));
      }
    }
    return { values, options: {
      height: 190, series, bands, scales: { x: { time: false }, y: { range: [0, 105] } },
      axes: [{ label: "seconds since the start" }, { label: "%" }], plugins: [shade(window_, css_("--steady"))] } };
  };

  // A folded run is drawn when it is opened.
  for (const section of document.querySelectorAll("[data-run-section]")) {
    const run = data.runs[section.dataset.runSection];
    let drawn = false;
    const draw = () => {
      if (drawn || (section.tagName === "DETAILS" && !section.open)) return;
      drawn = true;
      const canvas = section.querySelector("canvas.lanes");
      if (canvas) timeline(canvas, run);
      const steps = section.querySelector("[data-plot='steps']");
      if (steps) lines(steps, stepTimes(run.steps));
      for (const place of section.querySelectorAll("[data-plot='monitors']")) {
        lines(place, monitors(run.monitors[place.dataset.strip], run.window));
      }
    };
    section.addEventListener("toggle", draw);
    draw();
  }
})();
