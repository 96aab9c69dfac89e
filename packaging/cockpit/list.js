// A long list of which only what is seen is in the page. Rows have any height: it is measured once they are there.

import { h } from "./dom.js";

const BEYOND_PX = 600;

/** `draw(item)` gives the element of an item, once; `key(item)` is its name. `guess` is the height of a row in px, of
 *  each one if they are `even`. With `sticks` the end stays in sight while it grows. */
export class LongList {
    constructor(element, { key, draw, guess, sticks = false, even = false }) {
        Object.assign(this, { element, key, draw, guess, sticks, even });
        this.items = [];
        this.heights = new Map();
        this.rows = new Map();
        this.above = h("div", { "aria-hidden": "true" });
        this.below = h("div", { "aria-hidden": "true" });
        this.inner = h("div.rows", { role: "presentation" });
        element.append(this.above, this.inner, this.below);
        element.addEventListener("scroll", () => this.soon(), { passive: true });
        this.sizes = new ResizeObserver(changes => this.measured(changes));
        new ResizeObserver(() => this.soon()).observe(element);
    }

    get atEnd() {
        const { scrollTop, scrollHeight, clientHeight } = this.element;
        return scrollHeight - scrollTop - clientHeight < 40;
    }

    /** Show these items. `inFront`: how many of them are new before the first one that was there. */
    set(items, { inFront = 0 } = {}) {
        const stay = this.sticks && (this.atEnd || !this.items.length);
        this.items = items;
        const keys = new Set(items.map(this.key));
        for (const [key, row] of this.rows) {
            if (!keys.has(key)) {
                row.remove();
                this.sizes.unobserve(row);
                this.rows.delete(key);
            }
        }
        if (inFront)
            this.element.scrollTop += items.slice(0, inFront).reduce((sum, one) => sum + this.height(one), 0);
        this.render();
        if (stay)
            this.toEnd();
    }

    /** Draw an item anew. */
    redraw(item) {
        const key = this.key(item);
        const old = this.rows.get(key);
        if (!old)
            return;
        const row = this.draw(item);
        this.sizes.unobserve(old);
        old.replaceWith(row);
        row.dataset.key = key;
        this.rows.set(key, row);
        this.sizes.observe(row);
    }

    toEnd() {
        this.element.scrollTop = this.element.scrollHeight;
        this.render();
        this.element.scrollTop = this.element.scrollHeight;
    }

    height(item) {
        return this.heights.get(this.key(item)) || this.guess;
    }

    soon() {
        this.asked ||= requestAnimationFrame(() => {
            this.asked = 0;
            this.render();
        });
    }

    render() {
        const from = this.element.scrollTop - BEYOND_PX;
        const to = this.element.scrollTop + this.element.clientHeight + BEYOND_PX;
        const { first, last, before, after } = this.even ? this.evenly(from, to) : this.unevenly(from, to);
        this.above.style.height = `${before}px`;
        this.below.style.height = `${after}px`;
        const wanted = this.items.slice(first, last);
        const keys = new Set(wanted.map(this.key));
        for (const [key, row] of this.rows) {
            if (!keys.has(key) && !row.contains(document.activeElement)) {
                row.remove();
                this.sizes.unobserve(row);
                this.rows.delete(key);
            }
        }
        let next = this.inner.firstChild;
        wanted.forEach((item, offset) => {
            const key = this.key(item);
            let row = this.rows.get(key);
            if (!row) {
                row = this.draw(item);
                row.dataset.key = key;
                this.rows.set(key, row);
                if (!this.even)
                    this.sizes.observe(row);
            }
            row.setAttribute("aria-posinset", first + offset + 1);
            row.setAttribute("aria-setsize", this.items.length);
            if (row === next)
                next = next.nextSibling;
            else
                this.inner.insertBefore(row, next);
        });
    }

    evenly(from, to) {
        const count = this.items.length;
        const first = Math.min(count, Math.max(0, Math.floor(from / this.guess)));
        const last = Math.min(count, Math.max(first, Math.ceil(to / this.guess)));
        return { first, last, before: first * this.guess, after: (count - last) * this.guess };
    }

    unevenly(from, to) {
        let [first, last, at, before, after] = [-1, 0, 0, 0, 0];
        this.items.forEach((item, index) => {
            const height = this.height(item);
            if (at + height < from)
                before += height;
            else if (at <= to) {
                first = first < 0 ? index : first;
                last = index + 1;
            } else
                after += height;
            at += height;
        });
        return { first: Math.max(0, first), last, before, after };
    }

    measured(changes) {
        const stay = this.sticks && this.following;
        let moved = 0;
        const top = this.element.getBoundingClientRect().top;
        for (const { target } of changes) {
            const key = target.dataset.key;
            const height = target.offsetHeight;
            if (!height)
                continue;
            const before = this.heights.get(key) || this.guess;
            if (!this.heights.has(key) && target.getBoundingClientRect().bottom < top)
                moved += height - before;
            this.heights.set(key, height);
        }
        if (stay)
            this.element.scrollTop = this.element.scrollHeight;
        else if (moved)
            this.soon();
    }

    /** Whether the end is to stay in sight while it grows. */
    get following() {
        return this.follows ?? true;
    }
}
