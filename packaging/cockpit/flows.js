// Flows and their runs. The graph is drawn from what the steps come after, a layer for each length of the way there.

import { call, stream } from "./bus.js";
import { button, empty, facts, failure, field, h, label, number, pre, replace, span, svg, table, when } from "./dom.js";
import { flows as known, runs } from "./stores.js";
import { watching } from "./tables.js";

const _ = cockpit.gettext;
const WIDTH = 168;
const HEIGHT = 44;
const GAP_X = 48;
const GAP_Y = 20;
const KINDS = { success: "ok", failed: "bad", running: "warn", waiting_approval: "warn" };
const OVER = ["success", "failed", "cancelled"];

/** Where each step stands: its layer, and its place in that. */
export function layers(steps) {
    const byName = new Map(steps.map(step => [step.name, step]));
    const depths = new Map();
    const depth = (name, way = new Set()) => {
        if (!depths.has(name) && !way.has(name)) {
            way.add(name);
            const before = (byName.get(name)?.after || []).filter(one => byName.has(one));
            depths.set(name, before.length ? 1 + Math.max(...before.map(one => depth(one, way))) : 0);
        }
        return depths.get(name) || 0;
    };
    const rows = [];
    for (const step of steps)
        (rows[depth(step.name)] ||= []).push(step);
    return rows;
}

function graph(steps, open) {
    const rows = layers(steps.filter(step => !step.name.includes("/")));
    const places = new Map();
    rows.forEach((row, x) => row.forEach((step, y) => places.set(step.name, [x * (WIDTH + GAP_X), y * (HEIGHT + GAP_Y)])));
    const width = rows.length * (WIDTH + GAP_X);
    const height = Math.max(1, ...rows.map(row => row.length)) * (HEIGHT + GAP_Y);
    const lines = [];
    const boxes = [];
    for (const step of rows.flat()) {
        const [x, y] = places.get(step.name);
        for (const before of step.after.filter(one => places.has(one))) {
            const [fromX, fromY] = places.get(before);
            const [x1, y1, y2] = [fromX + WIDTH, fromY + HEIGHT / 2, y + HEIGHT / 2];
            lines.push(svg("path", { class: "edge", d: `M${x1} ${y1} C${x1 + GAP_X / 2} ${y1} ${x - GAP_X / 2} ${y2} ${x} ${y2}` }));
        }
        boxes.push(svg("g", {
            class: `step state-${step.state || "pending"}`, transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "data-step": step.name,
            "aria-label": `${step.name}: ${step.state}`, onclick: () => open(step), onkeydown: event => ["Enter", " "].includes(event.key) && open(step),
        }, svg("rect", { width: WIDTH, height: HEIGHT, rx: 6 }), svg("text", { x: 10, y: 19 }, step.name.slice(0, 22)),
        svg("text", { x: 10, y: 36, class: "small" }, `${step.kind} · ${step.state}`)));
    }
    return h("div.scrolling", { tabIndex: 0 }, svg("svg", {
        width, height, viewBox: `-2 -2 ${width + 4} ${height + 4}`, role: "group", "aria-label": _("Steps of the run"),
    }, lines, boxes));
}

class RunView {
    constructor(place, id) {
        this.place = place;
        this.steps = new Map();
        this.below = h("div", { "aria-live": "polite" });
        this.reader = stream("Flows.Follow", [id], {}, progress => this.take(progress));
        this.reader.over.catch(error => place.append(failure(error)));
    }

    close() {
        this.reader.close();
    }

    take({ run, steps }) {
        steps.forEach(step => this.steps.set(step.name, step));
        const act = method => () => call(`Flows.${method}`, [run.id], undefined, { asks: true });
        replace(this.place, h("h3", {}, run.flow, " ", label(run.state, KINDS[run.state]), h("span.time", {}, ` ${run.done} / ${run.steps}`)),
                run.message ? h("p.failure", {}, run.message) : null, graph([...this.steps.values()], step => this.show(step, run)),
                h("div.actions", {}, OVER.includes(run.state) ? null : button(_("Cancel the run"), act("Cancel"), { kind: "danger" }),
                  ["failed", "cancelled"].includes(run.state) ? button(_("Go on with it"), act("Resume")) : null), this.below);
    }

    async show(step, run) {
        replace(this.below, h("h4", {}, step.name), facts([
            [_("Kind"), step.kind], [_("State"), label(step.state, KINDS[step.state])], [_("Attempt"), step.attempt], [_("Agent"), step.agent],
            [_("Waits for"), step.waits_for], [_("Would do"), step.will], [_("Problem"), step.message],
            [_("Time"), step.ended_us ? span(Math.round((step.ended_us - step.started_us) / 1000)) : when(step.started_us)],
            [_("Tokens"), step.total_tokens ? number(step.total_tokens) : ""],
        ]), step.session ? button(_("Open the chat"), () => cockpit.location.go(["chat", step.session]), { kind: "link" }) : null);
        if (step.output)
            this.below.append(pre(await call("Flows.Output", [run.id, step.name]).catch(error => error.message)));
    }
}

function starting(flow) {
    const inputs = flow.inputs.map(one => [one, h("input.pf-v6-c-form-control", { type: "text", required: one.required, value: one.default ?? "", "aria-description": one.description })]);
    const value = (type, text) => type === "string" ? text : JSON.parse(text);
    const place = h("div");
    const given = () => Object.fromEntries(inputs.filter(([, input]) => input.value !== "").map(([one, input]) => [one.name, value(one.type, input.value)]));
    return h("div", {}, flow.problem ? h("p.failure", {}, flow.problem) : null, h("p", {}, flow.description), inputs.map(([one, input]) => field(one.name, input)),
             h("div.actions", {}, button(_("Run it"), async () => {
                 const run = await call("Flows.Run", [flow.name], { inputs: given() }, { asks: true });
                 cockpit.location.go(["flows", run.id]);
             }, { kind: "primary" }), button(_("What would it do?"), async () => {
                 const steps = await call("Flows.Plan", [flow.name], { inputs: given() });
                 replace(place, graph(steps, () => {}), table(_("Steps"), [[_("Step"), one => one.name], [_("Would do"), one => one.will]], steps));
             })), place);
}

class FlowsView {
    constructor(panel) {
        this.run = h("section", { "aria-label": _("Run") });
        const flowList = h("div");
        const runList = h("div");
        panel.append(this.run, h("h2", {}, _("Runs")), runList, h("h2", {}, _("Flows")), flowList);
        watching(runs, value => table(_("Runs"), [
            [_("Run"), one => h("button.pf-v6-c-button.pf-m-link", { type: "button", onclick: () => cockpit.location.go(["flows", one.id]) }, one.id)],
            [_("Flow"), one => one.flow], [_("State"), one => label(one.state, KINDS[one.state])], [_("Done"), one => `${one.done} / ${one.steps}`],
            [_("Began"), one => when(one.started_us)],
        ], value), () => empty(_("Nothing ran yet"), _("Run one of the flows below.")))(runList);
        watching(known, value => table(_("Flows"), [
            [_("Name"), one => one.name], [_("What it does"), one => one.problem || one.description], [_("Steps"), one => one.steps],
        ], value, { key: "name", more: starting }),
        () => empty(_("There are no flows"), _("A file below /etc/lightagentd/flows has steps that run the same way every time.")))(flowList);
    }

    entered([id]) {
        if (id === this.id)
            return;
        this.view?.close();
        replace(this.run);
        this.id = id;
        this.view = id ? new RunView(this.run, id) : null;
    }
}

export const flows = { id: "flows", title: _("Flows"), make: panel => new FlowsView(panel) };
