// The tabs that are lists: each has a store, what it says when there is nothing, and how an entry is shown.

import { call } from "./bus.js";
import { button, empty, facts, failure, field, h, label, number, pre, replace, select, span, table, unique, when } from "./dom.js";
import { markdown } from "./markdown.js";
import { planCard } from "./plan.js";
import { approvalCard, effectLabel, inputCard } from "./questions.js";
import * as stores from "./stores.js";

const _ = cockpit.gettext;
const STATES = { running: "ok", ready: "ok", active: "ok", idle: "plain", stopped: "warn", paused: "warn", broken: "bad", failed: "bad" };

export const stateLabel = state => state ? label(state, STATES[state] || "plain") : null;

/** What shows a store in a panel. `show(value)` gives the elements; they are made anew when it changed. */
export function watching(store, show, nothing) {
    return panel => {
        const place = h("div");
        panel.append(place);
        let before = "";
        let waiting = false;
        const draw = ({ value, error }) => {
            const now = error ? "" : JSON.stringify(value instanceof Map ? [...value.keys()] : value);
            if (now === before && !error && place.firstChild)
                return;
            // What somebody types in a card stays: the list is made anew once they have left it.
            if (place.contains(document.activeElement) && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
                waiting ||= Boolean(place.addEventListener("focusout", () => setTimeout(() => draw(store)), { once: true })) || true;
                return;
            }
            waiting = false;
            before = now;
            replace(place, error ? failure(error) : value.length || value.size ? show(value, () => store.refresh()) : nothing());
        };
        store.watch(draw);
        return {
            redraw: () => {
                before = "";
                draw(store);
            },
        };
    };
}

function acts(refresh, ...actions) {
    return h("div.actions", {}, actions.filter(Boolean).map(([title, act, kind]) =>
        button(title, async () => {
            await act();
            refresh();
        }, { kind })));
}

/** A card of each, kept as long as it is about the same: what was typed or opened in it stays. */
function kept(make) {
    const cards = new Map();
    return one => {
        const now = JSON.stringify(one);
        if (cards.get(one.id)?.now !== now)
            cards.set(one.id, { now, element: make(one) });
        return cards.get(one.id).element;
    };
}

const approvalOf = kept(one => approvalCard(one));
const inputOf = kept(inputCard);

export const asked = {
    id: "approvals",
    title: _("Approvals"),
    make: watching(stores.approvals, value => value.map(approvalOf),
                   () => empty(_("No call waits for approval"), _("When an agent asks to do what policy lets run only with a yes, the call is here."))),
};

export const inputsTab = {
    id: "inputs",
    title: _("Inputs"),
    make: watching(stores.inputs, value => value.map(inputOf),
                   () => empty(_("No agent asks you anything"), _("A question of an agent in the middle of its work is here."))),
};

async function loadPlans() {
    return Promise.all(stores.planning.value.map(async session => ({ session, plan: await call("Plans.Get", [session.id]) })));
}

export const plans = {
    id: "plans",
    title: _("Plans"),
    make: panel => {
        const place = h("div");
        panel.append(place);
        stores.planning.watch(async ({ error }) => {
            try {
                const all = error ? [] : await loadPlans();
                replace(place, error ? failure(error) : all.length ? all.map(({ session, plan }) => h("div", {},
                    h("h2", {}, session.title || session.id, " ", button(_("Open the chat"), () => cockpit.location.go(["chat", session.id]), { kind: "link" })),
                    planCard(plan)))
                    : empty(_("No plan is being worked on"), _("Begin one in a chat with Plan mode: the agent drafts tasks, and nothing changes until you apply them.")));
            } catch (failed) {
                replace(place, failure(failed));
            }
        });
        return {};
    },
};

export const triggers = {
    id: "triggers",
    title: _("Triggers"),
    make: watching(stores.triggers, (value, refresh) => table(_("Triggers"), [
        [_("Name"), one => one.name], [_("State"), one => stateLabel(one.state)], [_("Waits for"), one => `${one.on} ${one.about}`],
        [_("Agent"), one => one.agent || one.flow], [_("Fired"), one => number(one.fired)], [_("Last"), one => when(one.last_us)],
    ], value, {
        key: "name", more: one => h("div", {}, one.problem ? h("p.failure", {}, one.problem) : null, facts([
            [_("Prompt"), one.prompt], [_("Owner"), one.owner], [_("Session"), one.session], [_("Effects"), one.effects.join(", ")],
            [_("Rate limit"), one.rate_limit ? `${one.rate_limit} / ${span(one.rate_period_s * 1000)}` : ""],
            [_("Taken together"), one.coalesced], [_("Refused"), one.refused], [_("Missed"), one.missed], [_("Answered"), one.answered],
        ]), acts(refresh, one.state === "paused" || one.state === "stopped"
            ? [_("Resume"), () => call("Triggers.Resume", [one.name], undefined, { asks: true }), "primary"]
            : [_("Pause"), () => call("Triggers.Pause", [one.name], undefined, { asks: true })])),
    }), () => empty(_("There are no triggers"), _("A file below /etc/lightagentd/triggers says what on this machine becomes a question to an agent."))),
};

/** Put what a call finds in a place of its own, once it is there. */
function later(found, show) {
    const place = h("div", {}, h("p.note", {}, _("Loading …")));
    found.then(value => replace(place, show(value)), error => replace(place, failure(error)));
    return place;
}

const pattern = text => new RegExp(`^${text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".")}$`);

/** Whether a rule of policy may be about an agent: it names none, or one that fits. */
const isAbout = (rule, agent) => !rule.conditions.agent || [rule.conditions.agent].flat().some(one => pattern(one).test(agent));

const DECISIONS = { allow: "ok", ask: "warn", deny: "bad" };
const told = conditions => Object.entries(conditions).map(([name, one]) => h("div", {}, `${name}: `, h("code", {}, typeof one === "string" ? one : JSON.stringify(one))));

const mayDo = agent => [
    h("h4", {}, _("What it may use now")),
    later(call("Agents.UsableTools", [agent.name]), found => table(_("What it may use now"), [
        [_("Tool"), one => one.name],
        [_("Actions"), one => [...new Set(one.actions.map(action => action.effect))].map(effect => h("span.of-effect", {}, effectLabel(effect), " ",
            one.actions.filter(action => action.effect === effect).map(action => action.name).join(", ")))],
    ], found)),
    h("h4", {}, _("What policy says")),
    later(call("Policy.List").then(found => found.filter(rule => isAbout(rule, agent.name))), found => found.length ? table(_("What policy says"), [
        [_("Decision"), one => label(one.decision, DECISIONS[one.decision])], [_("Rule"), one => one.name],
        [_("When"), one => told(one.conditions)], [_("Reason"), one => one.reason],
    ], found) : h("p.note", {}, _("No rule of policy.d is about it: the defaults decide."))),
];

const FROM = { set: _("set here or with lactl"), definition: _("from its definition"), configuration: _("from the configuration") };

/** Where an agent's model is set; an empty text takes that back. */
function modelOf(agent) {
    const names = h("datalist", { id: unique("models") });
    const input = h("input.pf-v6-c-form-control", {
        type: "text", list: names.id, placeholder: agent.model, value: agent.model_from === "set" ? agent.model : "",
        onfocus: () => names.firstChild || call("Models.List", [], {}).then(
            found => replace(names, ["runbook", ...found.map(one => one.model)].map(one => h("option", { value: one }))), () => null),
    });
    return h("div.actions", {}, field(_("Model, empty for its own"), input), names,
             button(_("Set the model"), () => call("Agents.Set", [agent.name, input.value.trim()], undefined, { asks: true })));
}

const manage = (method, name) => () => call(`Agents.${method}`, [name], undefined, { asks: true, seconds: 0 });

export const agents = {
    id: "agents",
    title: _("Agents"),
    make: watching(stores.agents, (value, refresh) => table(_("Agents"), [
        [_("Name"), one => one.name], [_("State"), one => stateLabel(one.state)], [_("Model"), one => one.model],
        [_("May"), one => h("span", {}, one.effects.map(effect => [effectLabel(effect), " "]))], [_("Sessions"), one => number(one.sessions)],
    ], value, {
        key: "name", more: one => h("div", {}, one.problem ? h("p.failure", {}, one.problem) : null, h("p", {}, one.description),
            facts([[_("Role"), one.role], [_("Model"), `${one.model}${FROM[one.model_from] ? ` (${FROM[one.model_from]})` : ""}`], [_("Other models"), one.fallback.join(", ")], [_("Steps at most"), one.max_steps],
                [_("Team"), one.agents.join(", ")], [_("Skills"), one.skills.join(", ")], [_("Defined in"), one.origin]]),
            acts(refresh, one.state === "running" ? [_("Stop"), manage("Stop", one.name), "danger"] : [_("Start"), manage("Start", one.name), "primary"],
                 [_("Restart"), manage("Restart", one.name)],
                 [_("Chat"), async () => cockpit.location.go(["chat"], { agent: one.name })]), modelOf(one), mayDo(one)),
    }), () => empty(_("There is no agent"), _("Make one with: lactl agents create"))),
};

const skillBody = one => [one.problem ? h("p.failure", {}, one.problem) : null, later(call("Skills.Get", [one.name]), found => [
    facts([[_("Effect"), effectLabel(found.effect)], [_("Asked as"), found.prompts.slice(0, 5).join(" · ")], [_("Defined in"), found.origin]]), markdown(found.body)])];

export const skills = {
    id: "skills",
    title: _("Skills and tools"),
    make: panel => {
        const left = h("div");
        const right = h("div");
        panel.append(h("h2", {}, _("Skills")), left, h("h2", {}, _("Tools")), right);
        watching(stores.skills, value => table(_("Skills"), [
            [_("Name"), one => one.name], [_("What it does"), one => one.problem ? h("span.failure", {}, one.problem) : one.description],
        ], value, { key: "name", more: skillBody }), () => empty(_("There are no skills"), ""))(left);
        watching(stores.tools, value => table(_("Tools"), [
            [_("Name"), one => one.name], [_("What it does"), one => one.problem ? h("span.failure", {}, one.problem) : one.description],
        ], value, {
            key: "name", more: one => table(_("Actions"), [
                [_("Action"), action => action.name], [_("Effect"), action => effectLabel(action.effect)],
                [_("What it does"), action => action.description], [_("Arguments"), action => pre(JSON.stringify(action.schema?.properties || {}, null, 1))],
            ], one.actions),
        }), () => empty(_("There are no tools"), ""))(right);
        return {};
    },
};

export const memory = {
    id: "memory",
    title: _("Memory"),
    make: panel => {
        const state = select([["candidate", _("Candidates")], ["kept", _("Kept")], ["rejected", _("Turned down")], ["all", _("All")]], "candidate");
        const rest = h("div");
        panel.append(field(_("Show"), state), rest);
        const chosen = {
            watch: listener => stores.memories.watch(() => listener(chosen)),
            refresh: () => stores.memories.refresh(),
            get error() {
                return stores.memories.error;
            },
            get value() {
                return (stores.memories.value || []).filter(one => state.value === "all" || one.state === state.value);
            },
        };
        const view = watching(
            chosen,
            (value, refresh) => value.map(one => h("section.card", { "aria-label": _("Memory"), "data-memory": one.id },
                h("p", {}, one.text), facts([[_("State"), stateLabel(one.state)], [_("Agent"), one.agent], [_("Why"), one.proposed_why || one.source],
                    [_("Scope"), one.scope], [_("Since"), when(one.created_us)], [_("Tags"), one.tags.join(", ")]]),
                acts(refresh, one.state === "candidate" ? [_("Keep"), () => call("Memory.Promote", [one.id], undefined, { asks: true }), "primary"] : null,
                     one.state === "candidate" ? [_("Turn down"), () => call("Memory.Reject", [one.id])] : null,
                     [_("Forget"), () => call("Memory.Forget", [one.id], undefined, { asks: true }), "danger"]))),
            () => empty(state.value === "candidate" ? _("Nothing waits to be kept") : _("There is nothing here"),
                        _("What an agent wants to remember from a conversation with text from outside waits here for you.")))(rest);
        state.addEventListener("change", view.redraw);
        return view;
    },
};
