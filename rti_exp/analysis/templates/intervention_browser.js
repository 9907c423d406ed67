"use strict";
(() => {
  const all = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const PAGE = 40;
  const keys = ["arm", "family", "outcome", "iteration"];
  const chosen = {};
  let shown = [], page = 0, current = null;

  if (!all.length) {
    document.querySelector(".browser").style.display = "none";
    return;
  }

  // All text is inserted by textContent, so that no text of a model is parsed as HTML.
  function make(tag, text, className) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }
  const words = (outcome) => outcome.replaceAll("_", " ");
  const number = (value, digits) => value === null ? "none" : typeof value === "string" ? value : value.toFixed(digits);

  function values(key) {
    const counts = new Map();
    for (const item of all) {
      if (keys.some((other) => other !== key && chosen[other] && String(item[other]) !== chosen[other])) continue;
      const value = String(item[key]);
      counts.set(value, (counts.get(value) || 0) + 1);
    }
    const options = [...counts];
    if (key === "iteration") options.sort((a, b) => a[0] - b[0]);
    else if (key !== "arm") options.sort((a, b) => a[0] < b[0] ? -1 : 1);
    return options;
  }

  function fillFilters() {
    for (const key of keys) {
      const select = byId("filter-" + key);
      const any = make("option", "any " + key);
      any.value = "";
      select.replaceChildren(any);
      for (const [value, count] of values(key)) {
        const option = make("option", words(value) + " (" + count + ")");
        option.value = value;
        select.append(option);
      }
      select.value = chosen[key] || "";
    }
  }

  function apply() {
    fillFilters();
    shown = all.filter((item) => keys.every((key) => !chosen[key] || String(item[key]) === chosen[key]));
    const first = Math.max(0, shown.findIndex((item) => item.outcome === "accepted"));
    page = Math.floor(first / PAGE);
    drawList();
    drawDetail(shown.length ? shown[first] : null);
  }

  function drawList() {
    const list = byId("list");
    list.replaceChildren();
    for (const item of shown.slice(page * PAGE, (page + 1) * PAGE)) {
      const button = make("button");
      button.type = "button";
      button.append(make("span", words(item.outcome) + " - " + item.task_id));
      button.append(make("small", item.arm + ", seed " + item.seed + ", iteration " + item.iteration));
      button.addEventListener("click", () => {
        drawDetail(item);
        if (window.matchMedia("(max-width: 760px)").matches) byId("detail").scrollIntoView();
      });
      button.item = item;
      const row = make("li");
      row.append(button);
      list.append(row);
    }
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    byId("count").textContent = shown.length + " found, page " + (page + 1) + " of " + pages;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page + 1 >= pages;
    mark();
  }

  function mark() {
    for (const button of document.querySelectorAll("#list button")) {
      button.setAttribute("aria-current", String(button.item === current));
    }
  }

  function block(parent, title, text) {
    if (!text) return;
    parent.append(make("h3", title), make("pre", text));
  }

  function strip(parent, title, tokens, colour, unit) {
    parent.append(make("h3", title));
    const row = make("div", undefined, "strip");
    const reading = make("div", "Hover over a token, or tap it, for its numbers.", "reading meta");
    tokens.forEach((token, place) => {
      const [text, logProb, calibration, rho] = token;
      const cell = make("button", text === null ? String(place + 1) : text.replaceAll("\n", "\\n"));
      cell.type = "button";
      const perplexity = typeof logProb === "number" ? Math.exp(-logProb) : null;
      const label = "token " + (place + 1) + (text === null ? "" : " " + JSON.stringify(text)) +
        ": log-prob " + number(logProb, 3) + ", perplexity " + number(perplexity, 2) +
        ", log-prob under the correction prompt " + number(calibration, 3) + ", rho " + number(rho, 3);
      cell.title = label;
      cell.style.backgroundColor = colour(logProb, rho);
      const show = () => { reading.textContent = label; };
      cell.addEventListener("mouseenter", show);
      cell.addEventListener("focus", show);
      cell.addEventListener("click", show);
      row.append(cell);
    });
    parent.append(row, make("div", unit, "meta"), reading);
  }

  const tint = (name, share) => "rgba(var(" + name + "), " + Math.min(0.75, Math.max(0, share) * 0.75) + ")";
  const byPerplexity = (logProb) => logProb === null ? "" : logProb === "-inf" ? tint("--heat", 1) : tint("--heat", -logProb / 4);
  const byRho = (logProb, rho) => typeof rho !== "number" ? "" : rho > 1 ? tint("--heat", (rho - 1) * 2) : tint("--cool", (1 - rho) * 2);

  function afterwards(item) {
    if (item.child_reward !== null) return "The continued rollout got reward " + number(item.child_reward, 2) + (item.shadow ? " (shadow: recorded, not trained on)." : ".");
    return "The rollout was not continued to a reward: " + words(item.outcome) + ".";
  }

  function drawDetail(item) {
    current = item;
    mark();
    const pane = byId("detail");
    pane.replaceChildren();
    if (!item) {
      pane.append(make("p", "No intervention matches these filters.", "meta"));
      return;
    }
    pane.append(make("h2", words(item.outcome) + " - " + item.task_id));
    const run = item.state === "done" ? item.run : item.run + " (" + item.state + ")";
    const step = item.step === null ? "no step" : "step " + item.step;
    pane.append(make("div", [item.arm, "seed " + item.seed, "iteration " + item.iteration, step, "family " + item.family, "by " + (item.source || "no corrector"), "run " + run].join(" · "), "meta"));
    block(pane, "Task", item.task);
    block(pane, "History before the step", item.history);
    block(pane, "Verdict", item.reason || (item.step === null ? "No harmful step was named." : ""));
    block(pane, "Answers of the validator, by step", item.answers);
    block(pane, "Evidence shown to the roles", item.evidence);
    if (item.difference.some(([, text]) => text)) {
      const step_text = make("pre");
      for (const [kind, text] of item.difference) {
        step_text.append(kind === "-" ? make("del", text) : kind === "+" ? make("ins", text) : document.createTextNode(text));
      }
      pane.append(make("h3", item.corrected ? "The step, before and after" : "The step"), step_text);
    }
    if (item.tokens.length) {
      strip(pane, "Perplexity of each token" + (item.perplexity === null ? "" : ", " + number(item.perplexity, 2) + " overall"), item.tokens, byPerplexity, "Darker: less likely under the rollout prompt.");
      strip(pane, "Weight rho of each token", item.tokens, byRho, "Orange: boosted, blue: damped, none: 1.");
    }
    if (item.checks.length) {
      pane.append(make("h3", "Verifier"));
      const rows = item.checks.map((check) => check.name + " (" + check.judge + "): " + (check.passed === null ? "unreadable" : check.passed ? "passed" : "not passed") + (check.answer ? "\n    " + check.answer : ""));
      pane.append(make("pre", rows.join("\n")));
    }
    pane.append(make("h3", "What happened after"), make("div", afterwards(item)));
    if (item.after) pane.append(make("pre", item.after));
    block(pane, "Error", item.error);
    block(pane, "State hash before the step", item.state_hash);
  }

  for (const key of keys) {
    const label = make("label", key);
    const select = make("select");
    select.id = "filter-" + key;
    select.addEventListener("change", () => { chosen[key] = select.value; apply(); });
    label.append(select);
    byId("filters").append(label);
  }
  byId("previous").addEventListener("click", () => { page -= 1; drawList(); });
  byId("next").addEventListener("click", () => { page += 1; drawList(); });
  apply();
})();
