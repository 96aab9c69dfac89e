// Changes that take themselves back unless somebody keeps them: above every tab, with the time that is left.

import { call } from "./bus.js";
import { button, h, label, replace, span } from "./dom.js";
import { confirmations } from "./stores.js";

const _ = cockpit.gettext;
const STATES = {
    running: [_("runs"), "plain"], waiting: [_("waits"), "warn"], taking_back: [_("is taken back"), "warn"], failed: [_("could not be taken back"), "bad"],
    confirmed: [_("stays"), "ok"], taken_back: [_("was taken back"), "plain"], unchanged: [_("changed nothing"), "plain"],
};
const OPEN = ["running", "waiting", "taking_back", "failed"];
const LOOK_MS = 2000;
const began = Date.now() * 1000;
const away = new Set();
let asked = 0;

function row(one, due, times) {
    const time = h("span.left", { role: "timer" });
    if (one.state === "waiting")
        times.push([due, time]);
    const keep = one.state === "failed" ? _("I mended it") : _("Keep the change");
    const act = one.may_confirm || one.must_authenticate
        ? button(keep, () => call("Confirmations.Confirm", [one.id], undefined, { asks: true }), { kind: "primary" })
        : ["waiting", "failed"].includes(one.state) ? h("span.note", {}, _("An administrator can keep it."))
            : OPEN.includes(one.state) ? null : button("\u00d7", () => {
                away.add(one.id);
                confirmations.tell();
            }, { kind: "plain", "aria-label": _("Hide this") });
    return h("li", { "data-call": one.id }, label(...STATES[one.state] || [one.state]), h("code", {}, `${one.tool}.${one.action}`), h("code.what", {}, one.what),
             one.back ? h("span.note", {}, _("Taken back by"), ": ", h("code", {}, one.back)) : null,
             one.check ? h("span.note", {}, _("Unless it passes"), ": ", h("code", {}, one.check)) : null,
             one.why ? h("span.failure", {}, one.why) : null, time, act);
}

/** Show them in a place, as long as there are any. What is left is counted by the clock that nobody sets. */
export function changesThatWait(place) {
    let before = "";
    let times = [];
    const tick = () => {
        const now = performance.now();
        for (const [due, time] of times)
            time.textContent = cockpit.format(_("$0 left"), span(Math.max(0, Math.ceil((due - now) / 1000) * 1000)));
        const moves = times.some(([due]) => due <= now) || (confirmations.value?.all || []).some(one => ["running", "taking_back"].includes(one.state));
        if (moves && now - asked > LOOK_MS) {
            asked = now;
            confirmations.refresh();
        }
    };
    confirmations.watch(({ value }) => {
        const shown = (value?.all || []).filter(one => !away.has(one.id) && (OPEN.includes(one.state) || one.ended_us > began));
        const now = JSON.stringify(shown.map(one => ({ ...one, left_s: 0 })));
        if (now !== before) {
            before = now;
            times = [];
            replace(place, shown.length ? h("section.changes", { "aria-label": _("Changes that take themselves back") },
                                            h("h2", {}, _("Changes that take themselves back")), h("ul", {}, shown.map(one => row(one, value.at + one.left_s * 1000, times)))) : null);
        }
        tick();
    });
    setInterval(tick, 1000);
}
