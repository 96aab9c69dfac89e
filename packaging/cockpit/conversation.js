// One session as it is shown: its stored events, and what its watch tells from then on.

import { call, daemon, onDaemon, stream } from "./bus.js";

const TOPICS = "agent.message,agent.tool_dispatch,tool,agent.error,session.turn,session.compacted";
const PAGE = 200;
const MORE = 1000;
const OUTPUT = 262144;
const open = new Set();

onDaemon(() => open.forEach(one => daemon.owner ? one.begin() : one.told(one)));

/** `told(conversation)` is called when the items changed, `grown(item)` when only this one did. */
export class Conversation {
    constructor(id, told, grown) {
        Object.assign(this, { id, told, grown });
        this.items = [];
        this.session = null;
        this.error = null;
        this.earlier = 0;
        this.turn = null;
        this.plan = null;
        this.finished = new Set(); // the turns that were over when the stored events were read
        open.add(this);
        this.begin();
    }

    close() {
        open.delete(this);
        this.watch?.close();
    }

    get running() {
        return Boolean(this.turn) || this.session !== null && !["idle", "paused"].includes(this.session.state);
    }

    /** Watch from now on, and load what was before. */
    begin() {
        this.watch?.close();
        this.turn = null;
        const mine = this.watch = stream("Sessions.Watch", [this.id], {}, event => mine === this.watch && this.take(event));
        mine.over.then(() => null, error => error).then(error => {
            if (mine !== this.watch)
                return;
            this.error = error;
            this.told(this);
        });
        this.load();
    }

    async load() {
        this.loading = true;
        this.missed = false;
        try {
            const page = await call("History.Page", [], { session: this.id, topic: TOPICS, limit: PAGE });
            const plan = await call("Plans.Get", [this.id]).catch(() => null);
            this.plan = plan?.phase === "off" ? null : plan;
            const asked = this.items.filter(item => item.kind === "approval" || item.kind === "input");
            const stored = built(page.events);
            this.finished = new Set(stored.filter(item => item.kind === "end").map(item => item.trace));
            this.joined ||= stored.length > 0 && !this.finished.has(stored.at(-1).trace);
            this.items = [...stored, ...asked.filter(item => !item.state)];
            this.earlier = page.next_seq;
            this.error = null;
        } catch (error) {
            this.error = error;
        }
        this.loading = false;
        if (this.missed)
            this.joined = true;
        this.told(this);
        if (this.over) {
            this.over = false;
            this.load();
        }
    }

    /** Load what was before that. Gives how many items came. */
    async loadEarlier() {
        if (!this.earlier || this.loading)
            return 0;
        this.loading = true;
        try {
            const page = await call("History.Page", [], {
                session: this.id, topic: TOPICS, limit: MORE, to_seq: this.earlier,
            });
            const items = built(page.events);
            this.items = [...items, ...this.items];
            this.earlier = page.next_seq;
            return items.length;
        } finally {
            this.loading = false;
        }
    }

    add(item) {
        item.key = item.key || `live-${this.items.length}-${item.kind}-${item.trace || ""}`;
        this.items = [...this.items, item];
        this.told(this);
        return item;
    }

    find(kind, name, value) {
        return this.items.findLast(item => item.kind === kind && item[name] === value);
    }

    /** The answer that grows just now. */
    answer(trace) {
        const last = this.items.at(-1);
        return last?.kind === "assistant" && last.live && last.trace === trace
            ? last
            : this.add({ kind: "assistant", trace, live: true, text: "", thoughts: "", speaker: this.session?.holder || "" });
    }

    take(event) {
        const trace = event.trace_id;
        const ofTurn = !["session", "plan"].includes(event.type);
        if (this.loading && ofTurn) {
            this.missed = true;
            if (event.type === "done" || event.type === "error")
                this.over = true;
        }
        if (!(ofTurn && this.finished.has(trace)))
            TAKEN[event.type]?.(this, event, trace);
        else if (event.type === "done" || event.type === "error")
            this.ended(); // all of it was stored already: the watch is behind
    }

    changed(item) {
        item.version = (item.version || 0) + 1;
        this.grown(item);
    }

    /** Who has the session now, and whether text from outside is in it, is told by none of a turn's events. */
    async look() {
        this.session = await call("Sessions.Get", [this.id]).catch(() => this.session);
        this.told(this);
    }

    ended() {
        this.turn = null;
        this.look();
        this.items.filter(item => item.live).forEach(item => {
            item.live = false;
            this.changed(item);
        });
        if (this.joined) {
            this.joined = false;
            this.load();
        }
    }
}

const asks = kind => (it, event) => {
    if (!it.find(kind, kind, event[kind]))
        it.add({ ...event, kind, agent: it.session?.agent });
};

const answers = kind => (it, event) => {
    const item = it.find(kind, kind, event[kind]);
    if (item) {
        Object.assign(item, { state: event.state, note: event.note, answer: event.answer });
        it.changed(item);
    }
};

const TAKEN = {
    session: (it, { session_info: session }) => {
        const first = it.session === null;
        it.session = session || { ...it.session, state: "deleted" };
        if (first && session?.state !== "idle")
            it.joined = true;
        it.told(it);
    },
    prompt: (it, { text }, trace) => {
        it.turn = { trace, model: "", position: 0 };
        it.add({ kind: "user", trace, text, time_us: Date.now() * 1000 });
    },
    queued: (it, { position }, trace) => {
        it.turn = { ...it.turn, trace, position };
        it.told(it);
    },
    started: (it, { model }, trace) => {
        it.turn = { trace, model, position: 0, began: Date.now() };
        it.told(it);
    },
    text_delta: (it, { text }, trace) => {
        const item = it.answer(trace);
        item.text += text;
        it.changed(item);
    },
    reasoning_delta: (it, { text }, trace) => {
        const item = it.answer(trace);
        item.thoughts += text;
        it.changed(item);
    },
    tool_call: (it, event, trace) => {
        const { call_id, tool, action, effect, decision, args } = event;
        const known = it.find("tool", "call_id", call_id);
        if (known)
            Object.assign(known, { effect, decision });
        else
            it.add({ kind: "tool", trace, call_id, tool, action, effect, decision, args, output: "", live: true });
    },
    tool_output: (it, { call_id, text }) => {
        const item = it.find("tool", "call_id", call_id);
        if (item && item.output.length < OUTPUT) {
            item.output += text;
            it.changed(item);
        }
    },
    tool_result: (it, event, trace) => {
        const { call_id, tool, action, result, text, duration_ms } = event;
        const item = it.find("tool", "call_id", call_id) || it.add({ kind: "tool", trace, call_id, tool, action, output: "" });
        Object.assign(item, { result, output: text || item.output, duration_ms, live: false });
        it.changed(item);
    },
    approval_requested: asks("approval"),
    approval_answered: answers("approval"),
    input_requested: asks("input"),
    input_answered: answers("input"),
    plan: (it, { plan }) => {
        it.plan = plan?.phase === "off" ? null : plan;
        it.told(it);
    },
    compacted: (it, { removed, kept }) => it.add({ kind: "compacted", removed, kept }),
    notice: (it, { message }) => it.add({ kind: "note", text: message }),
    usage: (it, { total_tokens }) => {
        if (it.turn)
            it.turn.tokens = (it.turn.tokens || 0) + (total_tokens || 0);
    },
    error: (it, { message, suggestion, code }, trace) => {
        it.add({ kind: "error", trace, text: message, suggestion, code });
        it.ended();
    },
    done: (it, { steps, duration_ms, usage, text }, trace) => {
        const last = it.items.findLast(item => item.kind === "assistant" && item.trace === trace);
        if (!last && text)
            it.add({ kind: "assistant", trace, text, thoughts: "" });
        it.add({ kind: "end", trace, steps, duration_ms, tokens: usage?.total_tokens || 0 });
        it.ended();
    },
};

function thoughtsOf(data) {
    const told = data.reasoning;
    if (Array.isArray(told))
        return told.map(one => one.text || one.thinking || "").join("\n");
    return typeof told === "string" ? told : "";
}

/** The items of stored events, whatever their order. */
export function built(events) {
    const items = [];
    const calls = new Map(); // by the daemon's id
    const wanted = new Map(); // by the request and the model's id
    const ofRequest = new Map();
    for (const event of [...events].sort((one, other) => one.seq - other.seq)) {
        const { topic, type, data, seq, time, trace_id: trace, request_id: request } = event;
        const key = `stored-${seq}`;
        if (!data)
            continue;
        if (topic === "agent.message" && data.role === "user")
            items.push({ key, kind: "user", trace, text: data.content, speaker: data.speaker || "", time_us: time });
        else if (topic === "agent.message" && data.role === "assistant") {
            const thoughts = thoughtsOf(data);
            if (data.content || thoughts)
                items.push({ key, kind: "assistant", trace, text: data.content || "", thoughts, speaker: data.speaker || "", cutOff: data.cut_off || "", time_us: time });
            (data.tool_calls || []).forEach((one, at) => wanted.set(`${request} ${one.id}`, at));
        } else if (topic === "agent.message" && data.role === "tool") {
            const item = (ofRequest.get(request) || [])[wanted.get(`${request} ${data.tool_call_id}`)];
            if (item)
                item.output = data.content;
            else
                items.push({ key, kind: "tool", trace, tool: data.name, action: "", output: data.content, time_us: time });
        } else if (topic === "agent.tool_dispatch") {
            let item = calls.get(data.call_id);
            if (!item) {
                item = { key, kind: "tool", trace, output: "", time_us: time };
                calls.set(data.call_id, item);
                ofRequest.set(request, [...(ofRequest.get(request) || []), item]);
                items.push(item);
            }
            const { call_id, tool, action, effect, decision, args } = data;
            Object.assign(item, { call_id, tool, action, effect, decision, args });
            if (type === "refused")
                item.result = data.code || "refused";
        } else if (topic.startsWith("tool.") && type === "invocation") {
            const item = calls.get(data.call_id);
            if (item)
                Object.assign(item, { result: data.result, duration_ms: data.duration_ms });
        } else if (topic === "agent.error" && type !== "fallback")
            items.push({ key, kind: "error", trace, text: data.message || type, suggestion: data.suggestion || "", code: type });
        else if (topic === "session.turn" && type === "done")
            items.push({ key, kind: "end", trace, steps: data.steps, duration_ms: data.duration_ms, tokens: data.total_tokens || 0 });
        else if (topic === "session.compacted")
            items.push({ key, kind: "compacted", removed: data.removed, kept: data.kept });
    }
    return items;
}
