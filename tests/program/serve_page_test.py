"""The page of `octet serve` in headless Chromium: streams, stops, schemas, tools, Markdown, chats that are kept, charts, keys,
small screens, dark.
Usage: serve_page_test.py OCTET TEXT [FOLDER FOR PICTURES]. Exit status 77: Chromium or the model is absent."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from chromium import NAMES, Page, find_chromium
from rank_runs import wait_until
from served import Served, new_key, skip, tiny_chat

REPLY = "(document.querySelector('article:last-child') ?? document.body)"
ENDED = f"{REPLY}.matches('.assistant, .completion') && {REPLY}.getAttribute('aria-busy') === 'false'"
STATUS = "document.getElementById('status').textContent"
# An event stream with what a random model does not say: reasoning, calls, markup.
SCRIPTED = """window.fetch = ((real, parts) => async (path, options) => {
  if (!path.startsWith('/v1/')) return real(path, options);
  window.sent = JSON.parse(options.body);
  const text = parts.shift().map(delta => 'data: ' + JSON.stringify(delta) + '\\n\\n').join('') + 'data: [DONE]\\n\\n';
  const bytes = new TextEncoder().encode(text);
  return new Response(new ReadableStream({start(to) {  // cut inside of events and characters
    for (let i = 0; i < bytes.length; i += 7) to.enqueue(bytes.slice(i, i + 7));
    to.close();
  }}));
})(window.fetch, %s)"""


# What models write, all kinds of blocks; the last fence is not closed.
DOCUMENT = """# A heading with `code`

Text with *emphasis*, **strong**, ***both***, ~~deleted~~ and a [link](https://example.com/a_(b)) in two
lines, 2 * 3 * 4, a_name_of_it, \\*no emphasis\\*, \\( a_1 * b_2 * c \\), <b>no tag</b> &amp; https://example.org/x.

- one
- **two**
  - inner
    - innermost
- three

3. third
   ```python
   def twice(x):
   \treturn 2 * x  # a line that is too long for a telephone and has to scroll in its own box, not with the page

   ```
4. fourth
   goes on

> quoted
> - with a list

| left | right | a column that makes the table wider than a telephone |
|:-----|------:|---|
| `a\\|b` | **1** | of some words and of some words and of some words |
| half |

---

```
never closed <i>
"""
SHOWN = """(text => { chat.items = [{role: 'user', content: 'Show it'}, {role: 'assistant', content: text}]; keep(chat), draw(); })(%s)"""


def delta(finish=None, **what):
    return {"choices": [{"index": 0, "delta": what, "finish_reason": finish}]}


def ask(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def text_of(page):
    return page.evaluate("chat.items.at(-1).content")


def press(page, name, article="article:last-child"):
    """Clicks the button of this class in an article, by the mouse as a user does."""
    page.evaluate(f"document.querySelector('{article} button.{name}').id = 'pressed'")
    page.click("pressed")
    page.evaluate("document.getElementById('pressed')?.removeAttribute('id')")


def set_short(page, tokens):
    """Short replies, always the same: a drawn one is empty now and then."""
    page.wait("document.getElementById('model').options.length > 0")
    page.fill("max_tokens", str(tokens))
    page.fill("temperature", "0")


def send(page, text):
    """Types and sends a message, waits for the end of its reply, whose text it returns."""
    page.fill("input", text)
    page.key("Enter")
    page.wait(ENDED)
    return text_of(page)


def check_quiet(page, port, wanted_failures=()):
    """No request has gone elsewhere, nothing was thrown or logged but failed requests that were wanted."""
    asked = [params["request"]["url"] for method, params in page.events if method == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(f"http://127.0.0.1:{port}/") or url == "data:," for url in asked), asked
    logged = [params for method, params in page.events if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
    logged += [params["entry"] for method, params in page.events if method == "Log.entryAdded"
               and not any(word in params["entry"]["text"] for word in wanted_failures)]
    assert not logged, logged


def check_chat(page, port):
    page.wait("document.getElementById('model').options.length > 0")
    assert page.evaluate("document.activeElement.id") == "input"
    page.fill("temperature", "0")
    page.fill("max_tokens", "24")
    page.fill("system", "Be brief.")
    first = send(page, "Hello")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    wanted = {"messages": messages, "temperature": 0, "max_tokens": 24}
    assert first and first == ask(port, "/v1/chat/completions", wanted)["choices"][0]["message"]["content"], first
    assert "first after" in page.evaluate(f"{REPLY}.querySelector('.foot').textContent")
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And\nmore"}]
    page.fill("input", "And")
    page.key("Enter", shift=True)
    page.type("more")
    page.key("Enter")
    page.wait(f"document.querySelectorAll('article.assistant').length === 2 && {ENDED}")
    assert text_of(page) == ask(port, "/v1/chat/completions", wanted)["choices"][0]["message"]["content"]


def check_schema_and_stop(page):
    page.fill("schema", '{"enum": ["red", "blue"]}')
    assert send(page, "A colour?") in ('"red"', '"blue"')
    assert page.evaluate(f"{REPLY}.querySelector('.text').textContent === chat.items.at(-1).content"), "JSON is no Markdown"
    count = page.evaluate("document.querySelectorAll('article').length")
    page.fill("schema", "{")
    page.fill("input", "Not sent")
    page.key("Enter")
    page.wait(f"{STATUS}.startsWith('schema cannot be read')")
    assert page.evaluate("document.getElementById('schema').getAttribute('aria-invalid')") == "true"
    assert page.evaluate("document.querySelectorAll('article').length") == count
    page.fill("schema", '{"type": "string", "minLength": 100000}')
    page.fill("max_tokens", "1900")
    for stop in (lambda: page.key("Escape"), lambda: page.click("stop")):
        page.network(bytes_per_second=10_000)  # the reply takes longer than the hand to the key
        page.fill("input", "Long, please")
        page.key("Enter")
        page.wait(f"{REPLY}.matches('.assistant[aria-busy=true]') && {REPLY}.textContent.length > 20")
        stop()
        page.wait(ENDED)
        page.network(bytes_per_second=-1)
        assert "stopped" in page.evaluate(f"{REPLY}.querySelector('.foot').textContent")
        page.wait("fetch('/metrics').then(r => r.text()).then(t => t.includes('octet_num_requests_running 0\\n'))")
        seen = page.evaluate("(l => l.scrollHeight - l.scrollTop - l.clientHeight)(document.getElementById('log'))")
        assert seen < 2, "the end of the reply is not in sight"
    page.fill("schema", "")
    set_short(page, 8)
    assert page.evaluate("document.getElementById('schema').ariaInvalid") == "false"


def check_calls_and_markup(page):
    """Calls and their results, reasoning, and text that would be markup."""
    evil = "<img src=x onerror='window.evil=1'><script>evil=2</script>\u00e9"
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"x": "<b>"}'}}
    turns = [[delta(role="assistant"), delta(reasoning_content="hm " + evil), delta(content=evil), delta(tool_calls=[call]),
              delta(tool_calls=[more]), delta(finish="tool_calls")],
             [delta(content="done"), delta(finish="stop")], [{"error": {"message": "the server " + evil}}]]
    page.evaluate(SCRIPTED % json.dumps(turns))
    page.fill("tools", '[{"type": "function", "function": {"name": "get"}}]')
    assert send(page, "Call it") == evil
    assert page.evaluate(f"{REPLY}.querySelector('.markdown').textContent") == evil
    assert page.evaluate("sent.tools[0].function.name") == "get"
    thought = "document.querySelector('article:last-child details.reasoning')"
    assert page.evaluate(f"{thought}.querySelector('.text').textContent") == "hm " + evil
    assert not page.evaluate(f"{thought}.open")
    assert page.evaluate(f"{REPLY}.querySelector('.call').innerText").split() == ["Call", "get", '{"x":', '"<b>"}']
    assert page.evaluate("document.getElementById('asks').textContent") == "Result of get"
    assert send(page, "42") == "done"
    sent = page.evaluate("sent.messages.slice(-2)")
    assert sent[0]["tool_calls"] == [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"x": "<b>"}'}}]
    assert sent[1] == {"role": "tool", "tool_call_id": "c1", "content": "42"}, sent
    page.fill("input", "Fail")
    page.key("Enter")
    page.wait(f"{STATUS} === {json.dumps('the server ' + evil)}")
    assert page.evaluate("typeof evil") == "undefined" and page.evaluate("document.querySelectorAll('img, b.x').length") == 0


def check_markdown(page):
    """Blocks and spans as CommonMark has them, the same however the text is cut; nothing that was drawn is drawn again but the
    end; markup, and addresses of other kinds, are text."""
    page.evaluate("""window.marked = (text, step = 1e9) => {
      const root = document.createElement('div'), markdown = new Markdown(root);
      for (let i = 0; i < text.length; i += step) markdown.write(text.slice(i, i + step));
      markdown.end();
      return root;
    }""")
    link = '<a href="{0}" title="{0}" target="_blank" rel="noopener noreferrer">{1}</a>'.format
    for text, wanted in {
            "*a* **b** ***c*** ~~d~~ _e_ a_b_c 2 * 3": "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> "
            "<em>e</em> a_b_c 2 * 3</p>",
            "**a *b** c*": "<p><em><em>a <em>b</em></em> c</em></p>", "**open": "<p>**open</p>", "*a **b***": "<p><em>a <strong>b</strong></em></p>",
            "`a*b*` ``c ` d`` `e": "<p><code>a*b*</code> <code>c ` d</code> `e</p>", "\\*a\\* \\[x_1*y*z\\]": "<p>*a* \\[x_1*y*z\\]</p>",
            "[a *b*](http://x/y_(z)) ![p](https://q/r.png \"t\")": f"<p>{link('http://x/y_(z)', 'a <em>b</em>')} {link('https://q/r.png', 'p')}</p>",
            "(https://x/y). [m](mailto:a@b)": f"<p>({link('https://x/y', 'https://x/y')}). {link('mailto:a@b', 'm')}</p>",
            "# a #\n####### b\n###### c": "<h3>a</h3><p>####### b</p><h6>c</h6>",
            "- a\n- b\n  - c\n\n  d\n1. e\n7. f": '<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li></ul>'
            '<ol start="1"><li><p>e</p></li><li><p>f</p></li></ol>',
            "a\n2. b\n1. c": '<p>a\n2. b</p><ol start="1"><li><p>c</p></li></ol>', "* * *\n***": "<hr><hr>", "> a\nb\n\nc": "<blockquote><p>a\nb</p></blockquote><p>c</p>",
            "~~~js x\n```\n  a\n~~~~\nb": "<code js>```\n  a\n</code><p>b</p>", "```\na": "<code text>a\n</code>",
            "|a|b|\n|-|:-:|\n|c\n\nd": '<table><tr><th>a</th><th class="center">b</th></tr><tr><td>c</td><td></td></tr></table><p>d</p>',
            "|a|b|\n|-|": "<p>|a|b|\n|-|</p>", "a|b\n-|-\nc|`d`": "<table><tr><th>a</th><th>b</th></tr><tr><td>c</td><td><code>d</code></td></tr></table>"}.items():
        found = page.evaluate(f"marked({json.dumps(text)}).innerHTML")
        for pattern, short in ((r'<div class="code">.*?<span>(.*?)</span>.*?<code>(.*?)</code></pre></div>', r"<code \1>\2</code>"),
                               (r'<div class="paragraph"><div class="table">(.*?)</div></div>', r"\1"), ("</?t(head|body)>", ""),
                               (r'<div class="paragraph">(.*?)</div>', r"<p>\1</p>")):
            found = re.sub(pattern, short, found, flags=re.S)
        assert found == wanted, (text, found, wanted)
    evil = ["<script>evil=1</script>", "<img src=x onerror=evil=1>", "[a](javascript:evil=1)", "[a](JaVaScRiPt:evil=1)", "[a](&#106;avascript:evil=1)",
            "[a](java\tscript:evil=1)", "[a]( javascript:evil=1)", "[a](<javascript:evil=1>)", "<javascript:evil=1>", "[a](data:text/html,<script>evil=1</script>)",
            "[a](vbscript:x)", "[a](//x/y)", "[a](x.html)", "[a](file:///etc/passwd)", "![a](javascript:evil=1)", "![a](x\"onerror=\"evil=1)", "`<img src=x>`",
            "```\"><img src=x onerror=evil=1>\n</code></pre><script>evil=1</script>\n```", "# <iframe srcdoc='<script>evil=1</script>'>", "| <svg onload=evil=1> |\n|---|\n| <a href='javascript:x'>y</a> |",
            "[a](https://x\" onclick=\"evil=1)", "[<img src=x onerror=evil=1>](https://x)", "https://x/'onmouseover='evil=1'", "- <style>*{display:none}</style>", "> </div></article><form action=//x>", "\0<b>\0"]
    seen = page.evaluate("""(texts => {
      const tags = new Set(), attributes = new Set(), schemes = new Set();
      for (const element of texts.flatMap(text => [...marked(text).querySelectorAll('*'), ...marked(text, 1).querySelectorAll('*')])) {
        tags.add(element.tagName);
        for (const {name} of element.attributes) attributes.add(name);
        if (element.tagName === 'A') schemes.add(element.protocol);
      }
      return [[...tags], [...attributes], [...schemes]];
    })(%s)""" % json.dumps(evil + [DOCUMENT, " ".join(evil)]))
    assert set(seen[0]) <= set("DIV SPAN BUTTON PRE CODE H3 H4 H5 H6 UL OL LI BLOCKQUOTE HR TABLE THEAD TBODY TR TH TD A EM STRONG DEL".split()), seen
    assert set(seen[1]) <= {"class", "href", "title", "target", "rel", "start", "type"} and set(seen[2]) <= {"http:", "https:", "mailto:"}, seen
    for step in (1, 2, 7, 50):
        assert page.evaluate("(text => marked(text, %d).innerHTML === marked(text).innerHTML)(%s)" % (step, json.dumps(DOCUMENT))), step
    faults = page.evaluate("""(text => {
      const root = document.createElement('div'), markdown = new Markdown(root), faults = [];
      let before = [];
      for (const character of text) {
        markdown.write(character);
        const now = [...root.children], said = root.textContent;
        if (before.slice(0, -1).some((node, i) => node !== now[i])) faults.push(['drawn again', said]);
        for (const mark of ['```', '**', '~~', '|-', '---', '](']) if (said.includes(mark)) faults.push([mark, said]);
        before = now;
      }
      return faults;
    })(%s)""" % json.dumps(DOCUMENT))
    assert not faults, faults[0]
    for block in ("word **bold** `code` ", "- item\n", "```\nline\n```\n", "|a|b|\n|-|-|\n", "\n\nparagraph ", "> quoted "):
        drawn = [page.evaluate("""(text => {  // characters of the nodes that were made
          const root = document.createElement('div'), markdown = new Markdown(root), watch = new MutationObserver(() => {});
          watch.observe(root, {childList: true, subtree: true});
          let sum = 0;
          for (let i = 0; i < text.length; i += 20) {
            markdown.write(text.slice(i, i + 20));
            for (const {addedNodes} of watch.takeRecords()) for (const node of addedNodes) sum += 1 + node.textContent.length;
          }
          return sum;
        })(%s)""" % json.dumps((block * 1000)[:size])) for size in (3000, 6000)]
        assert drawn[1] < 2.3 * drawn[0], (block, drawn)
    page.evaluate(SHOWN % json.dumps(DOCUMENT))


def check_messages(page):
    """Copies, edits with what follows made anew, answers anew; a failure loses nothing."""
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    answer = "Some **code**:\n```c\nint x;\n```"
    turns = [[delta(content=text), delta(finish="stop")] for text in ("first", answer, "second")] + [[{"error": {"message": "no more"}}]]
    page.click("fresh")
    page.evaluate(SCRIPTED % json.dumps(turns))
    assert send(page, "One") == "first" and send(page, "Two") == answer
    for name, wanted in (("copy", answer), ("bar .copy", "int x;\n")):
        page.evaluate(f"document.querySelector('article:last-child {'.head' if name == 'copy' else '.bar'} .copy').id = 'pressed'")
        page.click("pressed")
        page.wait("document.getElementById('pressed').textContent === 'Copied'")
        assert page.evaluate("navigator.clipboard.readText()") == wanted
        page.evaluate("document.getElementById('pressed').removeAttribute('id')")
    press(page, "again")
    page.wait(f"{ENDED} && chat.items.at(-1).content === 'second'")
    assert page.evaluate("sent.messages.map(m => m.content)") == ["One", "first", "Two"]
    whole = page.evaluate("JSON.stringify(chat.items)")
    press(page, "edit", "article.user")
    page.key("Escape")
    assert page.evaluate("document.querySelectorAll('#log form').length === 0 && chat.items.length === 4")
    press(page, "edit", "article.user")
    page.evaluate("document.querySelector('#log form textarea').select()")
    page.type("Other")
    page.key("Enter", shift=True)
    page.key("Enter")  # fails in the stream, with the reply begun: the edit holds
    page.wait(f"{STATUS} === 'no more'")
    assert page.evaluate("sent.messages.map(m => m.content)") == ["Other\n"]
    assert page.evaluate("chat.items.length") == 2 and page.evaluate("chat.items[1].foot").endswith("ended: no more")
    page.evaluate(f"chat.items = {whole}; draw(); window.fetch = async () => new Response('{{}}', {{status: 503}})")
    press(page, "edit", "article.user")
    page.key("Enter")  # refused: all is as it was, what was typed too
    page.wait(f"{STATUS} === 'the server answers 503' && !running")
    assert page.evaluate("JSON.stringify(chat.items)") == whole
    assert page.evaluate("document.querySelector('#log form textarea').value") == "One"
    press(page, "again")
    page.wait(f"{STATUS} === 'the server answers 503' && !running")
    assert page.evaluate("JSON.stringify(chat.items)") == whole and page.evaluate("document.querySelectorAll('article').length") == 4
    page.fill("input", "Typed")
    page.key("Enter")
    page.wait(f"{STATUS} === 'the server answers 503' && !running")
    assert page.evaluate("JSON.stringify(chat.items)") == whole and page.evaluate("document.getElementById('input').value") == "Typed"
    page.fill("input", "")


def listed(page):
    return page.evaluate("[...document.querySelectorAll('#list button')].map(b => b.textContent)")


def check_chats(page, url):
    """Chats outlive a reload, with their settings; renamed, exported, deleted; what another program keeps there is let be."""
    page.evaluate("localStorage.clear(); localStorage.setItem('other', '{'); localStorage.setItem('octet.chat.bad', '{\"items\": [{}]}'); chats.clear()")
    page.open(url)
    page.wait("document.getElementById('model').options.length > 0")
    assert listed(page) == [] and page.evaluate("document.getElementById('export').disabled")
    set_short(page, 8)
    page.fill("system", "Be brief.")
    said = send(page, "The first\nchat")
    page.click("fresh")
    page.fill("system", "Be long.")
    send(page, "The second")
    assert listed(page) == ["The second", "The first"]
    page.evaluate("document.querySelectorAll('#list button')[1].click()")
    page.fill("title", "Renamed")
    page.key("Enter")
    page.wait("document.querySelector('#list button').textContent === 'Renamed'")
    page.evaluate("window.before = true, location.reload()")
    page.wait("!window.before && document.readyState === 'complete' && document.getElementById('model').options.length > 0")
    assert listed(page) == ["Renamed", "The second"]
    assert page.evaluate("[...document.querySelectorAll('article .text')].map(e => e.textContent)")[0] == "The first\nchat"
    assert text_of(page) == said and page.evaluate("document.getElementById('system').value") == "Be brief."
    assert page.evaluate("document.querySelector('#list [aria-current=true]').textContent") == "Renamed"
    with tempfile.TemporaryDirectory() as folder:
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        for button, name in (("export", "Renamed.json"), ("export-all", "chats.json")):
            page.click(button)
            file = pathlib.Path(folder) / name
            wait_until(lambda: file.exists() and file.stat().st_size > 0, f"{name} is there")
            value = json.loads(file.read_text())
            first = value if button == "export" else value[0]
            assert first["title"] == "Renamed" and first["messages"][1]["content"] == said and first["settings"]["system"] == "Be brief."
    page.click("delete")
    assert listed(page) == ["Renamed", "The second"], "the first click asks"
    page.click("delete")
    assert listed(page) == ["The second"] and page.evaluate("document.querySelectorAll('article').length") == 0
    assert page.evaluate("Object.keys(localStorage).length") == 3 and page.evaluate("localStorage.other") == "{"


def check_two_tabs(page, url):
    """Tabs see each other's chats; of two that go on with one chat at once, the later goes on as a copy."""
    page.evaluate("document.querySelector('#list button').click()")
    address = page.evaluate("location.href")
    first = page.tab()
    page.size(1280, 800)
    page.open(address)
    page.wait("document.getElementById('model').options.length > 0 && chat.items.length === 2")
    second, page.session = page.session, first
    page.fill("input", "From the first tab")
    page.key("Enter")
    page.wait(f"chat.items.length === 4 && {ENDED} && !running")
    page.session = second
    page.wait("chat.items.length === 4 && document.querySelectorAll('article').length === 4")
    page.evaluate("running = new AbortController()")  # as if a reply was under way
    page.session = first
    page.fill("input", "Once more from the first")
    page.key("Enter")
    page.wait(f"chat.items.length === 6 && {ENDED} && !running")
    page.session = second
    page.wait("JSON.parse(localStorage['octet.chat.' + chat.id]).items.length === 6")
    page.evaluate("running = null; chat.items.push({role: 'user', content: 'From the second'}); keep(chat)")
    assert sorted(listed(page)) == ["The second", "The second (copy)"], listed(page)
    page.session = first
    page.wait("document.querySelectorAll('#list button').length === 2")
    counts = page.evaluate("Object.keys(localStorage).filter(k => k !== 'octet.chat.bad' && k !== 'other').map(k => JSON.parse(localStorage[k]).items.length)")
    assert sorted(counts) == [5, 6], counts
    page.session = second
    page.evaluate("document.getElementById('delete').click(), document.getElementById('delete').click()")
    page.call("Page.close")
    page.session = first
    page.wait("document.querySelectorAll('#list button').length === 1")


def check_storage(page, url):
    """Where the browser keeps nothing, and where it is full, the page says so and works; nothing of a chat is lost."""
    page.open(url)
    page.wait("document.getElementById('model').options.length > 0")
    set_short(page, 8)
    page.evaluate("Storage.prototype.real = Storage.prototype.setItem; Storage.prototype.setItem = () => { throw new DOMException('it is full', 'QuotaExceededError'); }")
    send(page, "Not kept")
    assert page.evaluate(STATUS).endswith("it is full") and listed(page)[0] == "Not kept (in this tab only)"
    page.evaluate("document.querySelectorAll('#list button')[1].click()")
    page.evaluate("document.querySelectorAll('#list button')[0].click()")
    assert page.evaluate("chat.items.length === 2 && document.querySelectorAll('article').length === 2")
    page.evaluate("Storage.prototype.setItem = Storage.prototype.real; document.querySelectorAll('#list button')[1].click()")
    page.click("delete")
    page.click("delete")
    assert listed(page) == ["Not kept"], "there is room again"
    page.evaluate("document.querySelector('#list button').click(); chat.items[0].content = 'x'.repeat(4e6); keep(chat)")
    assert "4 million characters" in page.evaluate(STATUS) and listed(page) == ["Not kept (in this tab only)"]
    events = len(page.events)
    script = page.call("Page.addScriptToEvaluateOnNewDocument", source="""Object.defineProperty(window, 'localStorage',
        {get() { throw new DOMException('denied here', 'SecurityError'); }})""")["identifier"]
    page.open(url + "?denied")
    assert "Page.javascriptDialogOpening" in [method for method, _ in page.events][events:], "leaving asks while a chat is not kept"
    page.wait(f"{STATUS}.includes('denied here')")
    set_short(page, 8)
    assert send(page, "Hello") and page.evaluate("chat.items.length") == 2 and listed(page) == ["Hello (in this tab only)"]
    assert "denied here" in page.evaluate(STATUS)
    page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def check_charts(page):
    page.wait("document.querySelector('#speed polyline').points.length > 0")
    send(page, "Once more")
    for figure, count in {"requests": 2, "speed": 1, "cache": 1, "first": 1}.items():
        page.wait(f"[...document.querySelectorAll('#{figure} polyline')].filter(p => p.points.length > 1).length === {count}")
        page.wait(f"[...document.querySelectorAll('#{figure} b')].every(b => b.textContent !== '')")


def check_controls(page):
    """Every control has a name, is reached by the keyboard and shows its focus; text stands out."""
    roles = {"textbox", "combobox", "button", "spinbutton"}
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]
             and node["role"]["value"] in roles]
    assert len(named) > 12 and all(name for _, name in named), named
    page.evaluate("document.getElementById('menu').focus()")
    reached = {"menu"}
    for _ in range(120):
        page.key("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        if page.evaluate("document.activeElement.id") == "menu":
            break
        shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown == "solid" or page.evaluate("document.activeElement === document.body"), page.evaluate("document.activeElement.id")
    assert {"key", "fresh", "log", "input", "send", "mode", "schema", "title", "export", "delete"} <= reached, reached
    for element in ("body", "label", "#send", "#hint", "article .copy", "#kept", "#list button"):
        contrast = page.evaluate("""(element => {
          const light = color => color.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((s, c, i) => s + c * [.2126, .7152, .0722][i], 0);
          let behind = element;
          while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
          const pair = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
          return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        })(document.querySelector('%s'))""" % element)
        assert contrast >= 4.5, (element, contrast)


def check_small(page, pictures):
    """At 360 px the panel is folded, nothing is wider than the screen, the composer is in sight, and the page works."""
    assert not page.evaluate("document.getElementById('side').checkVisibility()")
    most = "Math.max(...[...document.querySelectorAll('body > *')].map(e => e.getBoundingClientRect().bottom))"
    for opened in (False, True):
        if opened:
            page.click("menu")
            page.evaluate("for (const d of document.querySelectorAll('aside details')) d.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        wide = page.evaluate("""[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
            !e.closest('pre, table') && e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))""")
        assert not wide, wide
        pictures(f"small_{str(opened).lower()}")
        place = page.evaluate("(r => [r.top, r.bottom])(document.getElementById('composer').getBoundingClientRect())")
        assert 0 <= place[0] and place[1] <= 641, place
        assert page.evaluate("document.getElementById('log').clientHeight") >= (60 if opened else 400)
    set_short(page, 12)
    page.click("menu")
    low = page.evaluate("document.getElementById('input').clientHeight")
    page.fill("input", "line\n" * 40)
    assert page.evaluate("document.getElementById('input').clientHeight") > 4 * low, "the composer grows"
    assert page.evaluate(most) <= 641 and page.evaluate("document.getElementById('log').clientHeight") >= 60
    assert send(page, "Hello")
    assert page.evaluate("document.getElementById('input').clientHeight") == low


def check_completions_and_key(octet, page):
    """A model without a chat template, behind a key."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "bare"
        shutil.copytree(tiny_chat(), folder, copy_function=shutil.copyfile)
        folder.chmod(0o755)
        (folder / "tokenizer_config.json").unlink()
        key, line = new_key(octet, "a")
        (folder / "keys").write_text(line)
        with Served(octet, folder, "--api-keys", folder / "keys") as server:
            page.open("about:blank")
            page.events.clear()
            page.size(1280, 800)
            page.open(f"{server.url}/")
            page.wait(f"{STATUS}.startsWith('an API key is required')")
            page.fill("key", key)
            page.key("Enter")
            page.wait(f"{STATUS}.startsWith('this model has no chat template')")
            assert page.evaluate("[document.getElementById('mode').value, document.getElementById('asks').textContent]") == ["text", "Prompt"]
            set_short(page, 12)
            assert send(page, "Once upon")
            kept = page.evaluate("JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage}) + document.cookie")
            assert "Once upon" in kept and key not in kept, "the key stays in the tab's memory"
            check_quiet(page, server.port, wanted_failures=["401"])


def main():
    octet = sys.argv[1]
    program = find_chromium()
    if not program:
        skip(f"there is none of {', '.join(NAMES)}")
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with Page(program) as page:
        pictures = (lambda name: page.picture(folder / f"{name}.png")) if folder else lambda name: None
        with Served(octet, tiny_chat()) as server:
            port, url = server.port, server.url + "/"
            page.size(1280, 800)
            page.open(url)
            check_chat(page, port)
            check_schema_and_stop(page)
            check_charts(page)
            pictures("wide")
            check_calls_and_markup(page)
            pictures("calls")
            page.open(url)
            check_markdown(page)
            pictures("markdown")
            check_messages(page)
            check_chats(page, url)
            check_two_tabs(page, url)
            check_storage(page, url)
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
            check_controls(page)
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
            page.open(url + "?dark")
            assert sum(map(int, page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(", "))) < 200
            set_short(page, 12)
            assert send(page, "In the dark")
            check_controls(page)
            pictures("dark")
            page.size(360, 640)
            page.open(url + "?small")
            page.evaluate(SHOWN % json.dumps(DOCUMENT))
            check_small(page, pictures)
            check_quiet(page, port)
        check_completions_and_key(octet, page)


main()
