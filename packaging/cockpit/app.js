// The page as a whole: its tabs, what is said when the daemon is not there, and Cockpit's choice of light and dark.

import { daemon, onDaemon, unit } from "./bus.js";
import { button, failure, h, replace } from "./dom.js";
import { approvals, inputs } from "./stores.js";
import { chat } from "./chat.js";
import { changesThatWait } from "./confirmations.js";
import { flows } from "./flows.js";
import { health } from "./health.js";
import { history } from "./history.js";
import { agents, asked, inputsTab, memory, plans, skills, triggers } from "./tables.js";
import { usage } from "./usage.js";

const _ = cockpit.gettext;
const TABS = [health, chat, asked, inputsTab, plans, flows, triggers, agents, skills, memory, history, usage];
const shown = new Map();
let current = null;

function theme() {
    const style = localStorage.getItem("shell:style") || "auto";
    const dark = style === "dark" || style === "auto" && matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.classList.toggle("pf-v6-theme-dark", dark);
    document.documentElement.classList.toggle("pf-v5-theme-dark", dark);
}

const banner = h("div.banner", { role: "status", "aria-live": "polite" });
const changes = h("div", { "aria-live": "polite" });
const tabs = h("div.pf-v6-c-tabs", { role: "tablist", "aria-label": _("AI agents"), onkeydown: arrows });
const panels = h("main.panels");

for (const tab of TABS) {
    const count = h("span.count", { hidden: true });
    const head = h("button.pf-v6-c-tabs__link", {
        type: "button", role: "tab", id: `tab-${tab.id}`, "aria-controls": `panel-${tab.id}`, "aria-selected": "false",
        tabIndex: -1, onclick: () => cockpit.location.go([tab.id]),
    }, tab.title, count);
    const panel = h("section.panel", { role: "tabpanel", id: `panel-${tab.id}`, "aria-labelledby": `tab-${tab.id}`, hidden: true });
    tabs.append(head);
    panels.append(panel);
    shown.set(tab.id, { tab, head, panel, count });
}

function counted(store, id) {
    store.watch(() => {
        const { count } = shown.get(id);
        const waiting = store.value?.length || 0;
        count.hidden = !waiting;
        replace(count, " ", h("span.badge", {}, waiting, h("span.sr-only", {}, " ", _("waiting"))));
    });
}

function arrows(event) {
    const heads = [...tabs.children];
    const at = heads.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: heads.length - 1 }[event.key];
    if (to === undefined || at < 0)
        return;
    event.preventDefault();
    const head = heads.at(to % heads.length);
    head.focus();
    head.click();
}

function go() {
    const [id, ...rest] = cockpit.location.path;
    const next = shown.get(id) || shown.get(TABS[0].id);
    if (current !== next) {
        if (current) {
            current.panel.hidden = true;
            current.head.setAttribute("aria-selected", "false");
            current.head.tabIndex = -1;
            current.view?.left?.();
        }
        current = next;
        next.panel.hidden = false;
        next.head.setAttribute("aria-selected", "true");
        next.head.tabIndex = 0;
        next.head.scrollIntoView({ block: "nearest", inline: "nearest" });
        document.title = `${next.tab.title} - ${_("AI agents")}`;
    }
    next.view ||= next.tab.make(next.panel);
    next.view.entered?.(rest, cockpit.location.options);
}

function say() {
    const stopped = daemon.owner === "";
    document.body.classList.toggle("away", stopped);
    if (stopped)
        replace(banner, h("div.pf-v6-c-alert.warn", {},
                          h("p", {}, _("The agent daemon is not running. What you typed stays here.")),
                          button(_("Start the daemon"), () => unit("Start"), { kind: "primary" })));
    else if (daemon.hung)
        replace(banner, h("div.pf-v6-c-alert.warn", {},
                          h("p", {}, _("The agent daemon does not answer. It may be busy, or hang.")),
                          button(_("Restart the daemon"), () => unit("Restart"))));
    else
        replace(banner);
}

theme();
addEventListener("storage", event => event.key === "shell:style" && theme());
addEventListener("cockpit-style", theme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
document.documentElement.lang = (cockpit.language || "en").replace("_", "-");
document.documentElement.dir = cockpit.language_direction || "ltr";
replace(document.getElementById("app"), h("header", {}, h("h1.sr-only", {}, _("AI agents")), tabs, banner, changes), panels);
onDaemon(say);
counted(approvals, "approvals");
counted(inputs, "inputs");
changesThatWait(changes);
cockpit.addEventListener("locationchanged", go);
try {
    go();
} catch (error) {
    replace(panels, failure(error));
    throw error;
}
say();
