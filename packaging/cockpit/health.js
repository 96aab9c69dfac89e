// What is wrong with the machine and with the daemon, the worst first: what `lactl health` and `lactl status` say.

import { stream } from "./bus.js";
import { button, empty, facts, failure, h, label, number, replace } from "./dom.js";
import { markdown } from "./markdown.js";
import { agents, status } from "./stores.js";

const _ = cockpit.gettext;
const ngettext = cockpit.ngettext;
const SKILL = "health";

/** The agent ops, or the first that may run the checks. */
function able() {
    const found = (agents.value || []).filter(one => one.state === "running" && one.skills.includes(SKILL) && one.tools.includes("skill"));
    return (found.find(one => one.name === "ops") || found[0])?.name;
}

function findings(agent) {
    return new Promise((resolve, reject) => {
        let text = "";
        const reader = stream("Tools.Call", [agent, "skill", "run", { name: SKILL, args: { json: "yes" } }], {}, event => {
            if (event.type === "done")
                text = event.text;
            if (event.type === "error")
                reject(event);
        });
        reader.over.then(() => {
            try {
                resolve(JSON.parse(text));
            } catch {
                reject(new Error(_("The checks gave no answer that can be read.")));
            }
        }, reject);
    });
}

class HealthView {
    constructor(panel) {
        this.about = h("div");
        this.found = h("div", { "aria-live": "polite" });
        this.again = button(_("Check again"), () => this.check());
        panel.append(h("div.actions", {}, h("h2", {}, _("Health of this machine")), this.again), this.found,
                     h("h2", {}, _("The daemon")), this.about);
        status.watch(({ value, error }) => replace(this.about, error ? failure(error) : facts([
            [_("Version"), value.version], [_("State"), value.state], [_("Model"), value.model],
            [_("Agents"), `${value.agents_running} / ${value.agents_total}`], [_("Sessions"), number(value.sessions)],
            [_("Turns that run"), value.turns_running], [_("Turns that wait"), value.turns_waiting],
            [_("Events"), number(value.history.events)], [_("Stopped by an administrator"), value.panic?.reason],
        ]), (value?.problems || []).map(one => h("p.failure", {}, one))));
        agents.watch(({ error }) => error && !this.made ? replace(this.found, failure(error)) : !this.made && able() && this.check());
    }

    check() {
        this.checking ||= this.checkOnce().finally(() => (this.checking = null));
        return this.checking;
    }

    async checkOnce() {
        const agent = able();
        if (!agent) {
            replace(this.found, empty(_("No running agent may check this machine"), _("Start an agent that has the skill health, under Agents.")));
            return;
        }
        this.made = true;
        replace(this.found, h("p", { role: "status" }, _("Checking …")));
        try {
            const { findings: all, checks, not_made: missing, report } = await findings(agent);
            replace(this.found, all.length ? h("ol.findings", {}, all.map(one => this.finding(one, agent)))
                : empty(_("Nothing is wrong"), cockpit.format(ngettext("$0 check was made.", "$0 checks were made.", checks.length), checks.length)),
            Object.keys(missing).length ? h("p.note", {}, cockpit.format(_("$0 checks could not be made."), Object.keys(missing).length)) : null,
            h("details", {}, h("summary", {}, _("The whole report")), markdown(report)));
        } catch (error) {
            replace(this.found, failure(error));
        }
    }

    finding({ text, ask, severity, since }, agent) {
        const prompt = ask || text;
        return h("li.card", {},
                 label(severity === "problem" ? _("problem") : _("warning"), severity === "problem" ? "bad" : "warn"), " ", text,
                 since ? h("span.time", {}, " ", new Date(since * 1000).toLocaleString()) : null,
                 h("div.actions", {}, button(_("Ask the agent about this"), () => cockpit.location.go(["chat"], { agent, ask: prompt }))));
    }
}

export const health = { id: "health", title: _("Health"), make: panel => new HealthView(panel) };
