// A plan with its tasks, and what may be done with it in its phase.

import { call } from "./bus.js";
import { button, h, label } from "./dom.js";

const _ = cockpit.gettext;
const KINDS = { done: "ok", failed: "bad", running: "warn" };
const PHASES = {
    drafting: _("The plan is being drafted: prompts revise it, and nothing is changed."),
    ready: _("The plan is ready. Nothing runs until you apply it."),
    applying: _("The plan is being applied."),
    completed: _("The plan is done."),
};

export function planCard(plan) {
    const act = (choice, text, kind) => button(text, () => call("Plans.Apply", [plan.session], { choice, digest: plan.digest }), { kind });
    const actions = [
        plan.phase === "ready" ? act("", _("Apply the plan"), "primary") : null,
        plan.stopped_at ? [act("retry", _("Try the task again"), "primary"), act("skip", _("Skip the task")), act("abort", _("Give the plan up"))] : null,
        plan.phase !== "completed" ? button(_("Leave plan mode"), () => call("Plans.End", [plan.session])) : null,
    ];
    return h("section.card.plan", { "aria-label": _("Plan") },
             h("h3", {}, plan.title || _("Plan"), " ", label(plan.phase)),
             h("p", {}, PHASES[plan.phase] || ""), plan.note ? h("p.note", {}, plan.note) : null,
             h("ol", {}, plan.tasks.map(task => h("li", {}, task.text, " ", label(task.state, KINDS[task.state]),
                                                  task.check ? h("code.check", {}, task.check) : null,
                                                  task.note ? h("p.note", {}, task.note) : null))),
             h("div.actions", {}, actions));
}
