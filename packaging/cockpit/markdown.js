// Markdown as elements: headings, paragraphs, lists, quotes, code, tables, emphasis and links. HTML in it is text,
// an image is its description, and a link leads only where a scheme says so.

import { h } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/;
const ROW = /^\s*\|?(.*?)\|?\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`{1,9})([^`][\s\S]{0,2000}?)\1|!?\[([^\]]{0,500})\]\(([^()\s]{0,2000})\)|(\*\*|__)(?=\S)([\s\S]{1,2000}?)\5|(?<![\w*])([*_])(?=\S)([^*_]{1,2000}?)\7(?!\w)|~~([^~]{1,2000})~~|\bhttps?:\/\/[^\s<>"')\]]{0,2000}[^\s<>"')\].,;:!?]/g;
// A longer line is words: no expression may take long for what somebody wrote to make it so.
const LINE = 2000;
const SCHEMES = ["http:", "https:", "mailto:"];

function link(target, ...children) {
    let url;
    try {
        url = new URL(target);
    } catch {
        return h("span", {}, ...children, ` (${target})`);
    }
    if (!SCHEMES.includes(url.protocol))
        return h("span", {}, ...children, ` (${target})`);
    return h("a", { href: url.href, rel: "noopener noreferrer", target: "_blank", title: url.href }, ...children);
}

function inline(text) {
    const found = [];
    let at = 0;
    for (const match of text.matchAll(INLINE)) {
        found.push(text.slice(at, match.index).replace(/\\([\\`*_{}[\]()#+\-.!|<>~])/g, "$1"));
        at = match.index + match[0].length;
        if (match[1])
            found.push(h("code", {}, match[2]));
        else if (match[4] !== undefined)
            found.push(match[0][0] === "!" ? `[${match[3]}]` : link(match[4], inline(match[3])));
        else if (match[6])
            found.push(h("strong", {}, inline(match[6])));
        else if (match[8])
            found.push(h("em", {}, inline(match[8])));
        else if (match[9])
            found.push(h("s", {}, inline(match[9])));
        else
            found.push(link(match[0], match[0]));
    }
    found.push(text.slice(at).replace(/\\([\\`*_{}[\]()#+\-.!|<>~])/g, "$1"));
    return found;
}

function cells(line) {
    return ROW.exec(line)[1].split(/(?<!\\)\|/).map(one => one.trim().replace(/\\\|/g, "|"));
}

/** The lines of a text in blocks, each of them whole: a block is drawn alike whatever follows it. */
export function blocks(text) {
    const found = [];
    let block = [];
    let fence = "";
    for (const line of text.split("\n")) {
        const mark = line.length > LINE ? null : FENCE.exec(line);
        if (fence) {
            block.push(line);
            if (mark && mark[1].startsWith(fence) && !mark[2])
                fence = "";
            continue;
        }
        if (mark)
            fence = mark[1];
        if (line.trim() === "" && block.length && !(ITEM.test(block[0]))) {
            found.push(block.join("\n"));
            block = [];
        } else if (block.length && ITEM.test(block[0]) && block.at(-1).trim() === "" && line.trim() !== "" &&
                   !ITEM.test(line) && !/^ {2,}/.test(line)) {
            found.push(block.join("\n"));
            block = [line];
        } else if (line.trim() !== "" || block.length)
            block.push(line);
    }
    if (block.length)
        found.push(block.join("\n"));
    return found;
}

function list(lines) {
    const ordered = /\d/.test(ITEM.exec(lines[0])[2]);
    const indent = ITEM.exec(lines[0])[1].length;
    const items = [];
    for (const line of lines) {
        const match = ITEM.exec(line);
        if (match && match[1].length <= indent + 1)
            items.push([match[3]]);
        else
            items.at(-1).push(line.replace(/^ {1,4}/, ""));
    }
    const start = ordered ? parseInt(ITEM.exec(lines[0])[2], 10) : null;
    return h(ordered ? "ol" : "ul", start > 1 ? { start } : {}, items.map(item => {
        const more = item.slice(1).findIndex(line => ITEM.test(line) || FENCE.test(line) || line.trim() === "");
        if (more < 0)
            return h("li", {}, inline(item.join("\n")));
        return h("li", {}, inline(item.slice(0, more + 1).join("\n")), drawn(item.slice(more + 1).join("\n")));
    }));
}

/** The elements of one block. */
export function draw(block) {
    const lines = block.split("\n");
    const found = [];
    let words = [];
    const flush = () => {
        if (words.length)
            found.push(h("p", {}, inline(words.join("\n"))));
        words = [];
    };
    for (let at = 0; at < lines.length; at++) {
        const line = lines[at];
        if (line.length > LINE) {
            words.push(line);
            continue;
        }
        const fence = FENCE.exec(line);
        const heading = HEADING.exec(line);
        const rest = lines.slice(at);
        if (fence) {
            flush();
            const end = rest.findIndex((one, index) => index && FENCE.exec(one)?.[1].startsWith(fence[1]) && !FENCE.exec(one)[2]);
            const code = rest.slice(1, end < 0 ? undefined : end).join("\n");
            found.push(h("pre.output", { tabIndex: 0 }, h("code", {}, code)));
            at += end < 0 ? rest.length : end;
        } else if (heading) {
            flush();
            found.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
        } else if (RULE.test(line)) {
            flush();
            found.push(h("hr"));
        } else if (/^ {0,3}>/.test(line)) {
            flush();
            const count = rest.findIndex(one => !/^ {0,3}>/.test(one));
            const quoted = count < 0 ? rest : rest.slice(0, count);
            found.push(h("blockquote", {}, drawn(quoted.map(one => one.replace(/^ {0,3}> ?/, "")).join("\n"))));
            at += quoted.length - 1;
        } else if (line.includes("|") && lines[at + 1]?.includes("-") && lines[at + 1].length < LINE && DIVIDER.test(lines[at + 1])) {
            flush();
            const count = rest.slice(2).findIndex(one => !one.includes("|") || one.length > LINE);
            const rows = count < 0 ? rest.slice(2) : rest.slice(2, 2 + count);
            found.push(h("div.scrolling", { tabIndex: 0 }, h("table", {},
                       h("thead", {}, h("tr", {}, cells(line).map(one => h("th", { scope: "col" }, inline(one))))),
                       h("tbody", {}, rows.map(row => h("tr", {}, cells(row).map(one => h("td", {}, inline(one)))))))));
            at += 1 + rows.length;
        } else if (ITEM.test(line)) {
            flush();
            const count = rest.findIndex((one, index) => index && !ITEM.test(one) && !/^\s/.test(one) && one !== "");
            found.push(list(count < 0 ? rest : rest.slice(0, count)));
            at += (count < 0 ? rest.length : count) - 1;
        } else if (line.trim() === "")
            flush();
        else
            words.push(line);
    }
    flush();
    return found;
}

function drawn(text) {
    return blocks(text).map(draw);
}

/** An element that shows a text that grows: `set(text)` draws only what may have changed. */
export class Growing {
    constructor() {
        this.element = h("div.markdown");
        this.parts = [];
    }

    set(text) {
        const now = blocks(text);
        now.forEach((block, at) => {
            const part = this.parts[at];
            if (part?.block === block)
                return;
            const element = h("div", {}, draw(block));
            part ? part.element.replaceWith(element) : this.element.append(element);
            this.parts[at] = { block, element };
        });
        this.parts.splice(now.length).forEach(part => part.element.remove());
    }
}

export function markdown(text) {
    return h("div.markdown", {}, drawn(text));
}
