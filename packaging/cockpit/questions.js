// Calls that wait for a yes and questions that wait for an answer, as they are shown wherever they are met.

import { answered, isRuleFor, otherLetters, questionOf, TAKEN_OVER } from "./approver.js";
import { call, Failure } from "./bus.js";
import { button, diff, facts, failure, field, fill, h, label, pre, replace, select, span, table, when } from "./dom.js";

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

/** What was asked, and what somebody answered or may answer. */
function card(name, id, kind, head, about, answers) {
    return h("section.card.question", { "aria-label": name, [`data-${kind}`]: id }, h("h3", {}, head), about, answers);
}

const ADMINISTRATORS_FOLDER = /^\/etc\/lightagentd\/policy\.d\/[\w.-]+\.toml$/;

/** Write a rule that was shown. The packaged daemon cannot, and then Cockpit's administrative access does. */
async function writeRule(id, rule, tainted) {
    try {
        return await call("Approvals.WriteRule", [id, rule.sha256], { tainted }, { asks: true });
    } catch (error) {
        if (error.kind !== "refused" || !ADMINISTRATORS_FOLDER.test(rule.path))
            throw error;
        const file = cockpit.file(rule.path, { superuser: "require" });
        try {
            await file.replace(rule.text, "-");
        } catch (problem) {
            throw problem.problem === "access-denied" ? error : problem;
        } finally {
            file.close();
        }
        await call("Manager.Reload", [], undefined, { asks: true });
    }
}

/** The rule that would allow a call always, with what it would have allowed; `allow` answers the call itself. */
async function proposal(id, tainted, signed, allow) {
    const rule = await call("Approvals.ProposeRule", [id], { tainted });
    if (signed && !isRuleFor(rule.text, signed, tainted))
        throw new Failure("other", _("The daemon proposes a rule for something else than what was shown. Nothing was written."), TAKEN_OVER);
    const write = async () => {
        await writeRule(id, rule, tainted);
        await allow();
    };
    return h("section.proposal", { "aria-label": _("A rule for this call") }, h("h4", {}, _("A rule for this call")), h("p", {}, rule.words),
             facts([[_("File"), rule.path]]), pre(rule.text),
             h("p", {}, cockpit.format(_("It would have allowed $0 of the last $1 calls of this tool that were asked about or refused."), rule.allowed, rule.judged)),
             rule.past.length ? table(_("Past calls"), [[_("Time"), one => when(one.time_us)], [_("Then"), one => one.before], [_("Call"), one => h("code", {}, JSON.stringify(one.args))]], rule.past) : null,
             h("div.actions", {}, button(_("Write this rule, and allow"), write, { kind: "primary" })));
}

/** The fields of a change that takes itself back, and what allows it. */
function forNow(asked, allow) {
    const input = (value, placeholder) => h("input.pf-v6-c-form-control", { type: "text", value, placeholder });
    const within = input(asked.confirm_within_s ? `${asked.confirm_within_s}s` : "5m", "5m");
    const check = input(asked.check || "", "curl -sf http://localhost/");
    const inverse = input(asked.inverse || "", "nft delete table inet new");
    const terms = () => ({ confirm_within: within.value.trim(), check: check.value.trim(), inverse: inverse.value.trim() });
    return h("details.for-now", { open: Boolean(asked.confirm_within_s) }, h("summary", {}, _("Take it back unless it is confirmed …")),
             h("p.note", {}, _("A file gets its content back and a unit its state. For any other call name the command that takes it back.")),
             h("div.filters", {}, field(_("Within"), within), field(_("Or this check passes"), check), field(_("Taken back by"), inverse)),
             h("div.actions", {}, button(_("Allow for now"), () => allow(terms()))));
}

/** A card about one call; `asked` is an approval, or the event that asks for it with its `approval` as `id`. What the
 *  approver answers is shown once it has said what would run. */
export function approvalCard(asked, options) {
    if (!asked.approver || (asked.state && asked.state !== "waiting"))
        return callCard(asked, options);
    const place = h("div", {}, h("p", { role: "status" }, _("Asking the approver …")));
    questionOf(asked).then(
        found => replace(place, callCard(found, options)),
        problem => replace(place, callCard({ ...asked, may_answer: false, must_authenticate: false, problem }, options)));
    return place;
}

/** All that is signed, where it is not this page's word but the approver's. */
function signedDetails({ signed, exact }) {
    const letters = otherLetters(JSON.stringify(JSON.parse(signed).args));
    return [
        letters ? h("p.note", {}, cockpit.format(_("Look closely: there are characters that may look like others: $0"), letters)) : null,
        h("details", { open: !exact }, h("summary", {}, _("All that is signed")), pre(exact ? JSON.stringify(JSON.parse(signed), null, 2) : signed))];
}

function callCard(asked, { compact = false } = {}) {
    const id = asked.id || asked.approval;
    const waits = !asked.state || asked.state === "waiting";
    const answers = h("div", {}, waits ? null : h("p", { role: "status" }, stateName(asked.state), asked.note ? h("span", {}, ": ", asked.note) : null));
    const note = h("input.pf-v6-c-form-control", { type: "text", maxlength: 500 });
    const tainted = h("input", { type: "checkbox" });
    const proposed = h("div", { "aria-live": "polite" });
    const answer = async (method, options) => {
        const given = { note: note.value, ...options };
        const closed = asked.signed ? await answered(method, asked, given) : await call(`Approvals.${method}`, [id], given, { asks: true });
        replace(answers, h("p", { role: "status" }, stateName(closed.state)));
    };
    const allow = options => answer("Approve", asked.signed ? options : { digest: asked.digest, ...options });
    const may = asked.may_answer || asked.must_authenticate;
    if (waits)
        fill(answers, [
            h("div.actions", {}, field(_("Note to the agent"), note), may ? [
                button(_("Allow once"), () => allow({}), { kind: "primary" }),
                button(_("Allow in this session"), () => allow({ for_session: true, tainted: tainted.checked })),
                button(_("Always …"), async () => replace(proposed, await proposal(id, tainted.checked, asked.signed, () => allow({}))))] : null,
            button(_("Deny"), () => answer("Deny", {}), { kind: "danger" })),
            may ? [
                h("label.check-line", {}, tainted, _("In this session and always: also while text from outside is in it")),
                forNow(asked, allow), proposed] : null,
            asked.must_authenticate ? h("p.note", {}, _("To allow this you must be an administrator: turn on administrative access at the top of Cockpit."))
                : may ? null : asked.problem ? failure(asked.problem) : h("p.note", {}, _("You may not approve this. An administrator can.")),
        ]);
    return card(_("A call waits for approval"), id, "approval", [`${asked.tool}.${asked.action} `, effectLabel(asked.effect)], [
        callDetails(asked), asked.signed ? signedDetails(asked) : null,
        facts([
            [_("Reason"), asked.reason], [_("Rule"), asked.rule],
            ...(compact ? [] : [[_("Agent"), asked.agent], [_("Asked"), when(asked.created_us)]]),
            [_("Expires"), waits ? when(asked.expires_us) : ""],
            [_("Taken back after"), asked.confirm_within_s ? span(asked.confirm_within_s * 1000) : ""],
            [_("Unless it passes"), asked.check], [_("Taken back by"), asked.inverse],
        ])], answers);
}

/** A card with a question of an agent, and where to answer it. */
export function inputCard(asked) {
    const id = asked.id || asked.input;
    const waits = !asked.state || asked.state === "waiting";
    const choices = asked.choices || [];
    const text = choices.length ? select(choices, choices[0]) : h("textarea.pf-v6-c-form-control", { rows: 2 });
    const said = one => h("p", { role: "status" }, stateName(one.state), ": ", one.answer);
    const answers = h("div.actions", {}, waits ? [field(_("Your answer"), text), button(_("Answer"), async () =>
        replace(answers, said(await call("Inputs.Answer", [id, text.value]))), { kind: "primary" })] : said(asked));
    return card(_("A question of the agent"), id, "input", asked.question,
                facts([[_("Agent"), asked.agent], [_("Expires"), waits ? when(asked.expires_us) : ""]]), answers);
}
