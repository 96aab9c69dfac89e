// Talking with agents: the sessions at the side, one conversation, and the field for the next prompt.

import { call, daemon, onDaemon, plain, stream } from "./bus.js";
import { Conversation } from "./conversation.js";
import { button, choose, cut, cutNote, empty, failure, field, h, isLong, label, number, pre, replace, span, when } from "./dom.js";
import { LongList } from "./list.js";
import { Growing } from "./markdown.js";
import { planCard } from "./plan.js";
import { approvalCard, callDetails, effectLabel, inputCard } from "./questions.js";
import { agents, sessions, wanted } from "./stores.js";

const _ = cockpit.gettext;
const ngettext = cockpit.ngettext;
const ATTACHMENT_MOST = 1048576;
const STATES = { running: _("running"), waiting: _("waiting"), queued: _("queued"), idle: "", paused: _("paused"), deleted: _("deleted") };
const typed = new Map();
/** What was typed. The browser keeps some megabytes of it over a reload, and the page all of it. */
const drafts = {
    get: id => typed.get(id) ?? sessionStorage.getItem(`lightagentd:draft:${id}`) ?? "",
    set: (id, text) => {
        typed.set(id, text);
        try {
            sessionStorage.setItem(`lightagentd:draft:${id}`, text);
        } catch {
            sessionStorage.removeItem(`lightagentd:draft:${id}`);
        }
    },
};

function toolItem(item) {
    const name = item.action ? `${item.tool}.${item.action}` : item.tool;
    const state = item.result ? label(item.result, item.result === "ok" ? "ok" : "bad") : label(_("running"), "plain");
    const details = h("details.tool", { open: Boolean(item.open), ontoggle: () => (item.open = details.open) },
                      h("summary", {}, h("code", {}, name), " ", effectLabel(item.effect), " ",
                        item.decision ? label(item.decision) : null, " ", state, " ",
                        h("span.time", {}, span(item.duration_ms))),
                      callDetails(item), item.output ? [h("h4", {}, _("Output")), pre(item.output)] : null);
    return details;
}

const DRAW = {
    user: item => [h("p.who", {}, item.speaker || _("You"), h("span.time", {}, when(item.time_us))), text(item, h("div.said", {}))],
    assistant: (item, agent) => {
        const grow = item.grow = new Growing();
        grow.set(cut(item.text));
        const thoughts = item.thoughts
            ? h("details.thoughts", { open: Boolean(item.open), ontoggle: event => (item.open = event.target.open) },
                h("summary", {}, _("Reasoning")), pre(item.thoughts))
            : null;
        return [h("p.who", {}, item.speaker || agent, h("span.time", {}, when(item.time_us))), thoughts, grow.element,
            isLong(item.text) ? cutNote(item.text) : null,
            item.cutOff ? h("p.note", {}, _("The answer broke off here.")) : null];
    },
    tool: toolItem,
    approval: item => approvalCard(item, { compact: true }),
    input: inputCard,
    error: item => failure({ message: item.text, suggestion: item.suggestion }),
    note: item => h("p.note", {}, item.text),
    compacted: item => h("p.note", {}, cockpit.format(_("$0 older messages were summed up."), item.removed)),
    end: item => h("p.note", {}, [
        cockpit.format(ngettext("$0 step", "$0 steps", item.steps), item.steps), span(item.duration_ms),
        item.tokens ? cockpit.format(_("$0 tokens"), number(item.tokens)) : "",
    ].filter(Boolean).join(" · ")),
};

function text(item, element) {
    replace(element, cut(item.text));
    return isLong(item.text) ? [element, cutNote(item.text)] : element;
}

class ChatView {
    constructor(panel) {
        this.conversation = null;
        this.attachments = [];
        this.sending = null;
        this.dirty = new Set();
        this.build(panel);
        agents.watch(() => this.showAgents());
        sessions.watch(() => this.showSessions());
        onDaemon(() => this.showState());
    }

    build(panel) {
        this.agent = h("select.pf-v6-c-form-control", {
            onchange: () => {
                wanted.agent = this.agent.value;
                this.find();
            },
        });
        this.search = h("input.pf-v6-c-form-control", { type: "search", oninput: () => this.find() });
        const list = this.sessionList = h("div.sessions", { role: "list", "aria-label": _("Sessions"), tabIndex: 0 });
        this.list = new LongList(list, { key: one => one.id.v, guess: 58, even: true, draw: one => this.sessionRow(one) });
        list.addEventListener("scroll", () => this.nearEnd(), { passive: true });
        this.count = h("p.note", { role: "status" });
        const side = h("aside.side", { "aria-label": _("Sessions") },
                       field(_("Agent"), this.agent), button(_("New conversation"), () => this.open(""), { kind: "primary" }),
                       field(_("Search sessions"), this.search), this.count, list);
        this.head = h("div.chat-head");
        const messages = this.messages = h("div.messages", { role: "region", "aria-label": _("Conversation"), tabIndex: 0, "aria-busy": "false" });
        this.feed = new LongList(messages, { key: item => item.key, guess: 90, sticks: true, draw: item => this.row(item) });
        messages.addEventListener("scroll", () => {
            this.feed.follows = this.feed.atEnd;
            if (messages.scrollTop < 400)
                this.earlier();
        }, { passive: true });
        this.spoken = h("div.sr-only", { "aria-live": "polite", "aria-atomic": "false" });
        this.state = h("p.state", { role: "status" });
        this.plan = h("div.plan-place");
        this.text = h("textarea.pf-v6-c-form-control", {
            rows: 3, onkeydown: event => this.key(event), oninput: () => drafts.set(this.id, this.text.value),
            onpaste: event => this.paste(event),
        });
        this.files = h("ul.files", { "aria-label": _("Attachments") });
        const file = h("input", { type: "file", multiple: true, hidden: true, onchange: () => this.attach(file.files).then(() => (file.value = "")) });
        this.sendButton = button(_("Send"), () => this.send(), { kind: "primary" });
        this.cancelButton = button(_("Cancel the turn"), () => call("Sessions.Cancel", [this.id]), { kind: "danger", hidden: true });
        this.model = h("select.pf-v6-c-form-control", { onchange: () => this.setModel() });
        const composer = h("form.composer", {
            onsubmit: event => event.preventDefault(),
            ondragover: event => event.preventDefault(),
            ondrop: event => {
                event.preventDefault();
                this.attach(event.dataTransfer.files);
            },
        }, field(_("Message"), this.text), this.files, h("div.actions", {},
            this.sendButton, this.cancelButton, file,
            button(_("Attach files"), () => file.click()),
            this.planButton = button(_("Plan mode"), () => this.planMode()),
            field(_("Model"), this.model)),
        this.problem = h("div", {}));
        panel.append(h("div.chat", {}, side, h("div.talk", {}, this.head, messages, this.spoken, this.plan, this.state, composer)));
        this.showConversation();
    }

    get id() {
        return this.conversation?.id || "new";
    }

    entered([id], options) {
        if (id && id !== this.conversation?.id)
            this.open(id);
        if (options.agent) {
            this.wanted = options.agent;
            this.showAgents();
        }
        if (options.ask) {
            this.open("");
            this.text.value = options.ask;
            this.text.focus();
            cockpit.location.replace(["chat"]);
        }
        this.list.soon();
        this.feed.soon();
    }

    open(id) {
        this.conversation?.close();
        this.conversation = id ? new Conversation(id, () => this.showConversation(), item => this.grow(item)) : null;
        this.feed.follows = true;
        this.text.value = drafts.get(this.id);
        this.saidUntil = null;
        this.showConversation();
        this.showModels();
        this.list.items.forEach(one => this.list.redraw(one));
        if (id)
            cockpit.location.replace(["chat", id]);
    }

    showAgents() {
        const before = this.wanted || this.agent.value || "ops";
        if (agents.value)
            this.wanted = "";
        const names = (agents.value || []).map(one => one.name);
        choose(this.agent, names, names.includes(before) ? before : names[0]);
        this.showModels();
    }

    showModels() {
        const agent = (agents.value || []).find(one => one.name === this.agentName);
        const chosen = this.conversation?.session?.model || "";
        const names = [...new Set([agent?.model, ...agent?.fallback || [], chosen].filter(Boolean))];
        choose(this.model, [["", _("the agent's own")], ...names], chosen);
    }

    get agentName() {
        return this.conversation?.session?.agent || this.agent.value;
    }

    find() {
        clearTimeout(this.finding);
        this.finding = setTimeout(() => {
            Object.assign(wanted, { title: this.search.value.trim() });
            sessions.refresh();
        }, 200);
        this.showSessions();
        this.showModels();
    }

    nearEnd() {
        const { scrollHeight, scrollTop, clientHeight } = this.sessionList;
        if (clientHeight && scrollHeight - scrollTop - clientHeight < 3000)
            sessions.more();
    }

    showSessions() {
        const found = sessions.value ? [...sessions.value.values()] : [];
        this.list.set(found);
        for (const [key, row] of this.list.rows) {
            const raw = sessions.value.get(key);
            if (raw && row.raw !== raw)
                this.list.redraw(raw);
        }
        if (this.conversation && !this.conversation.session?.title)
            this.showHead();
        this.nearEnd();
        replace(this.count, sessions.error && !found.length ? failure(sessions.error, "span.failure") : sessions.ended
            ? cockpit.format(ngettext("$0 session", "$0 sessions", found.length), number(found.length))
            : cockpit.format(_("The newest $0 sessions; scroll for more."), number(found.length)));
    }

    sessionRow(raw) {
        const one = plain(raw);
        const open = () => this.open(one.id);
        const row = h("div.session-row", { role: "listitem" },
                 h("button.session", { type: "button", onclick: open, "aria-current": one.id === this.conversation?.id ? "true" : null },
                   h("span.title", {}, one.title || _("(no title)")),
                   h("span.time", {}, when(one.updated_us), " ", STATES[one.state] ?? one.state, one.mode !== "normal" ? ` · ${_("plan")}` : "", one.agent === this.agent.value ? "" : ` · ${one.agent}`)));
        row.raw = raw;
        return row;
    }

    row(item) {
        return h(`article.item.${item.kind}`, { tabIndex: -1, "aria-label": item.kind === "user" ? _("You") : this.agentName },
                 DRAW[item.kind](item, this.conversation?.session?.holder || this.agentName));
    }

    grow(item) {
        this.dirty.add(item);
        this.frame ||= requestAnimationFrame(() => {
            this.frame = 0;
            for (const one of this.dirty) {
                const row = this.feed.rows.get(one.key);
                if (one.kind === "assistant" && one.grow && row && one.live && !one.thoughts)
                    one.grow.set(cut(one.text));
                else
                    this.feed.redraw(one);
                if (one.kind === "assistant")
                    this.speak(one);
            }
            this.dirty.clear();
            if (this.feed.follows)
                this.messages.scrollTop = this.messages.scrollHeight;
        });
    }

    /** Tell a screen reader each sentence of an answer once it is whole. */
    speak(item) {
        const [known, from] = this.saidUntil || [null, 0];
        const begin = known === item.key ? from : 0;
        const rest = item.text.slice(begin);
        const end = item.live ? rest.lastIndexOf("\n") + 1 || rest.lastIndexOf(". ") + 1 : rest.length;
        if (end > 0)
            this.spoken.append(h("p", {}, rest.slice(0, Math.min(end, 2000))));
        this.saidUntil = [item.key, begin + end];
        while (this.spoken.childNodes.length > 5)
            this.spoken.firstChild.remove();
    }

    showHead() {
        const it = this.conversation;
        if (!it)
            replace(this.head, empty(_("A new conversation"), _("Write what the agent is to look at or to do, such as: check disk")));
        else if (it.error && !it.items.length)
            replace(this.head, failure(it.error));
        else
            replace(this.head, h("h2", {}, it.session?.title || sessions.value?.get(it.id)?.title.v || _("New conversation")), h("p.note", {},
                    it.session ? [it.session.agent, it.session.holder && it.session.holder !== it.session.agent ? ` → ${it.session.holder}` : "",
                        it.session.tainted ? ` · ${_("holds text from outside")}` : ""] : "",
                    it.session?.interrupted ? ` · ${it.session.interrupted}` : ""));
    }

    showConversation() {
        const it = this.conversation;
        this.feed.set(it ? it.items : []);
        this.showHead();
        replace(this.plan, it?.plan ? planCard(it.plan) : null);
        if (it?.session && it.session.model !== this.modelShown) {
            this.modelShown = it.session.model;
            this.showModels();
        }
        this.planButton.hidden = Boolean(it?.plan);
        this.showState();
    }

    showState() {
        const it = this.conversation;
        const running = Boolean(it?.running) && Boolean(daemon.owner);
        this.cancelButton.hidden = !running;
        this.messages.setAttribute("aria-busy", String(running));
        const turn = it?.turn;
        const said = !daemon.owner && daemon.owner !== null ? _("Waiting for the daemon")
            : it?.session?.state === "deleted" ? _("This session was deleted.")
                : !running ? ""
                    : turn?.position ? cockpit.format(_("Waits for $0 earlier prompts"), turn.position)
                        : turn?.model ? cockpit.format(_("$0 works"), turn.model) : _("The agent works");
        if (this.state.textContent !== said)
            replace(this.state, said);
    }

    async earlier() {
        const it = this.conversation;
        if (!it?.earlier || it.loading || !it.items.length)
            return;
        const count = await it.loadEarlier().catch(() => 0);
        if (it === this.conversation && count)
            this.feed.set(it.items, { inFront: count });
    }

    key(event) {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            this.sendButton.click();
        } else if (event.key === "Escape" && !this.cancelButton.hidden)
            this.cancelButton.click();
    }

    /** Files are attached. A browser takes minutes to lay out a text of many megabytes, so none is put into the field. */
    paste(event) {
        const { files } = event.clipboardData;
        const text = event.clipboardData.getData("text");
        if (files.length)
            this.attach(files);
        if (!files.length && text.length <= ATTACHMENT_MOST)
            return;
        event.preventDefault();
        if (!files.length)
            replace(this.problem, failure({ message: cockpit.format(_("$0 is larger than 1 MiB."), _("What you pasted")) }));
    }

    async attach(files) {
        for (const file of files) {
            const fits = file.size <= ATTACHMENT_MOST;
            if (fits)
                this.attachments.push({ name: file.name, text: await file.text() });
            else
                replace(this.problem, failure({ message: cockpit.format(_("$0 is larger than 1 MiB."), file.name) }));
        }
        this.showFiles();
    }

    showFiles() {
        replace(this.files, this.attachments.map(one => h("li", {}, one.name, button("\u00d7", () => {
            this.attachments = this.attachments.filter(other => other !== one);
            this.showFiles();
        }, { kind: "plain", "aria-label": cockpit.format(_("Leave out $0"), one.name) }))));
    }

    async ensure() {
        if (this.conversation)
            return;
        const made = await call("Sessions.Create", [this.agent.value || "ops"], {}, { asks: true });
        const draft = this.text.value;
        drafts.set("new", "");
        this.open(made.id);
        this.text.value = draft;
        drafts.set(made.id, draft);
    }

    async send() {
        const words = this.text.value;
        if (!words.trim() && !this.attachments.length)
            return;
        replace(this.problem);
        await this.ensure();
        const { id } = this;
        this.feed.follows = true;
        await new Promise((resolve, reject) => {
            const reader = stream("Sessions.Prompt", [words], {
                session: id, attachments: this.attachments.length ? this.attachments : undefined,
            }, () => {
                reader.close(); // the watch shows the turn
                resolve();
            });
            reader.over.then(resolve, reject);
        });
        this.attachments = [];
        this.showFiles();
        if (this.text.value === words)
            this.text.value = "";
        drafts.set(id, this.text.value);
        this.text.focus();
    }

    async planMode() {
        await this.ensure();
        await call("Plans.Begin", [this.id]);
    }

    async setModel() {
        try {
            await this.ensure();
            await call("Sessions.SetModel", [this.id, this.model.value]);
        } catch (error) {
            replace(this.problem, failure(error));
        }
    }
}

export const chat = { id: "chat", title: _("Chat"), make: panel => new ChatView(panel) };
