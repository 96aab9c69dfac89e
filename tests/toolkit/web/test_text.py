"""How HTML becomes text; what a page says reaches `html_to_text` through the tool in test_web."""

from __future__ import annotations

import pytest

from lightagentd.toolkit.web.text import html_to_text

PAGE = """<!DOCTYPE html><html><head><title>A &amp; B</title><style>p{color:red}</style>
<script>if (a < b) document.write("<p>no</p>")</script></head><body>
<h2>Head</h2><p>One <b>two</b>
three &#8364; <a href="/rel?a=1&amp;b=2">link <i>text</i></a>, <a href="javascript:alert(1)">bad</a>
<a href="#top">top</a>.<p title="a > b">Next<br>line<!-- hidden <p> -->
<ul><li>first<li><a href='https://other.example/x y'>second</a></ul>
<table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table>
<pre>  keep
    this</pre><img src=x alt="a cat"><svg><text>no</text></svg>end</body></html>"""


def test_html_becomes_text_with_links() -> None:
    assert html_to_text(PAGE, "http://h.example/dir/") == (
        "A & B\n\n## Head\n\n"
        "One two three € [link text](http://h.example/rel?a=1&b=2), bad top.\n\n"
        "Next\nline\n\n- first\n- [second](https://other.example/x%20y)\n\n"
        "k | v\n1 | 2\n\n  keep\n    this\n\n[image: a cat]end"
    )


@pytest.mark.parametrize(
    "unit",
    [
        "<a ",
        "<!--",
        "<![",
        "</a ",
        '<a b="',
        "<a b='",
        "<script>",
        "</script ",
        "<script></script ",
        "<?",
        "&",
        "<td>x",
        "<div>",
        "<a href=x>y",
        "<a b = ",
        "<li",
        "<pre>\n",
        "&#99999999999",
        "&#" + "9" * 5000,
        "<svg/>",
        "<",
        '<a x="">',
    ],
)
def test_hostile_pages_take_time_and_room_in_proportion(unit: str) -> None:
    page = f"<base href='http://h.example/{'p' * 1900}/'><p>begin</p>" + unit * (300_000 // len(unit))
    text = html_to_text(page, "http://h.example/")
    assert text.startswith("begin")
    assert len(text) < 1 << 20
