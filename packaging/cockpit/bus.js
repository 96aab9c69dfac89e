// The daemon on the system bus, through Cockpit's channel and as the person who is logged in: polkit decides.
// The methods of org.lightagent1(5): required arguments in order, optional ones by name.

const NAME = "org.lightagent1";
const ROOT = "/org/lightagent1";
const STREAM = `${NAME}.Stream`;
const SYSTEMD = ["/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
// Less than the watchdog of the daemon's unit waits.
const ANSWER_S = 15;
// The system bus by a connection of this page: that of the bridge outlives it, and the daemon would stream to it.
export const OWN = "unix:path=/run/dbus/system_bus_socket";
const GONE = ["ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected", "disconnected", "not-found"];
const CHALLENGED = "InteractiveAuthorizationRequired";
const REFUSED = [CHALLENGED, "PermissionDenied", "AuthorizationRequired", "AccessDenied", "access-denied"];

const _ = cockpit.gettext;
const streams = new Map();
const watchers = new Set();
let client = null;
let numbers = 0;

/** What failed, as a sentence for a person. `kind`: gone, hung, old, refused or other. */
export class Failure extends Error {
    constructor(kind, message, suggestion = "", code = "") {
        super(message);
        Object.assign(this, { kind, suggestion, code });
    }
}

/** Whether the daemon is there: null until that is known. */
export const daemon = { owner: null, hung: false };

/** A value of D-Bus without its types; {t: "g"} stands for null. */
export function plain(value) {
    if (Array.isArray(value))
        return value.map(plain);
    if (value === null || typeof value !== "object")
        return value;
    if (typeof value.t === "string" && "v" in value)
        return value.t === "g" ? null : plain(value.v);
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, plain(one)]));
}

function typed(value) {
    if (typeof value === "boolean")
        return { t: "b", v: value };
    if (typeof value === "number")
        return { t: "x", v: value };
    if (typeof value === "string")
        return { t: "s", v: value };
    if (Array.isArray(value) && value.some(one => typeof one === "object"))
        return { t: "aa{sv}", v: value.map(members) };
    if (Array.isArray(value))
        return { t: "as", v: value };
    return { t: "a{sv}", v: members(value) };
}

const members = value => Object.fromEntries(
    Object.entries(value).filter(([, one]) => one !== undefined && one !== null && one !== "")
            .map(([name, one]) => [name, typed(one)]));

/** Tell `listener(owner)` whenever the daemon comes and goes, and stops or begins to answer. */
export function onDaemon(listener) {
    watchers.add(listener);
}

function told() {
    watchers.forEach(listener => listener(daemon));
}

function connect() {
    client = cockpit.dbus(NAME, { address: OWN });
    client.addEventListener("owner", (_event, owner) => {
        const before = daemon.owner;
        daemon.owner = owner || "";
        daemon.hung = false;
        if (!owner || (before && before !== owner))
            lost();
        if (daemon.owner !== before)
            told();
    });
    client.addEventListener("close", () => {
        client = null;
        daemon.owner = "";
        lost();
        told();
        setTimeout(connect, 2000);
    });
    client.subscribe({ interface: STREAM }, (path, _interface, member, args) => {
        const stream = streams.get(path.slice(path.lastIndexOf("/") + 1));
        if (stream && member === "Item")
            stream.item(args[0]);
        else if (stream)
            stream.ended(args[0] ? failureOf({ name: args[0], message: args[1] }, args[2]) : null);
    });
}

function lost() {
    for (const stream of [...streams.values()])
        stream.ended(new Failure("gone", _("The daemon went away.")));
}

export function failureOf(error, suggestion = "") {
    const name = String(error.name || error.problem || "");
    const code = name.slice(name.lastIndexOf(".") + 1);
    const [message, ...more] = String(error.message || error.problem || error).split("\n");
    const said = suggestion || more.join(" ");
    if (GONE.includes(code))
        return new Failure("gone", _("The daemon is not running."), "", code);
    if (/^Unknown(Method|Interface|Object)$/.test(code) || code === "MethodNotFound" ||
            /There is no option/.test(message))
        return new Failure("old", _("The daemon is older than this page, and cannot do this."), message, code);
    if (code === "InvalidArgs")
        return new Failure("old", _("The daemon and this page do not fit together."), message, code);
    if (code === CHALLENGED)
        return new Failure("refused", _("You may not do this."), _("An administrator may, and can put you into the group lightagent."), code);
    if (REFUSED.includes(code))
        return new Failure("refused", message, said, code);
    return new Failure("other", message, said, code);
}

function waited(promise, seconds) {
    if (!seconds)
        return promise;
    let timer;
    const late = new Promise((_resolve, reject) => {
        timer = setTimeout(() => {
            daemon.hung = true;
            told();
            reject(new Failure("hung", _("The daemon does not answer."), _("It may be busy or hang: try again, or restart it.")));
        }, seconds * 1000);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** What the person may not do, as root: where they have turned on Cockpit's administrative access. */
export async function asAdministrator(refusal, given, name = NAME) {
    const root = cockpit.dbus(name, { bus: "system", superuser: "require" });
    try {
        return await root.call(...given);
    } catch (error) {
        if (error.problem !== "access-denied")
            throw failureOf(error);
        throw new Failure("refused", refusal.message, _("To do it as an administrator, turn on administrative access at the top of Cockpit."), refusal.code);
    } finally {
        root.close();
    }
}

/** Call a method such as "Sessions.Get": strings in order, then the options, if the method has any.
 *  `raw` leaves the types in the answer; `asks` lets polkit ask for a password where it can, and else takes Cockpit's
 *  administrative access; `seconds` of 0 waits for ever. */
export async function call(method, args = [], options = undefined, { raw = false, asks = false, seconds = ANSWER_S } = {}) {
    const [face, member] = method.split(".");
    const types = args.map(one => typeof one === "string" ? "s" : "v").join("");
    const body = args.map(one => typeof one === "string" ? one : typed(one));
    const type = types + (options ? "a{sv}" : "");
    if (!client)
        throw new Failure("gone", _("The connection to this machine is lost."));
    const given = [ROOT, `${NAME}.${face}`, member, options ? [...body, members(options)] : body, { type, ...(asks ? { flags: "i" } : {}) }];
    try {
        const asking = client.call(...given);
        const answer = asks ? await asking : await waited(asking, seconds);
        if (daemon.hung) {
            daemon.hung = false;
            told();
        }
        return raw ? answer[0] : plain(answer[0]);
    } catch (error) {
        const failure = error instanceof Failure ? error : failureOf(error);
        if (asks && failure.kind === "refused")
            return plain((await asAdministrator(failure, given))[0]);
        throw failure;
    }
}

/** Read a method that streams; `item` gets each part. Gives {close, over}, and `over` a promise of its end. */
export function stream(method, args, options, item) {
    const token = `page${Date.now().toString(36)}${++numbers}`;
    let path = "";
    let closed = false;
    const reader = {};
    reader.over = new Promise((resolve, reject) => {
        streams.set(token, {
            item: value => item(plain(value)),
            ended: failure => {
                streams.delete(token);
                failure ? reject(failure) : resolve();
            },
        });
    });
    reader.over.catch(() => {});
    const close = () => client?.call(path, STREAM, "Close", [], { type: "" }).catch(() => {});
    reader.close = () => {
        closed = true;
        streams.delete(token);
        if (path)
            close();
    };
    call(method, args, { ...options, handle_token: token }).then(
        found => {
            path = found;
            if (closed)
                close();
        },
        failure => streams.get(token)?.ended(failure));
    return reader;
}

/** Start, stop or restart the daemon's unit. */
export async function unit(verb) {
    const systemd = cockpit.dbus("org.freedesktop.systemd1", { bus: "system", superuser: "try" });
    try {
        await systemd.call(...SYSTEMD, `${verb}Unit`, ["lightagentd.service", "replace"], { type: "ss", flags: "i" });
    } catch (error) {
        throw failureOf(error);
    } finally {
        systemd.close();
    }
}

connect();
