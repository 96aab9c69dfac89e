// Elements without a framework. Text goes in as text nodes only, and what could hide or disguise it is shown.

const _ = cockpit.gettext;
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "tabIndex", "htmlFor", "selected"]);
const SVG = "http://www.w3.org/2000/svg";
// C0 and C1 controls but tab and line feed, and characters without a width or that turn the direction.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;
const LONG = /([^\s]{500,})/;
const CUT = 65536;
let ids = 0;

/** Text with each control and each invisible character as something that is seen. */
export function visible(text) {
    return String(text).replace(HIDDEN, found => {
        const code = found.codePointAt(0);
        if (code < 0x20)
            return String.fromCharCode(0x2400 + code);
        return code === 0x7f ? "\u2421" : `\u2039U+${code.toString(16).toUpperCase().padStart(4, "0")}\u203a`;
    });
}

/** Text nodes of a text, with places for a line to end in a word that is too long: to look for them takes long. */
function words(text) {
    return visible(text).split(LONG).flatMap((part, at) =>
        at % 2 ? part.match(/[^]{1,100}/g).flatMap(piece => [document.createTextNode(piece), document.createElement("wbr")])
            : part ? [document.createTextNode(part)] : []);
}

/** Put these behind what is in an element. */
export function fill(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child instanceof Node)
            element.append(child);
        else if (child !== null && child !== undefined && child !== false)
            element.append(...words(child));
    }
    return element;
}

function made(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === null || value === undefined || value === false && !PROPERTIES.has(name))
            continue;
        if (name.startsWith("on"))
            element.addEventListener(name.slice(2), value);
        else if (PROPERTIES.has(name))
            element[name] = value;
        else
            element.setAttribute(name, value === true ? "" : visible(value));
    }
    return fill(element, children);
}

/** An element: "div.class.other", its attributes and on… handlers, and what is in it. */
export function h(what, attributes, ...children) {
    const [tag, ...classes] = what.split(".");
    const element = document.createElement(tag || "div");
    if (classes.length)
        element.className = classes.join(" ");
    return made(element, attributes, children);
}

export function svg(tag, attributes, ...children) {
    return made(document.createElementNS(SVG, tag), attributes, children);
}

/** Put these in the place of all that is in an element. */
export function replace(element, ...children) {
    element.textContent = "";
    return fill(element, children);
}

export function unique(name) {
    return `${name}-${++ids}`;
}

/** A button. What it does may be a promise: it is disabled meanwhile, and a failure is shown beside it. */
export function button(label, act, { kind = "secondary", ...attributes } = {}) {
    const element = h(`button.pf-v6-c-button.pf-m-${kind}`, {
        type: "button",
        ...attributes,
        onclick: async event => {
            element.nextElementSibling?.classList.contains("failure-inline") && element.nextElementSibling.remove();
            element.disabled = true;
            try {
                await act(event);
            } catch (error) {
                element.after(failure(error, "span.failure-inline"));
            } finally {
                element.disabled = false;
            }
        },
    }, label);
    return element;
}

/** What failed, and what to do about it. */
export function failure(error, what = "div.failure") {
    return h(what, { role: "alert" }, error.message, error.suggestion ? ` ${error.suggestion}` : "");
}

/** What is there when there is nothing. */
export function empty(title, ...more) {
    return h("div.empty", {}, h("h2", {}, title), h("p", {}, ...more));
}

/** A text of any length: of a long one its beginning, and how much there is. */
export function pre(text, what = "pre.output") {
    const whole = String(text ?? "");
    if (whole.length <= CUT)
        return h(what, { tabIndex: 0 }, whole);
    return h("div", {}, h(what, { tabIndex: 0 }, whole.slice(0, CUT)), cutNote(whole));
}

/** The sentence about a text that is too long to be shown, with a button that saves it. */
export function cutNote(whole) {
    const size = (whole.length / 1048576).toFixed(1);
    return h("p.note", {},
             cockpit.format(_("The text has $0 MiB; its beginning is shown."), size), " ",
             button(_("Save all of it"), () => save("text.txt", whole), { kind: "link" }));
}

export const isLong = text => text.length > CUT;
export const cut = text => text.slice(0, CUT);

/** Hand a text to the browser as a file. */
export function save(name, text, type = "text/plain") {
    const url = URL.createObjectURL(new Blob([text], { type }));
    const link = h("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** A unified diff, or any other text, with a class for each line of it. */
export function diff(text) {
    const lines = text.slice(0, CUT).split("\n").map(line => {
        const kind = /^(\+\+\+|---|@@)/.test(line) ? "hunk" : { "+": "added", "-": "removed" }[line[0]] || "same";
        return h(`span.${kind}`, {}, line, "\n");
    });
    return h("pre.output.diff", { tabIndex: 0 }, lines, text.length > CUT ? cutNote(text) : null);
}

/** A label that colours a word: ok, bad, warn or plain. */
export function label(word, kind = "plain") {
    return h(`span.pf-v6-c-label.label-${kind}`, {}, word);
}

const opens = new Map();

/** A table. `columns` are [title, row => cell]; `more(row)` is shown below a row once it is opened, and stays open when
 *  the table is made anew. */
export function table(caption, columns, rows, { more = null, key = null } = {}) {
    const opened = opens.get(caption) || opens.set(caption, new Set()).get(caption);
    const body = h("tbody", {}, rows.map(row => {
        const cells = columns.map(([title, cell], at) => {
            const made = cell(row);
            return at === 0 ? h("th", { scope: "row", "data-label": title }, made) : h("td", { "data-label": title }, made);
        });
        if (!more)
            return h("tr", {}, cells);
        const id = key ? row[key] : "";
        const below = h("tr.below", { hidden: !opened.has(id) }, h("td", { colspan: columns.length + 1 }));
        const show = () => {
            if (!below.firstChild.firstChild)
                fill(below.firstChild, [more(row)]);
        };
        const toggle = h("button.pf-v6-c-button.pf-m-plain.toggle", {
            type: "button",
            "aria-expanded": String(opened.has(id)),
            "aria-label": cockpit.format(_("Details of $0"), id),
            onclick: () => {
                below.hidden = !below.hidden;
                toggle.setAttribute("aria-expanded", String(!below.hidden));
                below.hidden ? opened.delete(id) : opened.add(id);
                show();
            },
        }, "\u203a");
        if (opened.has(id))
            show();
        return [h("tr", {}, h("td.toggling", {}, toggle), cells), below];
    }));
    const head = columns.map(([title]) => h("th", { scope: "col" }, title));
    return h("div.scrolling", { tabIndex: 0, role: "region", "aria-label": caption },
             h("table.pf-v6-c-table", {}, h("caption.sr-only", {}, caption),
               h("thead", {}, h("tr", {}, more ? h("td", {}) : null, head)), body));
}

/** A field with its label. */
export function field(title, input, what = "div.field") {
    input.id ||= unique("field");
    return h(what, {}, h("label", { htmlFor: input.id }, title), input);
}

/** A choice of values, or of [value, title]. */
export function select(choices, value, attributes = {}) {
    return choose(h("select.pf-v6-c-form-control", attributes), choices, value);
}

/** Give a choice other values. */
export function choose(element, choices, value) {
    replace(element, choices.map(one => {
        const [key, title] = Array.isArray(one) ? one : [one, one];
        return h("option", { value: key }, title);
    }));
    element.value = value;
    return element;
}

const formatters = new Map();

/** One formatter of each kind: to make one takes long. */
function formatter(kind, options) {
    const name = JSON.stringify(options);
    if (!formatters.has(name))
        formatters.set(name, new kind((cockpit.language || "en").replace("_", "-"), options));
    return formatters.get(name);
}

/** Microseconds since 1970 as a time of here. */
export function when(us) {
    if (!us)
        return "";
    const time = new Date(us / 1000);
    const day = time.toDateString() === new Date().toDateString() ? {} : { dateStyle: "short" };
    return formatter(Intl.DateTimeFormat, { timeStyle: "medium", ...day }).format(time);
}

export function span(ms) {
    if (ms === null || ms === undefined)
        return "";
    if (ms < 1000)
        return `${ms} ms`;
    return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60000)} min ${Math.round(ms % 60000 / 1000)} s`;
}

export function number(value) {
    return formatter(Intl.NumberFormat, { maximumFractionDigits: 2 }).format(value);
}

/** Pairs of name and value as a list. */
export function facts(pairs) {
    return h("dl.facts", {}, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
            .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
