// What was stored: found by everything that `lactl audit list` takes, a turn as a tree, the chain verified, exported.

import { call } from "./bus.js";
import { button, empty, facts, failure, field, h, label, number, pre, replace, save, select, span, when } from "./dom.js";
import { LongList } from "./list.js";

const _ = cockpit.gettext;
const PAGE = 200;
const EXPORT = 1000;
const FILTERS = [
    ["agent", _("Agent")], ["session", _("Session")], ["topic", _("Topic")], ["type", _("Type")], ["tool", _("Tool")],
    ["effect", _("Effect"), ["", "observe", "reach", "change"]], ["decision", _("Decision"), ["", "allow", "ask", "deny"]],
    ["caller", _("Caller (uid)")], ["trace", _("Turn")], ["request", _("Request")], ["text", _("Text")],
    ["since_us", _("Since")], ["until_us", _("Until")],
];

function summary({ data, topic }) {
    if (!data)
        return _("(its session was deleted)");
    const call = data.tool ? `${data.tool}.${data.action || ""} ` : "";
    const said = data.text || data.content || data.message || data.title || data.reason || "";
    const args = data.args ? JSON.stringify(data.args) : "";
    return `${call}${data.decision ? `${data.decision} ` : ""}${data.result || ""} ${said || args || (topic.startsWith("session") ? "" : JSON.stringify(data))}`.trim().slice(0, 200);
}

/** The nodes of a turn: its steps by their request, in each the call of the model, calls of tools and questions. */
export function tree(events) {
    const root = { name: _("Turn"), children: [], begin: events[0].time, end: events.at(-1).time };
    const steps = new Map();
    const nodes = new Map();
    const node = (event, id, name) => {
        if (!nodes.has(id)) {
            let step = root;
            if (event.request_id) {
                if (!steps.has(event.request_id)) {
                    steps.set(event.request_id, { name: cockpit.format(_("Step $0"), steps.size + 1), children: [], begin: event.time, end: event.time });
                    root.children.push(steps.get(event.request_id));
                }
                step = steps.get(event.request_id);
            }
            const made = { name, children: [], begin: event.data?.started_us || event.time, end: event.time, events: [], step };
            step.children.push(made);
            nodes.set(id, made);
        }
        const found = nodes.get(id);
        found.events.push(event);
        found.end = event.time;
        for (const one of [found.step, found]) {
            one.begin = Math.min(one.begin, event.data?.started_us || event.time);
            one.end = Math.max(one.end, event.time);
        }
        return found;
    };
    for (const event of events) {
        const data = event.data || {};
        if (data.call_id) {
            const found = node(event, data.call_id, `${data.tool || ""}.${data.action || ""}`);
            found.result = data.result || found.result || data.decision;
            found.effect = data.effect || found.effect;
        } else if (event.topic === "agent.llm_response")
            node(event, event.seq, data.model || _("Model")).result = data.finish_reason;
        else if (event.topic === "agent.prompt" || event.topic === "agent.error" || event.topic === "session.turn")
            node(event, event.seq, `${event.topic} ${event.type}`).result = event.topic === "agent.error" ? event.type : "";
    }
    return root;
}

function branch(node, open = true) {
    const head = [h("span", {}, node.name), " ", node.effect ? label(node.effect) : null, " ",
        node.result ? label(node.result, node.result === "ok" || node.result === "stop" ? "ok" : "plain") : null, " ",
        h("span.time", {}, span(Math.round((node.end - node.begin) / 1000)), " ", when(node.begin))];
    const inner = [node.children.length ? h("ul", {}, node.children.map(one => branch(one))) : null,
        (node.events || []).length ? h("details", {}, h("summary", {}, _("Events")), node.events.map(one => pre(JSON.stringify(one.data, null, 2)))) : null];
    return h("li", {}, h("details", { open }, h("summary", {}, head), inner));
}

class HistoryView {
    constructor(panel) {
        this.inputs = new Map(FILTERS.map(([name, , choices]) => [name, choices
            ? select(choices.map(one => [one, one || _("any")]), "")
            : h("input.pf-v6-c-form-control", { type: name.endsWith("_us") ? "datetime-local" : name === "caller" ? "number" : "text" })]));
        this.list = h("div.events", { role: "list", "aria-label": _("Events"), tabIndex: 0 });
        this.rows = new LongList(this.list, { key: event => String(event.seq), guess: 44, draw: event => this.row(event) });
        this.list.addEventListener("scroll", () => this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 300 && this.more(), { passive: true });
        this.about = h("div", { "aria-live": "polite" });
        this.turn = h("section", { "aria-label": _("Turn") });
        const form = h("form.filters", {
            onsubmit: event => {
                event.preventDefault();
                this.load();
            },
        }, FILTERS.map(([name, title]) => field(title, this.inputs.get(name))),
        h("div.actions", {}, h("button.pf-v6-c-button.pf-m-primary", { type: "submit" }, _("Find")), button(_("Export"), () => this.export()),
          button(_("Verify"), () => this.verify())));
        panel.append(form, this.about, this.turn, this.list);
    }

    entered([trace]) {
        if (trace && trace !== this.shown)
            this.showTurn(trace).catch(error => replace(this.turn, failure(error)));
        if (!this.events)
            this.load();
        this.rows.soon();
    }

    get wanted() {
        return Object.fromEntries([...this.inputs].filter(([, input]) => input.value !== "").map(([name, { value }]) =>
            [name, name === "caller" ? Number(value) : name.endsWith("_us") ? new Date(value).getTime() * 1000 : value.trim()]));
    }

    async load() {
        this.filter = this.wanted;
        this.events = [];
        this.next = undefined;
        this.loading = null;
        replace(this.about, h("p", { role: "status" }, _("Looking …")));
        await this.more();
    }

    async more() {
        if (this.loading || this.next === 0)
            return;
        const mine = this.loading = {};
        try {
            const page = await call("History.Page", [], { ...this.filter, limit: PAGE, to_seq: this.next });
            if (mine !== this.loading) // another search began meanwhile
                return;
            this.events = [...this.events, ...page.events.sort((one, other) => other.seq - one.seq)];
            this.next = page.next_seq;
            this.rows.set(this.events);
            replace(this.about, this.events.length ? h("p.note", {}, cockpit.format(_("$0 events are shown."), number(this.events.length)))
                : this.next ? button(_("Look further back"), () => this.more())
                    : empty(_("Nothing was found"), _("Take a filter away, or look at another time.")));
        } catch (error) {
            replace(this.about, failure(error));
        }
        if (mine === this.loading)
            this.loading = null;
    }

    row(event) {
        const details = h("details", { ontoggle: () => details.open && details.childNodes.length < 2 && details.append(pre(JSON.stringify(event, null, 2))) },
                          h("summary", {}, h("span.time", {}, when(event.time)), " ", h("code", {}, `${event.topic} ${event.type}`), " ",
                            event.agent ? label(event.agent) : null, " ", summary(event)));
        return h("div.event", { role: "listitem" }, details,
                 event.trace_id ? button(_("Turn"), () => cockpit.location.go(["history", event.trace_id]), { kind: "link" }) : null);
    }

    async showTurn(trace) {
        this.shown = trace;
        const events = [];
        for (let from = 1; from;) {
            const page = await call("History.Page", [], { trace, oldest_first: true, from_seq: from, limit: EXPORT });
            events.push(...page.events);
            from = page.next_seq;
        }
        if (!events.length)
            throw new Error(_("This turn is not in the history."));
        events.sort((one, other) => one.seq - other.seq);
        replace(this.turn, h("h2", {}, cockpit.format(_("A turn of $0"), events[0].agent), " ", button(_("Close"), async () => {
            this.shown = "";
            replace(this.turn);
            cockpit.location.go(["history"]);
        }, { kind: "link" })), h("ul.tree", {}, branch(tree(events))));
    }

    async export() {
        const filter = this.wanted;
        const lines = [];
        for (let next; next !== 0;) {
            const page = await call("History.Page", [], { ...filter, limit: EXPORT, to_seq: next });
            lines.push(...page.events.sort((one, other) => other.seq - one.seq).map(one => JSON.stringify(one)));
            next = page.next_seq;
            replace(this.about, h("p.note", { role: "status" }, cockpit.format(_("$0 events are exported."), number(lines.length))));
        }
        save("history.jsonl", `${lines.reverse().join("\n")}\n`, "application/x-ndjson");
    }

    async verify() {
        replace(this.about, h("p", { role: "status" }, _("Verifying …")));
        try {
            const found = await call("History.Verify", [], {}, { seconds: 0 });
            replace(this.about, h("div.card", {}, h("h3", {}, found.ok ? _("The history is intact") : _("The history was altered"), " ", label(found.ok ? "ok" : _("altered"), found.ok ? "ok" : "bad")),
                facts([[_("Events"), number(found.events)], [_("First altered event"), found.ok ? "" : found.first_bad_seq], [_("Reason"), found.reason],
                    [_("Newest event"), found.head_seq], [_("Its hash"), h("code", {}, found.head_hash)], [_("Checkpoints"), found.checkpoints], [_("Key"), found.key]]),
                found.notes.map(one => h("p.note", {}, one))));
        } catch (error) {
            replace(this.about, failure(error));
        }
    }
}

export const history = { id: "history", title: _("History"), make: panel => new HistoryView(panel) };
