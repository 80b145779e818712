'use strict';
// Text of the model, of the server and of the user enters the page as text only, never as HTML.
const $ = id => document.getElementById(id);
let messages = [];   // of the conversation, as the server takes them
let running = null;  // the AbortController of the reply under way
let calls = [];      // of the last reply, which want their results

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

function ask(path, options = {}) {
  const headers = {'Content-Type': 'application/json'};
  if ($('key').value) headers.Authorization = 'Bearer ' + $('key').value;
  return fetch(path, {...options, headers, cache: 'no-store', credentials: 'omit'});
}

async function failure(response) {
  const body = await response.json().catch(() => ({}));
  return new Error(body.error?.message ?? `the server answers ${response.status}`);
}

// --- requests
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

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, '');
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// --- the conversation
const names = {user: 'You', assistant: 'Model', tool: 'Result of a call', prompt: 'Prompt', completion: 'Completion'};

function article(role) {
  const box = add($('log'), 'article', role);
  add(box, 'h2', '', names[role]);
  return box;
}

function follow(change) {  // keeps the end in sight, if it was
  const log = $('log'), at_end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (at_end) log.scrollTop = log.scrollHeight;
}

class Reply {
  constructor(chat) {
    this.box = article(chat ? 'assistant' : 'completion');
    this.box.setAttribute('aria-busy', 'true');
    this.content = '', this.calls = [], this.begin = performance.now(), this.first = 0, this.tokens = 0;
  }
  grow(kind, text) {
    if (!this[kind]) {
      const parent = kind === 'thought' ? add(this.box, 'details', 'reasoning') : this.box;
      if (kind === 'thought') add(parent, 'summary', '', 'Reasoning');
      this[kind] = add(parent, 'div', 'text').firstChild;
    }
    this[kind].appendData(text);
  }
  call(part) {
    const call = this.calls[part.index] ??= {id: part.id, type: 'function', function: {name: '', arguments: ''}};
    if (!call.text) {
      const box = add(this.box, 'div', 'call', 'Call ');
      Object.defineProperties(call, {title: {value: add(box, 'b').firstChild}, text: {value: add(box, 'pre').firstChild}});
    }
    call.function.name += part.function?.name ?? '', call.title.appendData(part.function?.name ?? '');
    call.function.arguments += part.function?.arguments ?? '', call.text.appendData(part.function?.arguments ?? '');
  }
  take(event) {
    if (event.usage) this.tokens = event.usage.completion_tokens;
    for (const choice of event.choices) {
      const delta = choice.delta ?? {content: choice.text};
      if (delta.content || delta.reasoning_content || delta.tool_calls) this.first ||= performance.now();
      if (delta.reasoning_content) this.grow('thought', delta.reasoning_content);
      if (delta.content) this.grow('answer', delta.content), this.content += delta.content;
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
    add(this.box, 'p', 'foot', foot.join(', '));
    this.box.setAttribute('aria-busy', 'false');
  }
}

function run(controller) {
  running = controller;
  $('stop').disabled = !controller, $('send').disabled = Boolean(controller);
}

function show_what_is_asked() {
  const chat = $('mode').value === 'chat';
  $('asks').textContent = !chat ? 'Prompt' : calls.length ? `Result of ${calls[0].function.name}` : 'Message';
  for (const id of ['system', 'tools', 'tool_choice']) $(id).disabled = !chat;
}

// Sends what was typed: a prompt, a message, or the result of a call; the reply comes when no call wants its result.
async function send() {
  const text = $('input').value, chat = $('mode').value === 'chat';
  if (running || !text.trim()) return;
  let body, reply;
  try {
    body = settings(chat);
  } catch (error) {
    return say(error.message, true);
  }
  say('');
  const conversation = messages, before = {count: messages.length, calls}, role = !chat ? 'prompt' : calls.length ? 'tool' : 'user';
  const asked = article(role);
  follow(() => add(asked, 'div', 'text', text));
  $('log').scrollTop = $('log').scrollHeight, $('input').value = '';
  if (role === 'tool') messages.push({role, tool_call_id: calls[0].id, content: text}), calls = calls.slice(1);
  if (role === 'user') messages.push({role, content: text});
  show_what_is_asked();
  if (calls.length) return;
  const system = $('system').value.trim() ? [{role: 'system', content: $('system').value}] : [];
  Object.assign(body, chat ? {messages: [...system, ...messages]} : {prompt: text});
  const controller = new AbortController();
  run(controller);
  try {
    const path = chat ? '/v1/chat/completions' : '/v1/completions';
    const response = await ask(path, {method: 'POST', body: JSON.stringify(body), signal: controller.signal});
    if (!response.ok) throw await failure(response);
    follow(() => { reply = new Reply(chat); });
    for await (const event of events(response)) follow(() => reply.take(event));
    follow(() => reply.end(reply.reason ?? 'cut off'));
  } catch (error) {
    const stopped = controller.signal.aborted;
    follow(() => reply?.end(stopped ? 'stopped' : error.message));
    say(stopped ? 'stopped' : error.message, !stopped);
    if (!reply) {  // nothing was said: the text is there to be sent again
      asked.remove(), conversation.length = before.count, calls = before.calls, $('input').value = text;
    }
  }
  run(null);
  if (chat && reply) {
    const whole = reply.reason ? reply.calls : [];  // a call that was cut off is none
    if (reply.content || whole.length)
      conversation.push({role: 'assistant', content: reply.content, ...(whole.length ? {tool_calls: whole} : {})});
    if (conversation === messages) calls = whole;
  }
  show_what_is_asked();
}

// --- what the server has
async function look() {
  try {
    const response = await ask('/server_info');
    if (!response.ok) throw await failure(response);
    const info = await response.json();
    $('model').replaceChildren(...info.model.map(name => new Option(name)));
    if (!info.chat) $('mode').value = 'text';
    $('mode').options[0].disabled = !info.chat;
    say(info.chat ? '' : 'this model has no chat template: completions only');
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
  if ($('load').open && !document.hidden) await measure().catch(() => { last = null; });
  setTimeout(watch, 1000);
}

// --- what the user does
$('composer').addEventListener('submit', event => { event.preventDefault(); send(); });
$('input').addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener('keydown', event => { if (event.key === 'Escape') running?.abort(); });
$('stop').addEventListener('click', () => { running?.abort(); $('input').focus(); });
$('mode').addEventListener('change', show_what_is_asked);
$('key').addEventListener('change', look);
$('fresh').addEventListener('click', () => {
  running?.abort();
  messages = [], calls = [];
  $('log').replaceChildren();
  say('');
  show_what_is_asked();
  $('input').focus();
});
if (matchMedia('(max-width: 760px)').matches) $('settings').open = $('load').open = false;
look();
watch();
$('input').focus();
