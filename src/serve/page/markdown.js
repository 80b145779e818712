// Markdown as it comes, a piece at a time. DOM nodes are made of it and text goes into text nodes alone: HTML in it is
// shown, not read. The last paragraph, row or line of code is drawn again when more comes, what stands before it is not.
const kDrawnAgain = 1000;  // characters at most; emphasis does not reach over a cut made for it
const kLongRow = 8000;     // of a table
const kDeepest = 12;       // quotes and lists in each other, emphasis in emphasis
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/, kFence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/, kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|(\d{1,9})[.)])(?:[ \t]+|$)/;
const kColumns = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*(?:\|\s*)?$/;  // the line below the head of a table
const kOnlyMarks = /^[\s>#*_+=|:`~.)\d-]*$/;  // a line that may still become anything
const kInline = new RegExp([
  /(\\\([^]{0,999}?\\\)|\\\[[^]{0,999}?\\\]|\$\$[^]{1,999}?\$\$)/,  // a formula, shown as it is written
  /\\([!-/:-@[-`{-~])/, /(`+)/, /(\*+|_+|~~+)/,
  /!?\[((?:\\.|[^[\]\\]|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/,
  /(https?:\/\/[^\s<>"`|]+)/].map(part => part.source).join('|'), 'g');
const kBegunLink = /!?\[([^[\]]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\([^()\s]*|\s+["'][^"']*["']?)?$/;

const width = text => text.match(/^[ \t]*/)[0].replaceAll('\t', '    ').length;

function unindent(text, columns) {
  for (; columns > 0 && /^[ \t]/.test(text); text = text.slice(1)) columns -= text[0] === '\t' ? 4 : 1;
  return text;
}

function cut_of(text) {  // where a long text is cut: behind a space where nothing seems open, never in a character
  for (let at = kDrawnAgain; (at = text.lastIndexOf(' ', at - 1)) > kDrawnAgain / 2;)
    if ((text.slice(0, at).match(/\*+|`+|[[\]]/g) ?? []).length % 2 === 0) return at + 1;
  const space = text.lastIndexOf(' ', kDrawnAgain - 1);
  return space > 0 ? space + 1 : /[\ud800-\udbff]/.test(text[kDrawnAgain - 1]) ? kDrawnAgain - 1 : kDrawnAgain;
}

const cells = row => row.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').split(/(?<!\\)\|/)
  .map(cell => cell.trim().replaceAll('\\|', '|'));

// The spans of a text. `open`: more of it may come, so what is not closed yet counts as if it was.
function add_inline(parent, text, open = false, in_link = false) {
  if (open) text = text.replace(/[*_~`]+$/, '').replace(kBegunLink, '$1');
  const items = [], unclosed = new Set();  // of text, nodes and runs of * _ ~; lengths of ` that close nowhere
  let at = 0;
  const put_text = end => { if (end > at) items.push({node: document.createTextNode(text.slice(at, end))}); };
  const put = (begin, end, node) => { put_text(begin), items.push({node}), at = kInline.lastIndex = end; };
  for (kInline.lastIndex = 0;;) {
    const found = kInline.exec(text);
    if (!found) break;
    const [all, formula, escaped, ticks, run, label, target, bare] = found, begin = found.index, end = begin + all.length;
    if (formula ?? escaped) {
      put(begin, end, document.createTextNode(formula ?? escaped));
    } else if (ticks) {
      const close = new RegExp(`(?<!\`)${ticks}(?!\`)`, 'g');
      close.lastIndex = end;
      const to = unclosed.has(ticks.length) ? null : close.exec(text)?.index ?? null;
      if (to === null) unclosed.add(ticks.length);
      if (to === null && !open) continue;
      const code = document.createElement('code');
      const inner = text.slice(end, to ?? text.length);
      code.textContent = inner.startsWith(' ') && inner.endsWith(' ') && inner.trim() ? inner.slice(1, -1) : inner;
      put(begin, to === null ? text.length : to + ticks.length, code);
    } else if (run) {
      const before = text[begin - 1] ?? ' ', after = text[end] ?? ' ', mark = /[\p{P}\p{S}]/u;
      const left = !/\s/.test(after) && (!mark.test(after) || /\s/.test(before) || mark.test(before));
      const right = !/\s/.test(before) && (!mark.test(before) || /\s/.test(after) || mark.test(after));
      const inner = run[0] === '_' && left && right;  // of a_word
      put_text(begin);
      items.push({run: run[0], count: run.length, length: run.length, opens: left && (!inner || mark.test(before)),
        closes: right && (!inner || mark.test(after)), in_word: /\w/.test(before)});
      at = end;
    } else if (!in_link) {
      const href = target ?? bare.replace(/[.,;:!?*_~'\]]+$/, '').replace(/^([^(]*)\)+$/, '$1');
      if (!/^(https?:\/\/|mailto:)/i.test(href)) continue;  // shown as it is written
      const link = document.createElement('a');
      Object.assign(link, {href, title: href, target: '_blank', rel: 'noopener noreferrer'});
      if (target === undefined) link.textContent = href;
      else add_inline(link, label || href, false, true);
      put(begin, target === undefined ? begin + href.length : end, link);
    }
  }
  put_text(text.length);
  emphasize(items, open);
  for (const {node, run, count} of items) parent.append(node ?? run.repeat(count));
}

// Makes nodes of what stands between runs that open and close, as CommonMark pairs them.
function emphasize(items, open) {
  const below = {};  // kind of a closer -> where no opener stands below
  const wrap = (from, to, run, count) => {
    const node = document.createElement(run === '~' ? 'del' : count === 2 ? 'strong' : 'em');
    const inner = items.splice(from, to - from);
    for (const item of inner) node.append(item.node ?? item.run.repeat(item.count));
    items.splice(from, 0, {node, depth: 1 + Math.max(0, ...inner.map(item => item.depth ?? 0))});
    for (const kind in below) if (below[kind] > from) below[kind] = Math.max(from, below[kind] - inner.length + 1);
  };
  for (let i = 0; i < items.length; ++i) {
    const close = items[i], kind = `${close.run}${close.opens}${close.length % 3}`;
    if (!close.closes) continue;
    let depth = 0;
    for (let j = i - 1; j >= (below[kind] ?? 0) && close.count && depth < kDeepest; --j) {
      const from = items[j];
      depth = Math.max(depth, from.depth ?? 0);
      if (from.run !== close.run || !from.opens || !from.count) continue;
      if ((from.closes || close.opens) && (from.length + close.length) % 3 === 0 && close.length % 3) continue;
      const count = Math.min(2, from.count, close.count);
      wrap(j + 1, i, close.run, count);
      from.count -= count, close.count -= count, i = j + 2, ++depth;
      if (from.count) ++j;  // it has more to give
    }
    if (close.count) below[kind] = i;
  }
  for (let j = items.length - 1, left = kDeepest; open && j >= 0 && left; --j) {
    const {run, count, opens, in_word} = items[j];
    if (!count || !opens || in_word) continue;
    wrap(j + 1, items.length, run, Math.min(2, count));
    items[j].count = 0, --left;
  }
}

class Markdown {
  constructor(root) {
    this.stack = [{node: root}];  // the open quotes and items
    this.leaf = null;             // the open text, code or table in the innermost
    this.tail = '';               // the line that is not whole
    this.before = null;           // what was, before the tail was drawn
    this.within = false;          // the tail goes on with a long line whose begin is drawn for good
  }
  write(text) {
    this.take_back();
    const lines = (this.tail + text).split('\n');
    lines.forEach((line, i) => {
      const most = this.leaf?.rows || /^\s*\|/.test(line) ? kLongRow : kDrawnAgain;
      for (let cut; line.length > most; line = line.slice(cut), this.within = true)
        this.line(line.slice(0, cut = cut_of(line)), '');
      if (i < lines.length - 1) this.line(line.replace(/\r$/, ''), '\n');
      else this.tail = line;
    });
    const marks = this.leaf?.code ? /^[`~]*$/ : kOnlyMarks;
    if (this.within || !marks.test(this.tail.trim())) {
      const grows = this.stack.flatMap(({node}) => node.lastElementChild ? [node, node.lastElementChild] : [node]);
      if (this.leaf?.rows) grows.push(this.leaf.rows);
      this.before = {stack: [...this.stack], leaf: this.leaf && {...this.leaf}, code: this.leaf?.code?.length,
        sizes: grows.map(node => [node, node.childNodes.length])};
      this.line(this.tail, '');
    }
    if (this.leaf?.text) this.draw(true);
  }
  end() {
    this.take_back();
    if (this.tail) this.line(this.tail, '\n');
    this.tail = '';
    this.close();
  }
  take_back() {
    if (!this.before) return;
    const {stack, leaf, code, sizes} = this.before;
    Object.assign(this, {stack, leaf, before: null});
    for (const [node, size] of sizes) while (node.childNodes.length > size) node.lastChild.remove();
    if (leaf?.code) leaf.code.deleteData(code, leaf.code.length - code);
  }
  close() {
    if (this.leaf?.text) this.draw(false);
    this.leaf = null;
  }
  top() { return this.stack.at(-1).node; }
  line(text, end) {
    if (this.within) {
      this.within = !end;
      return this.leaf?.code ? this.leaf.code.appendData(text + end) : this.add_text(text, '');
    }
    let rest = text, depth = 1;
    for (; depth < this.stack.length; ++depth) {
      const {quote, least, indent} = this.stack[depth];
      if (quote ? !kQuote.test(rest) : rest.trim() && width(rest) < least && !this.leaf?.code) break;
      rest = quote ? rest.replace(kQuote, '') : unindent(rest, indent);
    }
    const inside = depth === this.stack.length;
    if (this.leaf?.code && inside) return this.code_line(rest, end);
    if (this.leaf?.rows && inside && rest.includes('|')) return this.add_row(rest, !end);
    if (this.leaf?.text && inside && this.begin_table(rest)) return;
    if (!rest.trim()) return this.close(), void (this.stack.length = depth);
    if (this.leaf?.text && !this.interrupts(rest, inside)) return this.add_text(rest, '\n');
    this.close();
    this.stack.length = depth;
    rest = this.begin_containers(rest);
    const fence = rest.match(kFence), heading = rest.match(kHeading);
    if (kRule.test(rest)) add(this.top(), 'hr');
    else if (heading) add_inline(add(this.top(), `h${Math.min(6, heading[1].length + 2)}`), (heading[2] ?? '').trim().replace(/(?:^|\s)#+$/, ''), !end);
    else if (fence) this.begin_code(fence, width(rest));
    else if (rest.trim()) this.add_text(rest, '');
  }
  interrupts(rest, inside) {  // whether this line ends a paragraph
    const item = rest.match(kItem);  // in a paragraph, only 1. begins a list of numbers
    return kRule.test(rest) || kHeading.test(rest) || kFence.test(rest) || kQuote.test(rest)
      || (item && !(inside && (Number(item[3] ?? 1) !== 1 || item[0].length === rest.length)));
  }
  begin_containers(rest) {
    while (this.stack.length < kDeepest) {
      const quote = rest.match(kQuote), item = kRule.test(rest) ? null : rest.match(kItem), top = this.top();
      if (quote) {
        this.stack.push({quote, node: add(top, 'blockquote')});
      } else if (item) {
        const name = item[3] ? 'OL' : 'UL';
        let list = top.lastElementChild;
        if (list?.tagName !== name) {
          list = add(top, name);
          if (item[3]) list.start = Number(item[3]);
        }
        this.stack.push({node: add(list, 'li'), least: item[1].length + 2, indent: item[0].length});
      } else {
        break;
      }
      rest = rest.slice((quote ?? item)[0].length);
    }
    return rest;
  }
  add_text(text, between) {
    if (this.leaf && !this.leaf.text) this.close();
    this.leaf ??= {text: '', node: add(this.top(), 'div', 'paragraph'), kept: 0};
    this.leaf.text += between + text.replace(/^ {1,3}(?! )/, '');
    while (this.leaf.text.length > kDrawnAgain) {
      const all = this.leaf.text, cut = cut_of(all);
      this.leaf.text = all.slice(0, cut);
      this.draw(false);
      Object.assign(this.leaf, {text: all.slice(cut), kept: this.leaf.node.childNodes.length});
    }
  }
  draw(open) {
    const {node, kept, text} = this.leaf;
    while (node.childNodes.length > kept) node.lastChild.remove();
    if (open && !kept && /^\|[^\n]*$/.test(text)) add_cells(add_table(node).head, 'th', cells(text), [], true);
    else add_inline(node, text, open);
  }
  begin_table(rest) {  // where `rest` makes the last line of the text the head of a table
    const lines = this.leaf.text.split('\n'), head = cells(lines.pop()), columns = cells(rest);
    if (!rest.includes('|') || !kColumns.test(rest) || head.length !== columns.length) return false;
    this.leaf.text = lines.join('\n');
    this.draw(false);
    const align = columns.map(column => (column.startsWith(':') ? 1 : 0) + (column.endsWith(':') ? 2 : 0));
    const {head: row, rows} = add_table(this.leaf.node);
    add_cells(row, 'th', head, align);
    this.leaf = {rows, align};
    return true;
  }
  add_row(rest, open) {
    const {rows, align} = this.leaf, found = cells(rest).slice(0, align.length), row = add(rows, 'tr');
    add_cells(row, 'td', found, align, open);
    add_cells(row, 'td', align.slice(found.length).map(() => ''), []);
  }
  begin_code([, fence, info], indent) {
    const box = add(this.top(), 'div', 'code'), bar = add(box, 'div', 'bar');
    add(bar, 'span', '', info.trim().split(/\s/)[0] || 'text');
    const code = add(add(box, 'pre'), 'code').firstChild;
    add_button(bar, 'Copy', button => copy(code.data, button));
    this.leaf = {code, fence, indent};
  }
  code_line(rest, end) {
    const {code, fence, indent} = this.leaf, text = unindent(rest, indent), close = text.match(/^ {0,3}(`{3,}|~{3,})\s*$/);
    if (end && close?.[1].startsWith(fence)) this.close();
    else code.appendData(text + end);
  }
}

function add_table(parent) {
  const table = add(add(parent, 'div', 'table'), 'table');
  return {head: add(add(table, 'thead'), 'tr'), rows: add(table, 'tbody')};
}

function add_cells(row, tag, texts, align, open = false) {
  texts.forEach((text, i) => {
    add_inline(add(row, tag, ['', '', 'right', 'center'][align[i] ?? 0]), text, open && i === texts.length - 1);
  });
}
