// What turns used, as bars by day and by agent; each plot has its table beside it.

import { call } from "./bus.js";
import { button, empty, failure, h, number, replace, svg, table } from "./dom.js";

const _ = cockpit.gettext;
const DAYS = 30;
const WIDTH = 640;
const HEIGHT = 160;
const LEFT = 64;
const MEASURES = [
    ["total_tokens", _("Tokens")], ["cost", _("Money (USD)")], ["turns", _("Turns")],
];

/** Bars of one measure over the rows, with an axis from 0 to a round number. */
export function bars(title, rows, measure) {
    const most = Math.max(...rows.map(row => row[measure]), 0);
    const step = most ? 10 ** Math.floor(Math.log10(most)) : 1;
    const top = most ? Math.ceil(most / step) * step : 1;
    const wide = (WIDTH - LEFT) / Math.max(1, rows.length);
    const y = value => HEIGHT - value / top * (HEIGHT - 10);
    const grid = [0, 0.5, 1].map(part => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(top * part), y2: y(top * part) }),
        svg("text", { class: "small", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, number(top * part)),
    ]);
    const each = rows.map((row, at) => svg("rect", {
        class: "bar", x: LEFT + at * wide + 1, width: Math.max(1, Math.min(60, wide - 3)), y: y(row[measure]), height: HEIGHT - y(row[measure]),
    }, svg("title", {}, `${row.name}: ${number(row[measure])}`)));
    const every = Math.ceil(rows.length / 8);
    const names = rows.map((row, at) => at % every ? null
        : svg("text", { class: "small", x: LEFT + at * wide, y: HEIGHT + 16 }, row.name.replace(/^\d{4}-/, "").slice(0, 14)));
    return h("figure", {}, h("figcaption", {}, title),
             svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 22}`, role: "img", "aria-label": `${title}: ${rows.map(row => `${row.name} ${number(row[measure])}`).join(", ")}` },
                 grid, each, names));
}

async function days() {
    try {
        return [await call("Usage.Get", ["day"], {}), _("of everybody")];
    } catch (error) {
        if (error.kind !== "refused")
            throw error;
        const own = await call("Usage.Get", ["owner_day"], {});
        return [own.map(row => ({ ...row, name: row.name.split("/")[0] })), _("of yours")];
    }
}

class UsageView {
    constructor(panel) {
        this.place = h("div");
        panel.append(h("div.actions", {}, h("h2", {}, _("Usage")), button(_("Load again"), () => this.load())), this.place);
    }

    entered() {
        this.load();
    }

    async load() {
        try {
            const [[byDay, whose], byAgent, budgets] = await Promise.all([
                days(), call("Usage.Get", ["agent"], {}), call("Usage.Budgets", [], {}).catch(() => [])]);
            const shown = byDay.sort((one, other) => one.name.localeCompare(other.name)).slice(-DAYS);
            replace(this.place, shown.length ? [this.part(_("By day"), whose, shown), this.part(_("By agent"), whose, byAgent)]
                : empty(_("Nothing was used yet"), _("Ask an agent something: what it uses is counted here.")), this.limits(budgets));
        } catch (error) {
            replace(this.place, failure(error));
        }
    }

    part(title, whose, rows) {
        const columns = MEASURES.map(([measure, name]) => [name, row => number(row[measure])]);
        return h("section", {}, h("h3", {}, `${title}, ${whose}`),
                 h("div.plots", {}, MEASURES.map(([measure, name]) => bars(`${name}, ${title}`, rows, measure))),
                 h("details", {}, h("summary", {}, _("As a table")), table(title, [
                     [_("Name"), row => row.name], ...columns, [_("Steps"), row => number(row.steps)], [_("Calls"), row => number(row.calls)]], rows)));
    }

    limits(budgets) {
        return budgets.length ? h("section", {}, h("h3", {}, _("Budgets")), table(_("Budgets"), [
            [_("Of"), one => `${one.scope} ${one.name}`], [_("What"), one => one.what], [_("Used"), one => number(one.used)], [_("Limit"), one => number(one.limit)]], budgets)) : null;
    }
}

export const usage = { id: "usage", title: _("Usage"), make: panel => new UsageView(panel) };
