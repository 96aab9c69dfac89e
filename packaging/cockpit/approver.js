// The approver on the system bus: it alone takes the answers to changes, and what it has is what runs. The daemon is not
// trusted with them, so what it says is compared with that, and a card shows the approver's word.

import { asAdministrator, Failure, failureOf, OWN } from "./bus.js";

const _ = cockpit.gettext;
const NAME = "org.lightagent1.Approver";
const PATH = "/org/lightagent1/Approver";
const DOMAIN = "lightagentd change 1\0";
export const TAKEN_OVER = _("Somebody may have taken over the daemon: stop everything, then look at the journal.");
const SAME = ["agent", "tool", "action", "effect", "call_id", "confirm_within_s", "check", "inverse"];

/** Call a method; `asks` lets polkit ask for a password, and else takes Cockpit's administrative access. */
async function ask(method, type, args, asks = false) {
    const client = cockpit.dbus(NAME, { address: OWN });
    const given = [PATH, NAME, method, args, { type, ...(asks ? { flags: "i" } : {}) }];
    try {
        return (await client.call(...given))[0];
    } catch (error) {
        const failure = failureOf(error);
        if (asks && failure.kind === "refused")
            return (await asAdministrator(failure, given, NAME))[0];
        throw failure.kind === "gone" ? new Failure("gone", _("The approver, which alone allows changes, does not answer.")) : failure;
    } finally {
        client.close();
    }
}

/** JSON as it is signed: sorted, in ASCII, without blanks. Numbers that JavaScript cannot hold come out otherwise. */
export function canonical(value) {
    if (Array.isArray(value))
        return `[${value.map(canonical).join(",")}]`;
    if (value !== null && typeof value === "object")
        return `{${Object.keys(value).sort().map(name => `${canonical(name)}:${canonical(value[name])}`).join(",")}}`;
    return JSON.stringify(value).replace(/[^\0-~]/g, one => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The digest of a statement, by its text. */
export async function digestOf(text) {
    if (!crypto.subtle)
        throw new Failure("other", _("This page did not come over TLS, so it cannot check what would run."), _("Answer with lactl."));
    const found = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(DOMAIN + text));
    return Array.from(new Uint8Array(found), byte => byte.toString(16).padStart(2, "0")).join("");
}

/** Letters that are not Latin ones, since some look as if they were. */
export function otherLetters(text) {
    const found = new Set([...text].filter(one => one > "\x7f" && /(?!\p{Script=Latin})[\p{L}\p{N}\p{P}\p{S}]/u.test(one)));
    return [...found].slice(0, 10).map(one => `${one} U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(", ");
}

/** An approval, or the event that asks for it, as the approver has it: with `signed`, the text that an answer is about,
 *  and `exact`, whether its arguments can be shown from here. Fails where the daemon says something else. */
export async function questionOf(asked) {
    const id = asked.id || asked.approval;
    const found = await ask("Get", "s", [id]);
    const signed = found.statement.v;
    const statement = JSON.parse(signed);
    const said = JSON.parse(found.said.v);
    const hidden = Array.isArray(said.hidden) ? said.hidden.filter(name => name in statement.args) : [];
    const shown = { ...statement.args };
    hidden.forEach(name => {
        shown[name] = cockpit.format(_("a secret, as the daemon says, of $0 characters; below it is shown"), canonical(statement.args[name]).length);
    });
    const told = { ...statement.args, ...asked.args };
    hidden.forEach(name => delete told[name]);
    const differs = SAME.filter(name => name in asked && asked[name] !== statement[name]);
    if (differs.length || canonical(told) !== canonical(Object.fromEntries(Object.entries(statement.args).filter(([name]) => !hidden.includes(name)))) ||
            found.id.v !== id || found.digest.v !== await digestOf(signed))
        throw new Failure("other", _("The daemon says something else than what would run. Nothing was answered."), TAKEN_OVER);
    return {
        ...asked, ...statement, id, args: shown, cwd: String(statement.args.cwd || ""), preview: String(said.preview || ""), signed,
        digest: found.digest.v, expires_us: found.expires_us.v, state: found.state.v, exact: canonical(statement) === signed,
    };
}

/** Answer one: "Approve" what was shown, or "Deny" it. Gives {state}. */
export async function answered(method, { id, digest }, options) {
    const given = Object.fromEntries(Object.entries(options).filter(([, one]) => one)
            .map(([name, one]) => [name, { t: typeof one === "boolean" ? "b" : "s", v: one }]));
    const args = method === "Approve" ? [id, digest, given] : [id, given];
    return { state: (await ask(method, method === "Approve" ? "ssa{sv}" : "sa{sv}", args, true)).state.v };
}

/** A value of TOML on one line, as the daemon writes it into a rule. Fails for anything else. */
function tomlValue(text) {
    const json = text.replace(/"(?:[^"\\]|\\.)*"|=/g, one => one === "=" ? ":" :
        one.replace(/\\(?:U([0-9A-Fa-f]{8})|.)/g, (found, code) => code ? JSON.stringify(String.fromCodePoint(parseInt(code, 16))).slice(1, -1) : found));
    return JSON.parse(json);
}

function withoutNulls(value) {
    return Object.fromEntries(Object.entries(value).filter(([, one]) => one !== null));
}

/** Whether a rule of the daemon allows the call that was shown, and no other. */
export function isRuleFor(text, signed, tainted) {
    const statement = JSON.parse(signed);
    const wanted = { decision: "allow", even_if_tainted: tainted, agent: statement.agent, tool: statement.tool,
                     action: statement.action, effect: statement.effect, exactly: withoutNulls(statement.args) };
    try {
        const [head, tests] = text.split("\nmatch = [{}]\nnot_match = [\n");
        const lines = head.split("\n").filter(line => !/^# [ -~]*$/.test(line));
        if (lines.shift() !== "[[rule]]" || !/^(  \{[ -~]*\},\n)*\]\n$/.test(tests))
            return false;
        const found = {};
        for (const line of lines) {
            const [, name, value] = /^([a-z_]+) = ([ -~]+)$/.exec(line);
            if (name in found)
                return false;
            found[name] = tomlValue(value);
        }
        ["name", "reason", "trigger", "caller"].forEach(name => delete found[name]);
        return canonical(found) === canonical(wanted);
    } catch {
        return false;
    }
}
