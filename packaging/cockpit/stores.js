// What the page knows of the daemon: one store for each subject, loaded when somebody looks and again when an event
// says that it changed. The daemon tells each person of what they may see.

import { call, daemon, onDaemon, stream } from "./bus.js";

const SOON_MS = 150;
const stores = [];

/** `load()` gives the value; `topics` are the beginnings of those whose events change it. `take(event)` may say that
 *  it has done what an event asks for, so that nothing is loaded. */
class Store {
    constructor(load, topics, take = null) {
        Object.assign(this, { load, topics, take });
        this.value = null;
        this.error = null;
        this.listeners = new Set();
        stores.push(this);
    }

    /** Call `listener` now and after each change, until the function that this gives is called. */
    watch(listener) {
        this.listeners.add(listener);
        if (this.value !== null || this.error)
            listener(this);
        if (this.value === null || this.stale)
            this.refresh();
        return () => this.listeners.delete(listener);
    }

    tell() {
        this.listeners.forEach(listener => listener(this));
    }

    async refresh() {
        if (this.loading) {
            this.again = true;
            return;
        }
        this.loading = true;
        this.stale = false;
        try {
            this.value = await this.load();
            this.error = null;
        } catch (error) {
            this.error = error;
        }
        this.loading = false;
        this.tell();
        if (this.again) {
            this.again = false;
            this.refresh();
        }
    }

    changed(event) {
        if (event && this.take?.(event))
            return;
        this.stale = true;
        if (this.listeners.size)
            this.timer ||= setTimeout(() => {
                this.timer = 0;
                this.refresh();
            }, SOON_MS);
    }
}

const all = (method, ...args) => () => call(method, args, {});

export const approvals = new Store(all("Approvals.List"), ["approval"]);
export const confirmations = new Store(async () => ({ at: performance.now(), all: await call("Confirmations.List", [], { all: true }) }), ["confirmation"]);
export const inputs = new Store(all("Inputs.List"), ["input"]);
export const flows = new Store(() => call("Flows.List"), ["daemon"]);
export const runs = new Store(all("Flows.Runs"), ["flow"]);
export const triggers = new Store(() => call("Triggers.List"), ["trigger", "daemon"]);
export const agents = new Store(() => call("Agents.List"), ["daemon"]);
export const skills = new Store(() => call("Skills.List"), ["daemon"]);
export const tools = new Store(() => call("Tools.List"), ["daemon"]);
export const planning = new Store(() => call("Sessions.List", [], { planning: true, limit: 50 }), ["plan", "session.deleted"]);
export const memories = new Store(() => call("Memory.List", [], { state: "all", limit: 1000 }), ["memory"]);
export const status = new Store(() => call("Manager.GetStatus"), ["daemon"]);

const PART = 200;
export const wanted = { agent: "", title: "" };

/** A part of the sessions, from the number `first` on. A daemon that knows no parts gives all. */
async function part(first) {
    const raw = { raw: true, seconds: 120 };
    try {
        return await call("Sessions.List", [], { ...wanted, first, limit: PART }, raw);
    } catch (error) {
        if (error.kind !== "old")
            throw error;
        return first ? [] : call("Sessions.List", [], {}, raw);
    }
}

const byId = found => new Map(found.map(each => [each.id.v, each]));

/** The sessions that are `wanted`, newest first, as far as they are loaded; with the types of D-Bus left in. */
export const sessions = new Store(
    async () => {
        const found = await part(0);
        sessions.ended = found.length < PART;
        return byId(found);
    },
    ["session", "agent.prompt", "plan"],
    event => {
        if (sessions.value === null || !event.session)
            return false;
        one(event.session);
        return true;
    });

/** Load the next part, if there is one. */
sessions.more = async () => {
    if (sessions.ended || sessions.loading || sessions.value === null)
        return;
    sessions.loading = true;
    const before = sessions.value;
    const found = await part(before.size).catch(() => []);
    sessions.loading = false;
    sessions.ended = found.length < PART;
    sessions.value = new Map([...sessions.value, ...byId(found.filter(each => !sessions.value.has(each.id.v)))]);
    sessions.tell();
};

const fetching = new Set();

/** Load one session anew: the first of the list if it is still there. */
async function one(id) {
    if (fetching.has(id))
        return;
    fetching.add(id);
    setTimeout(async () => {
        fetching.delete(id);
        let found = null;
        try {
            found = await call("Sessions.Get", [id], undefined, { raw: true });
        } catch {
            // deleted, or nobody's that may be seen
        }
        const rest = new Map(sessions.value);
        rest.delete(id);
        sessions.value = found && !found.parent?.v ? new Map([[id, found], ...rest]) : rest;
        sessions.tell();
    }, SOON_MS);
}

let following = null;
let failures = 0;

function follow() {
    const topics = [...new Set(stores.flatMap(store => store.topics))].join(",");
    following?.close();
    const mine = following = stream("Events.Subscribe", [], { topic: topics }, event => {
        failures = 0;
        if (event.seq === undefined) // some were missed
            stores.forEach(store => store.changed());
        else
            stores.filter(store => store.topics.some(topic => event.topic === topic || event.topic.startsWith(`${topic}.`)))
                    .forEach(store => store.changed(event));
    });
    mine.over.catch(() => {}).then(() => {
        if (following !== mine)
            return;
        following = null;
        if (daemon.owner)
            setTimeout(() => daemon.owner && !following && follow(), Math.min(60000, 1000 * 2 ** failures++));
    });
}

onDaemon(() => {
    if (daemon.owner && !daemon.hung && !following)
        follow();
    if (!daemon.hung)
        stores.forEach(store => store.changed());
    if (!daemon.owner)
        following = null;
});
