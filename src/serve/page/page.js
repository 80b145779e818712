// Text of the model, of the server and of the user enters the page as text only, never as HTML.
const $ = id => document.getElementById(id);
let running = null;  // the AbortController of the reply under way

function say(text, bad = false) {
  $('status').textContent = text;
  $('status').classList.toggle('bad', bad);
}

function add(parent, tag, name, text = '') {
  const element = parent.appendChild(document.createElement(tag));
  if (name) element.className = name;
  element.append(document.createTextNode(text));
  return element;
}

function add_button(parent, text, act) {
  const button = add(parent, 'button', text.toLowerCase(), text);
  button.type = 'button';
  button.addEventListener('click', () => act(button));
  return button;
}

function grow(field) {  // as high as its text
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight + 2}px`;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // an address without TLS has no clipboard
    const field = add(document.body, 'textarea');
    field.value = text, field.select();
    const copied = document.execCommand('copy');
    field.remove(), button.focus();
    if (!copied) return say('the browser lets nothing be copied', true);
  }
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

// --- requests
function ask(path, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  if ($('key').value) headers.Authorization = 'Bearer ' + $('key').value;
  return fetch(path, {...options, headers, cache: 'no-store', credentials: 'omit'});
}

async function failure(response) {
  const body = await response.json().catch(() => ({}));
  return new Error(body.error?.message ?? `the server answers ${response.status}`);
}

function number(id) {
  const field = $(id), invalid = !field.checkValidity();
  field.setAttribute('aria-invalid', invalid);
  if (invalid) throw new Error(`${id}: ${field.validationMessage}`);
  return field.value === '' ? undefined : Number(field.value);
}

function json(id, fits) {
  const field = $(id), text = field.value.trim();
  field.setAttribute('aria-invalid', 'false');
  if (!text) return undefined;
  try {
    const value = JSON.parse(text);
    if (!fits(value)) throw new Error('it has another form');
    return value;
  } catch (error) {
    field.setAttribute('aria-invalid', 'true');
    throw new Error(`${id} cannot be read: ${error.message}`);
  }
}

// The body but for its messages or prompt. Throws what is wrong with a setting.
function settings(chat) {
  const body = {model: $('model').value || undefined, stream: true, stream_options: {include_usage: true}};
  for (const id of ['max_tokens', 'temperature', 'top_p', 'top_k', 'seed']) body[id] = number(id);
  const schema = json('schema', value => typeof value === 'object' && value !== null);
  if (schema) body.response_format = {type: 'json_schema', json_schema: {name: 'reply', schema}};
  const tools = chat ? json('tools', Array.isArray) : undefined;
  if (tools?.length) Object.assign(body, {tools, tool_choice: $('tool_choice').value});
  return body;
}

async function* events(response) {  // lists of them, as they come together
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    const found = [];
    for (const part of parts) {
      const data = part.replace(/^data: /, '');
      const event = data === '[DONE]' ? {} : JSON.parse(data);
      if (event.error) {
        yield found;
        throw new Error(event.error.message);
      }
      if (event.choices) found.push(event);
    }
    yield found;
  }
}

// --- chats. `chats` has all of them, by id; the browser keeps each under a key of its own, so that tabs do not meet but in
// one chat: there the one that finds another `stamp` than its own goes on as a copy.
// A chat: {id, title, time, stamp, settings, items, kept}; an item: {role, content, reasoning?, tool_calls?, tool_call_id?,
// plain? (no Markdown), cut? (it was not said to its end), foot?}.
const kPrefix = 'octet.chat.', kMostChats = 200, kMostCharacters = 4e6;
const kSettings = ['mode', 'max_tokens', 'temperature', 'top_p', 'top_k', 'seed', 'system', 'tools', 'tool_choice', 'schema'];
const names = {user: 'You', assistant: 'Model', tool: 'Result of a call', prompt: 'Prompt', completion: 'Completion'};
const replies = ['assistant', 'completion'], chats = new Map();
const new_id = () => Date.now().toString(36) + Math.random().toString(36).slice(2);
const new_chat = () => ({id: new_id(), title: '', time: 0, stamp: '', settings: {}, items: [], kept: true, size: 0});
let chat = new_chat();  // the open one

const storage = () => window.localStorage;  // throws where the browser denies it

function read_chat(id, text) {  // null: not one of this page's
  try {
    const {title, time, stamp, settings, items} = JSON.parse(text);
    const fits = items.every(item => Object.hasOwn(names, item.role) && typeof item.content === 'string');
    const chat = {id, title: String(title), time: Number(time) || 0, stamp, settings: {...settings}, items};
    return fits ? {...chat, kept: true, size: text.length} : null;
  } catch {
    return null;
  }
}

function keep(mine) {
  if (!mine.items.length) return;
  const {id, stamp} = mine;
  try {
    const text = storage().getItem(kPrefix + id), found = text && read_chat(id, text);
    if (found && found.stamp !== stamp) {
      chats.set(id, found), mine.id = new_id(), mine.title += ' (copy)';
      say('another tab went on with this chat: this is a copy of it now');
    }
    Object.assign(mine, {stamp: new_id(), time: Date.now()});
    const {title, time, settings, items} = mine, whole = JSON.stringify({title, time, stamp: mine.stamp, settings, items});
    const others = [...chats.values()].filter(other => other.kept && other.id !== mine.id);
    if (others.length >= kMostChats) throw new Error(`${kMostChats} chats are the most`);
    if (others.reduce((sum, other) => sum + other.size, whole.length) > kMostCharacters)
      throw new Error(`${kMostCharacters / 1e6} million characters are the most`);
    storage().setItem(kPrefix + mine.id, whole);
    Object.assign(mine, {kept: true, size: whole.length});
  } catch (error) {
    Object.assign(mine, {kept: false, stamp});
    say(`this chat is in this tab only, the browser does not keep it: ${error.message}`, true);
  }
  chats.set(mine.id, mine);
  if (mine === chat) history.replaceState(null, '', mine.kept ? '#' + mine.id : location.pathname + location.search);
  list();
}

const newest_first = () => [...chats.values()].sort((a, b) => b.time - a.time);

function list() {
  const kept = newest_first().filter(one => one.kept);
  $('list').replaceChildren();
  for (const one of newest_first()) {
    const name = (one.title || 'Untitled') + (one.kept ? '' : ' (in this tab only)');
    const button = add_button(add($('list'), 'li'), name, () => {
      if (one !== chat) open(one);
      if (small.matches) show_side(false); else $('input').focus();
    });
    button.className = '', button.setAttribute('aria-current', one === chat);
  }
  const used = kept.reduce((sum, one) => sum + one.size, 0);
  $('kept').textContent = `${kept.length} of ${kMostChats} chats, ${(used / 1e6).toFixed(1)} of ${kMostCharacters / 1e6} `
    + 'million characters are kept in this browser';
  if (document.activeElement !== $('title')) $('title').value = chat.title;
  $('title').disabled = $('export').disabled = $('delete').disabled = !chats.has(chat.id);
  $('export-all').disabled = !chats.size;
  $('delete').textContent = 'Delete';
}

function draw() {
  $('log').replaceChildren();
  for (const item of chat.items) new View(item).finish();
  $('log').scrollTop = $('log').scrollHeight;
  show_what_is_asked();
}

function open(one) {
  running?.abort();
  chat = one;
  for (const id of one.items.length ? kSettings : []) {
    const field = $(id);
    field.value = one.settings[id] ?? (field.options ? field.options[0].value : field.defaultValue);
  }
  if ($('mode').options[0].disabled) $('mode').value = 'text';
  history.replaceState(null, '', one.items.length && one.kept ? '#' + one.id : location.pathname + location.search);
  say('');
  draw(), list();
}

function save_file(name, value) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], {type: 'application/json'}));
  link.download = `${name.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 50) || 'chat'}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

const exported = ({title, time, settings, items}) => ({title, time: new Date(time).toISOString(), settings, messages: items});

function remove() {
  if ($('delete').textContent === 'Delete') return void ($('delete').textContent = 'Really delete?');
  chats.delete(chat.id);
  try { storage().removeItem(kPrefix + chat.id); } catch { /* it was never there */ }
  chat.items = [];  // so that the end of a reply under way keeps nothing
  open(new_chat());
  for (const one of [...chats.values()]) if (!one.kept) keep(one);  // there may be room now
  $('input').focus();
}

function load_chats() {
  try {
    for (const key of Object.keys(storage()).filter(key => key.startsWith(kPrefix))) {
      const id = key.slice(kPrefix.length), found = read_chat(id, storage().getItem(key));
      if (found) chats.set(id, found);
    }
  } catch (error) {
    say(`the browser keeps no chats: ${error.message}`, true);
  }
  const found = chats.get(location.hash.slice(1));
  if (found) open(found); else list();
}

addEventListener('storage', ({key, newValue}) => {  // another tab has kept or deleted a chat
  if (key !== null && !key.startsWith(kPrefix)) return;
  for (const id of key === null ? [...chats.keys()] : [key.slice(kPrefix.length)]) {
    const found = newValue && read_chat(id, newValue), mine = chats.get(id);
    if (!found && mine === chat) chat.kept = false;  // it goes on in this tab
    else if (mine && !mine.kept) continue;           // it becomes a copy, when it can be kept
    else if (!found) chats.delete(id);
    else if (mine !== chat) chats.set(id, found);
    else if (!running && !$('log').querySelector('form')) chats.set(id, found), open(found);
  }
  list();
});

// --- the conversation
let at_end = true;  // whether the end of the conversation is in sight

function follow(change) {  // keeps it there, if it was
  look_where();
  change();
  stay();
}

function look_where() { at_end = $('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 40; }
function stay() { if (at_end) $('log').scrollTop = $('log').scrollHeight; }

class View {  // an item on the page
  constructor(item) {
    this.item = item, this.calls = [];
    this.box = add($('log'), 'article', item.role);
    this.box.view = this;
    const head = add(this.box, 'div', 'head');
    add(head, 'h2', '', names[item.role]);
    add_button(head, 'Copy', button => copy(item.content || JSON.stringify(item.tool_calls ?? ''), button));
    if (!replies.includes(item.role)) add_button(head, 'Edit', () => this.edit(item.content));
    add_button(head, 'Regenerate', regenerate).className = 'again';
    this.shown = add(this.box, 'div', 'shown');
    if (item.reasoning) this.grow('reasoning', item.reasoning);
    if (item.content) this.grow('content', item.content);
    for (const [index, call] of (item.tool_calls ?? []).entries()) this.call(index, call.function);
  }
  grow(kind, text) {
    if (!this[kind]) {
      const folded = kind === 'reasoning' ? add(this.shown, 'details', kind) : null;
      if (folded) add(folded, 'summary', '', 'Reasoning');
      const marked = !folded && this.item.role === 'assistant' && !this.item.plain;
      const box = add(folded ?? this.shown, 'div', marked ? 'markdown' : 'text');
      this[kind] = marked ? new Markdown(box) : {write: more => box.firstChild.appendData(more), end() {}};
    }
    this[kind].write(text);
  }
  call(index, {name = '', arguments: given = ''}) {
    if (!this.calls[index]) {
      const box = add(this.shown, 'div', 'call', 'Call ');
      this.calls[index] = {name: add(box, 'b').firstChild, given: add(box, 'pre').firstChild};
    }
    this.calls[index].name.appendData(name), this.calls[index].given.appendData(given);
  }
  finish() {
    this.content?.end();
    if (this.item.foot) add(this.shown, 'p', 'foot', this.item.foot);
    this.box.setAttribute('aria-busy', 'false');
  }
  edit(text) {  // what is sent takes the place of this item and of all behind it
    if (running || this.box.querySelector('form')) return;
    const form = document.createElement('form'), field = add(form, 'textarea'), row = add(form, 'div', 'row');
    this.shown.before(form);
    field.setAttribute('aria-label', 'Edited message');
    field.value = text;
    add(row, 'button', '', 'Send').type = 'submit';
    add_button(row, 'Cancel', () => form.remove());
    form.addEventListener('submit', event => {
      event.preventDefault();
      send(field.value, chat.items.indexOf(this.item));
    });
    sends_by_keys(field, () => form.remove());
    grow(field), field.focus();
  }
}

class Reply {  // what an event stream brings, into an item and its view
  constructor(item) {
    this.item = item, this.view = new View(item);
    this.view.box.setAttribute('aria-busy', 'true');
    this.begin = performance.now(), this.first = 0, this.tokens = 0;
  }
  grow(kind, text) {
    this.item[kind] = (this.item[kind] ?? '') + text;
    this.view.grow(kind, text);
  }
  call(part) {
    const calls = this.item.tool_calls ??= [];
    const {function: whole} = calls[part.index] ??= {id: part.id, type: 'function', function: {name: '', arguments: ''}};
    whole.name += part.function?.name ?? '', whole.arguments += part.function?.arguments ?? '';
    this.view.call(part.index, part.function ?? {});
  }
  take(event) {
    if (event.usage) this.tokens = event.usage.completion_tokens;
    for (const choice of event.choices) {
      const delta = choice.delta ?? {content: choice.text};
      if (delta.content || delta.reasoning_content || delta.tool_calls) this.first ||= performance.now();
      if (delta.reasoning_content) this.grow('reasoning', delta.reasoning_content);
      if (delta.content) this.grow('content', delta.content);
      for (const part of delta.tool_calls ?? []) this.call(part);
      this.reason = choice.finish_reason ?? this.reason;
    }
  }
  end(reason) {
    const seconds = (performance.now() - this.begin) / 1000, foot = [];
    if (this.tokens) foot.push(`${this.tokens} tokens`);
    if (this.first) foot.push(`first after ${((this.first - this.begin) / 1000).toFixed(2)} s`);
    if (this.tokens) foot.push(`${(this.tokens / seconds).toFixed(1)} tokens/s`);
    if (reason !== 'stop' && reason !== 'tool_calls') foot.push(`ended: ${reason}`);
    this.item.foot = foot.join(', ');
    if (this.reason) delete this.item.cut;
    this.view.finish();
  }
}

function run(controller) {
  running = controller;
  $('stop').disabled = !controller, $('send').disabled = Boolean(controller);
  document.body.classList.toggle('running', Boolean(controller));
}

function wanting() {  // calls of the last reply that have no result yet; one that was cut off is none
  const from = chat.items.findLastIndex(item => item.role === 'assistant'), last = chat.items[from];
  const results = chat.items.slice(from).filter(item => item.role === 'tool');
  return last?.cut ? [] : (last?.tool_calls ?? []).slice(results.length);
}

function show_what_is_asked() {
  const is_chat = $('mode').value === 'chat', calls = wanting();
  $('asks').textContent = !is_chat ? 'Prompt' : calls.length ? `Result of ${calls[0].function.name}` : 'Message';
  for (const id of ['system', 'tools', 'tool_choice']) $(id).disabled = !is_chat;
}

function conversation() {  // as the server takes it
  const said = chat.items.filter(item => ['user', 'tool'].includes(item.role)
    || (item.role === 'assistant' && (item.content || (item.tool_calls && !item.cut))));
  const system = $('system').value.trim() ? [{role: 'system', content: $('system').value}] : [];
  return [...system, ...said.map(({role, content, tool_calls, tool_call_id, cut}) =>
    ({role, content, tool_call_id, tool_calls: cut ? undefined : tool_calls}))];
}

function wanted_settings(is_chat) {  // null where one is wrong, which is said
  try {
    return settings(is_chat);
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

// Sends what was typed as item `at`: a prompt, a message, or the result of a call; what was behind it goes. The reply
// comes when no call wants its result.
async function send(text, at = chat.items.length) {
  if (running || !text.trim()) return;
  const before = chat.items, calls = wanting(), now = calls.length ? {role: 'tool', tool_call_id: calls[0].id} : {role: 'user'};
  const {role, tool_call_id} = before[at] ?? ($('mode').value === 'chat' ? now : {role: 'prompt'});
  const body = wanted_settings(role !== 'prompt');
  if (!body) return;
  say('');
  const item = {role, content: text, tool_call_id};
  chat.items = [...before.slice(0, at), item];
  for (const box of [...$('log').children].slice(at)) box.remove();
  new View(item).finish();
  $('log').scrollTop = $('log').scrollHeight;
  if (at === before.length) $('input').value = '', grow($('input'));
  chat.title ||= text.trim().split('\n')[0].slice(0, 60);
  show_what_is_asked();
  if (role === 'tool' && wanting().length) return keep(chat);
  if (await answer(body, before)) return;
  if (!before.length) chat.title = '';
  if (at < before.length) $('log').children[at].view.edit(text);
  else $('input').value = text, grow($('input'));
}

function regenerate() {
  const at = chat.items.findLastIndex(item => !replies.includes(item.role)), before = chat.items;
  if (before.at(-1).role === 'tool' && wanting().length) return say('a call wants its result first', true);
  const body = !running && wanted_settings(before[at].role !== 'prompt');
  if (!body) return;
  say('');
  chat.items = before.slice(0, at + 1);
  for (const box of [...$('log').children].slice(at + 1)) box.remove();
  return answer(body, before);
}

// The reply to the last item. False: nothing was said and the chat has the items `before` again.
async function answer(body, before) {
  const mine = chat, controller = new AbortController(), asked = mine.items.at(-1), is_chat = asked.role !== 'prompt';
  let reply;
  Object.assign(body, is_chat ? {messages: conversation()} : {prompt: asked.content});
  for (const id of kSettings) mine.settings[id] = $(id).value;
  run(controller);
  try {
    const path = is_chat ? '/v1/chat/completions' : '/v1/completions';
    const response = await ask(path, {method: 'POST', body: JSON.stringify(body), signal: controller.signal});
    if (!response.ok) throw await failure(response);
    const item = {role: is_chat ? 'assistant' : 'completion', content: '', plain: body.response_format ? true : undefined, cut: true};
    mine.items.push(item);
    follow(() => { reply = new Reply(item); });
    keep(mine);
    for await (const some of events(response)) follow(() => some.forEach(event => reply.take(event)));
    follow(() => reply.end(reply.reason ?? 'cut off'));
  } catch (error) {
    const stopped = controller.signal.aborted;
    follow(() => reply?.end(stopped ? 'stopped' : error.message));
    say(stopped ? 'stopped' : error.message, !stopped);
  }
  run(null);
  if (!reply && mine === chat) mine.items = before, draw();
  else keep(mine);
  show_what_is_asked();
  return reply || mine !== chat;
}

// --- what the server has
async function look() {
  try {
    const response = await ask('/server_info');
    if (response.status === 401) show_side(true), $('settings').open = true;
    if (!response.ok) throw await failure(response);
    const info = await response.json();
    $('model').replaceChildren(...info.model.map(name => new Option(name)));
    if (!info.chat) $('mode').value = 'text';
    $('mode').options[0].disabled = !info.chat;
    if (!info.chat) say('this model has no chat template: completions only');
  } catch (error) {
    say(error.message, true);
  }
  show_what_is_asked();
}

// --- load, from /metrics
const kPoints = 120;  // seconds, the width of the charts
let last = null, first_token = null;

class Chart {
  constructor(id, floor, digits = 0) {
    this.floor = floor, this.digits = digits;  // least height, decimals of the caption, which says the newest values
    const paths = $(id).querySelectorAll('polyline');
    this.lines = [...$(id).querySelectorAll('b')].map((value, i) => ({value, points: [], path: paths[i]}));
  }
  push(...values) {
    this.lines.forEach((line, i) => {
      line.points = [...line.points, values[i]].slice(-kPoints);
      line.value.textContent = values[i] === null ? '\u2013' : values[i].toFixed(this.digits);
    });
    const most = Math.max(this.floor, ...this.lines.flatMap(line => line.points));
    for (const line of this.lines) {
      const from = kPoints - line.points.length;
      const at = line.points.map((value, i) => value === null ? '' : `${from + i},${96 - 92 * value / most}`);
      line.path.setAttribute('points', at.join(' '));
    }
  }
}

const charts = {requests: new Chart('requests', 1), speed: new Chart('speed', 10, 1), cache: new Chart('cache', 100, 1),
  first: new Chart('first', 10, 1)};

async function measure() {
  const response = await fetch('/metrics', {cache: 'no-store', credentials: 'omit'});
  const now = {at: performance.now() / 1000};
  for (const line of (await response.text()).split('\n')) {
    const found = line.match(/^(?:octet_|vllm:)(\w+)(?:\{.*\})? (\S+)$/);
    if (found) now[found[1]] = (now[found[1]] ?? 0) + Number(found[2]);  // over all labels
  }
  const grown = name => now[name] - last[name], first = 'time_to_first_token_seconds';
  charts.requests.push(now.num_requests_running, now.num_requests_waiting);
  charts.cache.push(100 * now.kv_cache_usage_perc);
  if (last) {
    charts.speed.push(grown('generation_tokens_total') / (now.at - last.at));
    const begun = grown(first + '_count');
    if (begun > 0) first_token = 1000 * grown(first + '_sum') / begun;
    charts.first.push(first_token);  // the newest that is known
  }
  last = now;
}

async function watch() {
  if ($('load').open && !$('side').hidden && !document.hidden) await measure().catch(() => { last = null; });
  setTimeout(watch, 1000);
}

// --- what the user does
const small = matchMedia('(max-width: 760px)');

function show_side(shown) {
  $('side').hidden = !shown;
  $('menu').setAttribute('aria-expanded', shown);
}

function sends_by_keys(field, cancel) {
  field.addEventListener('input', () => grow(field));
  field.addEventListener('keydown', event => {
    if (event.key === 'Escape') cancel?.();
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    field.form.requestSubmit();
  });
}

sends_by_keys($('input'));
$('composer').addEventListener('submit', event => { event.preventDefault(), send($('input').value); });
document.addEventListener('keydown', event => { if (event.key === 'Escape') running?.abort(); });
$('log').addEventListener('scroll', look_where);
new ResizeObserver(stay).observe($('log'));
$('stop').addEventListener('click', () => { running?.abort(), $('input').focus(); });
$('mode').addEventListener('change', show_what_is_asked);
$('key').addEventListener('change', () => { say(''), look(); });
$('menu').addEventListener('click', () => show_side($('side').hidden));
$('fresh').addEventListener('click', () => { open(new_chat()), $('input').focus(); });
$('title').addEventListener('change', () => { chat.title = $('title').value.trim(), keep(chat); });
$('export').addEventListener('click', () => save_file(chat.title, exported(chat)));
$('export-all').addEventListener('click', () => save_file('chats', newest_first().map(exported)));
$('delete').addEventListener('click', remove);
$('delete').addEventListener('blur', () => { $('delete').textContent = 'Delete'; });
document.addEventListener('visibilitychange', () => { if (document.hidden && running) keep(chat); });
addEventListener('beforeunload', event => { if ([...chats.values()].some(one => !one.kept)) event.preventDefault(); });
if (small.matches) show_side(false), $('settings').open = $('load').open = false;
load_chats();
look();
watch();
if (!small.matches) $('input').focus();
