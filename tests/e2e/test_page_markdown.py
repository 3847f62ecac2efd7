"""The page's Markdown, in the browser: what it makes of texts at once, of texts that grow, and of
hostile ones.
"""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page

from tests.e2e.page_site import Site

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="session"),
]

SCRIPT = """async (texts) => {
  const { MarkdownView } = await import("/page/markdown_view.js");
  const root = document.createElement("div");
  const view = new MarkdownView(root);
  texts.forEach((text, place) => view.update(text, { done: place === texts.length - 1 }));
  return { html: root.innerHTML, text: root.textContent };
}"""

ALLOWED = {
    *("a", "blockquote", "br", "button", "code", "del", "div", "em", "h4", "h5", "h6", "hr"),
    *("li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
LINK = re.compile(
    r'^<a href="(https?:|mailto:)[^"]*" title="[^"]*" target="_blank" rel="noopener noreferrer">'
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def empty(browser: Browser, served_page: Site) -> AsyncIterator[Page]:
    """A page of the gateway, for its modules; nothing in it touches the conversation."""
    page = await browser.new_page()
    await page.goto(served_page.url)
    yield page
    await page.close()


async def html(page: Page, *texts: str) -> str:
    """What the last of `texts` looks like, the others having been shown before."""
    return plain((await page.evaluate(SCRIPT, list(texts)))["html"])


async def half(page: Page, text: str) -> str:
    """What `text` looks like while more is to come."""
    script = SCRIPT.replace("place === texts.length - 1", "false")
    return plain((await page.evaluate(script, [text]))["html"])


def plain(text: str) -> str:
    """Without what is the same for each element of a kind."""
    for noise in (' dir="auto"', ' target="_blank" rel="noopener noreferrer"'):
        text = text.replace(noise, "")
    return re.sub(r' title="[^"]*"', "", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **b** *c*", "<p>a <strong>b</strong> <em>c</em></p>"),
        ("~~d~~ `e*f`", "<p><del>d</del> <code>e*f</code></p>"),
        ("***a** b*", "<p><em><strong>a</strong> b</em></p>"),
        ("2 * 3 * 4, snake_case_name", "<p>2 * 3 * 4, snake_case_name</p>"),
        ("**at [0, 1)** x", "<p><strong>at [0, 1)</strong> x</p>"),
        (r"\*a\* \`b\` \# c", "<p>*a* `b` # c</p>"),
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("# A #\n## B\n###### F\n#no", "<h4>A</h4><h5>B</h5><h6>F</h6><p>#no</p>"),
        ("a\n***\nb\n- - -", "<p>a</p><hr><p>b</p><hr>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("- a\n  - b\n- d", "<ul><li>a<ul><li>b</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b\n   - c", '<ol start="3"><li>a</li><li>b<ul><li>c</li></ul></li></ol>'),
        ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("in\n1984. we", "<p>in<br>1984. we</p>"),
        ("[a *b*](https://e.org/x_(y)).", '<p><a href="https://e.org/x_(y)">a <em>b</em></a>.</p>'),
        ("see (https://e.org/a).", '<p>see (<a href="https://e.org/a">https://e.org/a</a>).</p>'),
        ("<mailto:a@e.org>", '<p><a href="mailto:a@e.org">mailto:a@e.org</a></p>'),
        ("&lt;b&gt; &amp;", "<p>&amp;lt;b&amp;gt; &amp;amp;</p>"),
    ],
)  # fmt: skip
async def test_it_reads_what_models_write(empty: Page, text: str, expected: str) -> None:
    """Each kind of markup, at once and letter by letter."""
    assert expected == await html(empty, text)
    assert expected == await html(empty, *(text[:end] for end in range(len(text) + 1)))


async def test_code_has_its_language_and_a_button(empty: Page) -> None:
    """Also in a list, and without an end."""
    shown = await html(empty, "```py\na < b\n\n  c\n```\nafter\n- x\n  ~~~\n  y\n  ~~~")
    assert shown.count('<div class="code"') == 2
    assert ">py</span><button" in shown
    assert "<code>a &lt; b\n\n  c</code>" in shown
    assert "<code>y</code></pre></div></li>" in shown
    assert "<code>open</code>" in await html(empty, "```\nopen")


async def test_tables_have_their_sides(empty: Page) -> None:
    """Cells too many are left out, too few are empty."""
    shown = await html(empty, "|a|b|\n|:-:|-:|\n|1|`x\\|y`|3|\n|2|\n\nend")
    assert '<th class="middle">a</th><th class="end">b</th>' in shown
    assert '<td class="middle">1</td><td class="end"><code>x|y</code></td></tr>' in shown
    assert (
        '<td class="middle">2</td><td class="end"></td></tr></tbody></table></div><p>end</p>'
        in shown
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **bol", "<p>a <strong>bol</strong></p>"),
        ("a **bold*", "<p>a <strong>bold</strong></p>"),
        ("a **", "<p>a </p>"),
        ("a `co", "<p>a <code>co</code></p>"),
        ("a [li](https://e", "<p>a li</p>"),
        ("a\n- ", "<p>a</p>"),
        ("a\n``", "<p>a</p>"),
        ("2 * 3", "<p>2 * 3</p>"),
        ("2*3", "<p>2*3</p>"),
    ],
)
async def test_half_a_mark_looks_like_the_whole_one(empty: Page, text: str, expected: str) -> None:
    """While more is to come; at the end the text stands as it was written."""
    assert expected == await half(empty, text)


async def test_half_a_table_is_a_table(empty: Page) -> None:
    """From its first line on."""
    assert "<thead><tr><th>a</th><th>b</th></tr></thead>" in await half(empty, "| a | b")
    assert "<thead><tr><th>a</th><th>b</th></tr></thead>" in await half(empty, "| a | b |\n|--")


async def test_what_is_finished_is_not_made_anew(empty: Page) -> None:
    """A selection stays, and nothing flickers: only the end changes while text comes."""
    kept = await empty.evaluate(
        """async () => {
          const { MarkdownView } = await import("/page/markdown_view.js");
          const root = document.createElement("div");
          const view = new MarkdownView(root);
          let text = "one **two**\\n\\n- a\\n- b\\n\\n```js\\nlet x";
          view.update(text, { done: false });
          const before = [...root.querySelectorAll("*")];
          const seen = [];
          new MutationObserver((all) => seen.push(...all)).observe(root, {
            childList: true, subtree: true, characterData: true,
          });
          for (const more of [" = 1;", "\\n", "y", "\\n```\\n", "\\nend"]) {
            text += more;
            view.update(text, { done: false });
          }
          await null;
          const after = new Set(root.querySelectorAll("*"));
          return {
            gone: before.filter((it) => !after.has(it)).length,
            removed: seen.flatMap((it) => [...it.removedNodes]).length,
          };
        }"""
    )
    assert kept == {"gone": 0, "removed": 0}


HOSTILE = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "[a](javascript:window.hacked=1)",
    "[a](JaVaScRiPt:window.hacked=1)",
    "[a](java\nscript:alert(1))",
    "[a](&#106;avascript:alert(1))",
    "[a](data:text/html,<script>1</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:https://e.org/x) [d](//e.org) [e](/metrics)",
    '[a](https://e.org/"onclick="x)',
    "[a](https://e.org 'title\" onmouseover=\"x')",
    "<https://e.org/\"><img/src=x>",
    "![a](https://e.org/x.png)",
    "<javascript:alert(1)>",
    "```<img src=x>\n</code></pre><script>1</script>\n```",
    "|<b>|\n|-|\n|<i onclick=x>|",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_makes_other_elements(empty: Page, text: str) -> None:
    """Links lead to the web or to mail, in a tab that knows nothing of ours."""
    shown = (await empty.evaluate(SCRIPT, [text]))["html"]
    assert_harmless(shown)
    assert await empty.evaluate("window.hacked") is None


def assert_harmless(shown: str) -> None:
    tags = set(re.findall(r"<([a-z0-9-]+)", shown))
    assert tags <= ALLOWED
    for at in re.finditer("<a ", shown):
        assert LINK.match(shown[at.start() :]), shown
    names = set(re.findall(r'\s([a-z-]+)="', re.sub(r'="[^"]*"', '=""', shown)))
    assert names <= {
        *("href", "title", "target", "rel", "dir", "class", "start", "role", "type"),
        *("aria-label", "tabindex", "data-language", "data-code"),
    }


async def test_direction_marks_turn_nothing_around(empty: Page) -> None:
    """Each one stands alone, and can be seen."""
    shown = await html(empty, "a \u202e exe.txt `b\u2066c`\n\n```\n\u202edanger\n```")
    assert shown.count('class="direction-mark" data-code="U+202E">\u202e</span>') == 2
    assert 'data-code="U+2066">\u2066</span>c</code>' in shown


MARKS = st.sampled_from(
    [
        *("*", "**", "_", "__", "~~", "`", "``", "```", "\n", "\n\n", "\n- ", "\n  - ", "\n1. "),
        *("\n> ", "> ", "#", "\n## ", "\n---\n", "|", "\n|-|-|\n", "\n| ", "[", "]("),
        *("](https://e.org/)", "(", ")", "]", "<", ">", "\\", "\t", " ", "  ", "    "),
        *("\n```py\n", "\n```\n", "\n~~~\n"),
        *("<b>", "&amp;", "https://e.org/", "\u202e", "\r\n", "-", "=", "'", '"', "!", "😀", "é"),
    ]
)  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Marks and numbered words in any order."""
    parts = draw(st.lists(st.one_of(st.just(None), MARKS), min_size=1, max_size=30))
    words = iter(range(1000))
    return "".join(f"w{next(words)}w" if part is None else part for part in parts)


@given(text=texts(), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_any_text_is_harmless_complete_and_the_same_however_it_came(
    empty: Page, text: str, cuts: list[int]
) -> None:
    """Elements of the list only; each word once and in order; cut anywhere, the same at the end."""
    whole: dict[str, Any] = await empty.evaluate(SCRIPT, [text])
    assert_harmless(whole["html"])
    steps = [text[:cut] for cut in sorted({*cuts, *range(len(text))})] + [text]
    assert whole["html"] == (await empty.evaluate(SCRIPT, steps))["html"]
    said = re.findall(
        r"w\d+w", whole["text"] + " ".join(re.findall(r'href="([^"]*)"', whole["html"]))
    )
    missing = {*re.findall(r"w\d+w", text)} - {*said}
    assert missing <= outside_of_columns(text)
    shown = re.findall(r"w\d+w", whole["text"])
    assert shown == sorted(shown, key=lambda word: int(word[1:-1]))


def outside_of_columns(text: str) -> set[str]:
    """Words that no reader sees: beyond a table's columns, or an info string's first word."""
    found: set[str] = set()
    for line in text.splitlines():
        if "|" in line or "```" in line or "~~~" in line:
            found |= {*re.findall(r"w\d+w", line)}
    return found


@pytest.mark.parametrize(
    "piece",
    [">", "> ", "*", "**a", "*a ", "a**b", "*a_ ", "[", "](", "[a](b", "[](", "`", "`a``", "- ",
     "- a\n", "|", "|-|\n|-", "#", "~~a", "<http://", "https://)))", "_a*b~~c", "\n\n- a\n\n\n"],
)  # fmt: skip
async def test_a_megabyte_of_marks_is_read_in_linear_time(empty: Page, piece: str) -> None:
    """Twice as much takes no more than some twice as long; a quadratic one would take minutes."""
    script = """async ([text, open]) => {
      const { parseBlocks } = await import("/page/markdown.js");
      return parseBlocks(text, { open }).length;
    }"""
    began_s = time.monotonic()
    for is_open in (False, True):
        text = piece * (1_000_000 // len(piece))
        assert await empty.evaluate(script, [text, is_open]) >= 0
    assert time.monotonic() - began_s < 20
