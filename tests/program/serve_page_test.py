"""The page of `octet serve` in headless Chromium: streams, stops, schemas, tools, charts, keys, small screens, dark.
Usage: serve_page_test.py OCTET TEXT [FOLDER FOR PICTURES]. Exit status 77: Chromium or the model is absent."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from chromium import NAMES, Page, find_chromium
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


def delta(finish=None, **what):
    return {"choices": [{"index": 0, "delta": what, "finish_reason": finish}]}


def ask(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def text_of(page):
    return page.evaluate(f"{REPLY}.querySelector(':scope > .text')?.textContent ?? ''")


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
    page.fill("max_tokens", "8")
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
    page.evaluate("document.getElementById('model').focus()")
    reached = set()
    for _ in range(30):
        page.key("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown == "solid" or page.evaluate("document.activeElement === document.body"), page.evaluate("document.activeElement.id")
    assert {"key", "fresh", "log", "input", "send", "mode", "schema"} <= reached, reached
    for element in ("body", "label", "#send", "#hint"):
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
    """At 360 px nothing is wider than the screen, the composer is in sight, and the page works."""
    for opened in ("false", "true"):
        page.evaluate(f"for (const d of document.querySelectorAll('aside details')) d.open = {opened}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        wide = page.evaluate("""[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
            e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))""")
        assert not wide, wide
        pictures(f"small_{opened}")
        place = page.evaluate("(r => [r.top, r.bottom])(document.getElementById('composer').getBoundingClientRect())")
        assert 0 <= place[0] and place[1] <= 641, place
        assert page.evaluate("document.getElementById('log').clientHeight") >= 60
    assert send(page, "Hello")


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
            page.wait(f"{STATUS}.startsWith('an API key is wanted')")
            page.fill("key", key)
            page.key("Enter")
            page.wait(f"{STATUS}.startsWith('this model has no chat template')")
            assert page.evaluate("[document.getElementById('mode').value, document.getElementById('asks').textContent]") == ["text", "Prompt"]
            page.fill("max_tokens", "12")
            assert send(page, "Once upon")
            assert page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length + document.cookie.length") == 0
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
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
            check_controls(page)
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
            page.open(url + "?dark")
            assert sum(map(int, page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(", "))) < 200
            page.fill("max_tokens", "12")
            assert send(page, "In the dark")
            check_controls(page)
            pictures("dark")
            page.size(360, 640)
            page.open(url + "?small")
            assert not page.evaluate("document.getElementById('settings').open")
            page.click("settings-title")
            page.fill("max_tokens", "12")
            check_small(page, pictures)
            check_quiet(page, port)
        check_completions_and_key(octet, page)


main()
