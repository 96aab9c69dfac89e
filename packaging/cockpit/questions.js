// Calls that wait for a yes and questions that wait for an answer, as they are shown wherever they are met.

import { call } from "./bus.js";
import { button, diff, facts, field, h, label, pre, replace, select, when } from "./dom.js";

const _ = cockpit.gettext;
const EFFECTS = { observe: "ok", reach: "plain", change: "warn" };
const STATES = {
    granted: _("approved"), denied: _("denied"), expired: _("expired"), lapsed: _("lapsed"), answered: _("answered"),
    used: _("approved"), waiting: _("waiting"),
};

export const effectLabel = effect => effect ? label(effect, EFFECTS[effect] || "plain") : null;
export const stateName = state => STATES[state] || state;

function isDiff(text) {
    return /^(---|\+\+\+|@@) /m.test(text);
}

/** The whole call: what would run, where, and what it would change. */
export function callDetails({ args, cwd, preview }) {
    const parts = [];
    if (typeof args?.command === "string")
        parts.push(pre(args.command));
    const rest = Object.fromEntries(Object.entries(args || {}).filter(([name]) => name !== "command" || !parts.length));
    if (Object.keys(rest).length)
        parts.push(pre(JSON.stringify(rest, null, 2)));
    if (preview)
        parts.push(isDiff(preview) ? diff(preview) : pre(preview));
    return [cwd ? facts([[_("Folder"), cwd]]) : null, parts];
}

/** A card about one call; `asked` is an approval, or the event that asks for it with its `approval` as `id`. */
export function approvalCard(asked, { compact = false } = {}) {
    const id = asked.id || asked.approval;
    const waits = !asked.state || asked.state === "waiting";
    const may = asked.may_answer || asked.must_authenticate;
    const card = h("section.card.question", { "aria-label": _("A call waits for approval"), "data-approval": id });
    const note = h("input.pf-v6-c-form-control", { type: "text", maxlength: 500 });
    const answer = (method, options) => async () => {
        const closed = await call(`Approvals.${method}`, [id], { note: note.value, ...options }, { asks: true });
        replace(answers, h("p", { role: "status" }, stateName(closed.state)));
    };
    const answers = h("div.actions", {});
    if (waits) {
        answers.append(
            field(_("Note to the agent"), note),
            button(asked.must_authenticate ? _("Approve as an administrator") : _("Approve"),
                   answer("Approve", { digest: asked.digest }), { kind: "primary", hidden: !may }),
            button(_("Deny"), answer("Deny", {}), { kind: "danger" }));
        if (!may)
            answers.append(h("p.note", {}, _("You may not approve this. An administrator can.")));
    } else
        answers.append(h("p", { role: "status" }, stateName(asked.state),
                         asked.note ? h("span", {}, ": ", asked.note) : null));
    card.append(
        h("h3", {}, `${asked.tool}.${asked.action} `, effectLabel(asked.effect)),
        ...callDetails(asked).flat().filter(Boolean),
        facts([
            [_("Reason"), asked.reason], [_("Rule"), asked.rule],
            ...(compact ? [] : [[_("Agent"), asked.agent], [_("Asked"), when(asked.created_us)]]),
            [_("Expires"), waits ? when(asked.expires_us) : ""],
        ]),
        answers);
    return card;
}

/** A card with a question of an agent, and where to answer it. */
export function inputCard(asked) {
    const id = asked.id || asked.input;
    const waits = !asked.state || asked.state === "waiting";
    const card = h("section.card.question", { "aria-label": _("A question of the agent"), "data-input": id });
    const choices = asked.choices || [];
    const text = choices.length ? select(choices, choices[0]) : h("textarea.pf-v6-c-form-control", { rows: 2 });
    const answers = h("div.actions", {});
    const give = async () => {
        const closed = await call("Inputs.Answer", [id, text.value]);
        replace(answers, h("p", { role: "status" }, stateName(closed.state), ": ", closed.answer));
    };
    if (waits)
        answers.append(field(_("Your answer"), text), button(_("Answer"), give, { kind: "primary" }));
    else
        answers.append(h("p", { role: "status" }, stateName(asked.state), ": ", asked.answer));
    card.append(h("h3", {}, asked.question),
                facts([[_("Agent"), asked.agent], [_("Expires"), waits ? when(asked.expires_us) : ""]]), answers);
    return card;
}
