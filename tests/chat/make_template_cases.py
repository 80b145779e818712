#!/usr/bin/env python3
"""Writes src/chat/testdata/jinja_cases.jsonl: templates and what Jinja2 3.1 renders from them, set up as transformers
sets it up, for src/chat/jinja_test.cc. The first line: the bindings of all; the others: {template, expected, variables} or, where
Jinja2 raises, {template, error}.

Needs jinja2:    python3 tests/chat/make_template_cases.py
Read the difference before committing it: an expected text changes only with the templates below.
"""
import copy
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

OUT = pathlib.Path(__file__).resolve().parents[2] / "src/chat/testdata/jinja_cases.jsonl"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


BINDINGS = {
    "s": "Héllo wörld", "t": "  a b\tc\n ", "n": 7, "f": 2.5, "yes": True, "no": False, "nil": None, "empty": "",
    "words": ["pear", "Apple", "fig", "apple"], "nums": [3, 1, 2], "nested": [[1, [2, "x"]], {"k": "v"}],
    "user": {"name": "Ann", "age": 30, "tags": ["a", "b"], "items": 5},
    "people": [{"name": "Bo", "age": 3, "on": True}, {"name": "al", "age": 1, "on": False},
               {"name": "Cy", "age": 2, "on": True}],
    "odd": "q\"'\\ \n\té😀\u0007", "html": "<a href='x'>&\"</a>", "big": {str(i): i for i in range(40)},
    "num_text": " 42 ", "lines": "one\ntwo\r\nthree\n",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7.5 // 2, -7.5 % 2, 7 / 2, 6 / 3
2 ** 10, 2 ** -1, 2 ** 0.5, -2 ** 2
1e16, 1e15, 123456789.0, 1e-5, 0.0001, 1.5e300, 0.1 + 0.2, 3.0, -0.0
100000000000000000000.0, 1e22, 5e-324
0x1F, 0o17, 0b101, 1_000
true + true, true == 1, false == 0, 1 == 1.0, '1' == 1
'a' 'b' "c"
'a' * 3, 3 * 'ab', [1] * 3, 'x' * -1
[1, 2] + [3], (1,) + (2, 3)
(1,), (), (1, 2)
'a' < 'b', 'b' > 'a', [1, 2] < [1, 3], 1 < 2 < 3, 1 < 3 < 2, 1 <= 1.0
'a' in 'abc', 'd' not in 'abc', 1 in [1, 2], 'name' in user, 3 in (1, 2)
not 1, not not 'x', 1 and 2, 0 and 2, 0 or 'x', '' or none, 1 or 2 and 3
'%s is %d' % ('x', 3)
'%5.2f|%-6s|%06d|%+d|%x|%%' % (3.14159, 'ab', 42, 7, 255)
'%(a)s-%(b)s' % {'a': 1, 'b': 'z'}
'%r %s' % ('x', [1, 'y'])
'%s' % 5
s[0], s[-1], s[1:4], s[::-1], s[::2], s[4:1:-1], s[10:], s[:100]
nums[0], nums[-1], nums[1:], nums[::-1], nums[-2:], nums[5] is undefined
user.name, user['age'], user.missing is undefined, user['missing'] is defined
user.items is callable, user['items'], user.get('name'), user.get('x'), user.get('x', 4)
user.keys() | list, user.values() | list
user.items() | list
nested[0][1][1], nested[1].k, nested.1.k
undefined_name is undefined, undefined_name | default('d'), undefined_name ~ 'x', undefined_name or 'y'
undefined_name == other_undefined, undefined_name == none, undefined_name in [1]
undefined_name | length, undefined_name | list, undefined_name | join(','), not undefined_name
[undefined_name], {'a': undefined_name}
'yes' if n > 5 else 'no'
'yes' if n < 5
1 if yes else 2 if no else 3
s | upper, s | lower, s | title, s | capitalize, s | length
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase()
"it's a dog-day (big) x" | title
"it's a dog-day (big) x".title()
'STRASSE groß' | upper, 'ÀÉ' | lower, 'ÉCOLE' | capitalize
t | trim, t.strip(), t.lstrip(), t.rstrip(), 'xxaxx'.strip('x'), 'xyaxy'.lstrip('xy'), '\u00a0\u3000b'.strip()
'a,b,,c'.split(','), 'a,b,,c'.split(',', 1), 'a,b,,c'.rsplit(',', 2), t.split(), '  a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1), ' a  b c'.rsplit(), ''.split(), ''.split(','), 'abc'.split('abc')
lines.splitlines(), lines.splitlines(true)
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('-'), 'abc'.rpartition('-')
'banana'.replace('a', 'o'), 'banana'.replace('a', 'o', 2), 'abc'.replace('', '-'), 'abc'.replace('', '-', 2)
s | replace('l', 'L'), s | replace('o', '0', 1)
'hello'.find('l'), 'hello'.rfind('l'), 'hello'.find('z'), 'hello'.index('e'), 'hello'.count('l'), s.find('w')
'hello'.find('l', 3), 'hello'.find('l', -1), 'hello'.count('l', 0, 3)
'hello'.startswith('he'), 'hello'.endswith(('x', 'lo')), 'hello'.startswith('l', 2), ''.startswith('')
'42'.zfill(5), '-42'.zfill(5), 'a'.ljust(3) ~ '|', 'a'.rjust(3, '*'), 'ab'.center(5, '.'), 'abc'.center(6, '.')
'abc'.isalpha(), 'ab1'.isalnum(), '12'.isdigit(), ' '.isspace(), 'Ab'.islower(), 'AB'.isupper(), ''.isalpha()
'prefix-x'.removeprefix('prefix-'), 'x.txt'.removesuffix('.txt'), 'x'.removeprefix('')
'-'.join(['a', 'b']), ''.join(words)
'{} {}'.format(1, 'a'), '{1} {0}'.format('a', 'b'), '{a.name} {b[0]}'.format(a=user, b=nums)
'{:>6}|{:<6}|{:^6}|{:*^7}|{:06.2f}|{:d}|{:x}|{:+d}'.format('ab', 'cd', 'ef', 'mid', 3.14159, 42, 255, 5)
'{{}} {!r} {!s} {:.2f} {:5}|{:5}|{:e} {:.1%}'.format('x', 'y', 2.0, 3, 'z', 12345.678, 0.256)
'%s and %s' | format('a', 2)
words | sort, words | sort(case_sensitive=true), nums | sort(reverse=true), words | unique | list
people | sort(attribute='age') | map(attribute='name') | list
people | map(attribute='name') | map('upper') | join(', ')
people | selectattr('on') | map(attribute='name') | list, people | rejectattr('on') | list | length
people | selectattr('age', 'gt', 1) | map(attribute='name') | list
people | selectattr('name', 'equalto', 'Bo') | list
nil | select | list, false | map('upper') | list, nums | select('odd') | list, nums | reject('divisibleby', 3) | list, nums | select('>', 1) | list
nums | sum, nums | max, nums | min, words | max, words | min, people | sum(attribute='age'), nums | sum(start=10)
people | max(attribute='age'), people | map(attribute='zip', default='-') | list
words | first, words | last, words | length, words | count, words | reverse | list, s | reverse, s | first, s | last
[] | first is undefined, [] | max is undefined
words | join(', '), words | join, people | join('; ', attribute='name'), 'abc' | join('-')
nums | batch(2) | list, nums | batch(2, 0) | list, range(7) | slice(3) | list, range(7) | slice(3, 'x') | list
user | dictsort, {'b': 1, 'A': 2} | dictsort, {'b': 1, 'A': 2} | dictsort(true), {'b': 1, 'a': 2} | dictsort(by='value')
people | groupby('on') | map('last') | map('length') | list
user | items | list, 'abc' | list, user | list
-5 | abs, 2.5 | round, 3.5 | round, 2.345 | round(2), 2.341 | round(2, 'ceil'), 2.349 | round(2, 'floor'), 7 | round
'12' | int, 'x' | int, 'x' | int(3), '1.9' | int, 3.9 | int, '0x1f' | int(base=16), num_text | int, none | int, true | int
'1.5' | float, 'x' | float, 3 | float, '1e3' | float
n | string, nil | string, f | string, yes | string
default_me | default('x'), '' | default('x'), '' | default('x', true), none | default('x'), false | d('y', true)
'a long text that is cut somewhere' | truncate(15), 'a long text' | truncate(9, true), 'short' | truncate(9)
'a long text that is cut somewhere' | truncate(15, true, '~', 0)
'one two  three, it\'s' | wordcount, 'ab' | center(6) ~ '|'
lines | indent, lines | indent(2, true), 'a\n\nb' | indent(2), 'a\n\nb' | indent(2, false, true), 'a' | indent('> ', true)
(html | escape) ~ '', (html | e) ~ '', (html | safe) ~ ''
user | tojson, words | tojson, odd | tojson, nil | tojson, f | tojson, yes | tojson, s | tojson(ensure_ascii=true)
user | tojson(indent=2)
nested | tojson(indent=1)
[] | tojson(indent=2), {} | tojson(indent=2), [[]] | tojson(indent=2), nums | tojson(indent=0)
user | tojson(separators=(',', ':')), {'b': 1, 'a': [1.0, 1e20, none]} | tojson(sort_keys=true)
{1: 'a', none: 2, true: 3, 1.5: 4} | tojson
odd, [odd], [html], ['it\'s'], ["q\"", 'é', '\u200b', '\x01']
[1, 1.0, none, true, 'x', (1, 2), {'a': [1]}]
user, nested, people[0]
{'a': 1}.items(), {'a': 1}.keys(), {'a': 1}.values()
range(3), range(1, 4) | list, range(5, 0, -2) | list, range(0) | list, range(3)[1], range(3) | length
dict(a=1, b=2), dict([('x', 1)]), dict(user, name='Z').name
{'a': 1, 'a': 2}, {1: 'x', 1.0: 'y', true: 'z'}
big | length, big['39'], big.get('7'), '12' in big, big | dictsort | last
1 is odd, 2 is even, 6 is divisibleby(3), 6 is divisibleby 4, n is number, s is string, nil is none, user is mapping
nums is sequence, s is sequence, user is sequence, user is iterable, n is iterable, yes is boolean, f is float, n is integer
yes is integer, yes is number, yes is true, no is false, 1 is true, 'a' is lower, 'A' is upper, 'b' is in 'abc'
1 is eq 1, 1 is ne(2), 1 is lt(2), 2 is ge 2, 3 is sameas 3, 'upper' is filter, 'odd' is test, 'nope' is filter
n is not none, n is not string and s is string, undefined_name is not defined
x is defined or s is defined, not x is defined
(1, 2)[0], [[1, 2], [3]][1][0], {'a': {'b': 'c'}}.a.b, 'abc'[1], 'abc'[1:][0]
-n, +n, -f, - -n, -n | abs
n ~ f ~ yes ~ nil ~ nums, 1 ~ 2
'\x41\u0042\103\n\t\\\'\"\q'
'a\
b'
'ö' | length, '😀é'[1], 'aé😀b'[1:3], 'é' in s
words.index('fig'), words.count('fig'), (1, 2, 1).count(1)
nums | list == [3, 1, 2], nums == (3, 1, 2), {'a': 1, 'b': 2} == {'b': 2, 'a': 1}
[1, [2, [3, [4]]]] | string | length
s is string | string
'%c%c' % ('a', 98), '%5s|%-5s|%.2s' % ('a', 'b', 'cde'), '%i' % 3.7, '%e' % 1234.5, '%g' % 0.0001, '%o' % 8
""".strip("\n").split("\n")

TEMPLATES = [
    "{% for x in nums %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in nums %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in nums %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}|{% for x in nums if x > 5 %}x{% else %}none{% endfor %}",
    "{% for x in nums if x != 1 %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}",
    "{% for k, v in user.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for k in user %}{{ k }},{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in nums %}{% for y in nums %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in nums %}{% for y in 'ab' %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}@{{ loop.depth }}"
    "{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in nums %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in nums %}{% if i == 1 %}{% set y = i %}{% endif %}{{ y }}{% endfor %}{{ y is defined }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in nums %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}"
    "{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.m is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = (3, 4) %}{{ c }}{{ d }}{% set e = 1, %}{{ e }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{% set y | upper | trim %}  q{{ s }} {% endset %}[{{ y }}]",
    "{% set x %}{% set inner = 5 %}{{ inner }}{% endset %}{{ x }}{{ inner is defined }}",
    "{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=9) }} {{ m(b=5, a=4) }}",
    "{% macro m(a) %}[{{ a }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ m(1, 2, 3, z=4) }}{{ m() }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set g = 1 %}{% macro m() %}{{ g }}{{ x is defined }}{% endmacro %}{% for x in nums %}{{ m() }}{% endfor %}"
    "{% set g = 2 %}{{ m() }}",
    "{% macro m() %}{% set inner = 3 %}{{ inner }}{% endmacro %}{{ m() }}{{ inner is defined }}",
    "{% macro outer() %}({{ caller() }}){% endmacro %}{% call outer() %}in{{ n }}{% endcall %}",
    "{% macro each(l) %}{% for i in l %}<{{ caller(i, loop.index) }}>{% endfor %}{% endmacro %}"
    "{% for q in 'xy' %}{% call(i, j) each(nums) %}{{ i }}{{ j }}{{ q }}{% endcall %}{% endfor %}",
    "{% macro inner() %}<{{ caller() }}>{% endmacro %}{% macro outer() %}{% call inner() %}[{{ caller() }}]{% endcall %}"
    "{% endmacro %}{% call outer() %}x{% endcall %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}{{ a is callable }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('q') | upper }}{{ m('a') ~ m('b') }}{{ m('abc')[1] }}{{ m(1) == '1' }}",
    "{% filter upper %}a{{ s }}{% endfilter %}{% filter replace('a', 'b') | title %}banana split{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{{ c }}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% generation %}gen {{ n }}{% endgeneration %}!",
    "{% if no %}a{% elif nil %}b{% elif n == 7 %}c{% else %}d{% endif %}",
    "{% raw %}{{ not }} {% a %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  y",
    "{# comment #}a{#- c -#}  b  {# multi\nline #}\nc",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%+ if yes %}\n  b\n  {% endif +%}\nc",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a  {{- n -}}  b {{ n }} \n {{ n }}\n{{ n -}}\n\n c",
    "x {% set a = 1 %} y\n{% set b = 2 %}\n  {% set c = 3 %}  z",
    "  {# c #}\n  {{ n }}\n\t{% if yes %}t{% endif %}\r\nend\r\n",
    "line\n\n",
    "{{ {'a': {'b': 1}} }}{{ {'a': {}}['a'] }}{{ '}}' }}{{ \"%}\" }}",
    "{{n}}{{ n}}{{n }}{%if yes%}x{%endif%}",
    "{{ [1,\n 2,\n 3,] }}{{ {'a': 1,} }}{{ (1,) }}",
    "{% for m in people %}{{ m['name'] + (', ' if not loop.last else '.') }}{% endfor %}",
    "{% set l = ['a'] %}{% set l = l + ['b'] %}{{ l | join('-') }}{% set d = dict(l=l) %}{{ d.l[1] }}",
    "{% for g, items in people | groupby('on') %}{{ g }}:{% for i in items %}{{ i.name }}{% endfor %};{% endfor %}",
    "{% set ns = namespace(x='') %}{% for w in words %}{% set ns.x = ns.x ~ w[0] %}{% endfor %}{{ ns.x }}{{ ns['x'] }}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% set x = 5 %}{% with %}{% set x = 6 %}{{ x }}{% endwith %}{{ x }}",
    "{% set g = people | selectattr('on') %}{{ g | map(attribute='name') | join }}{{ g | list }}{{ 'y' if g else 'n' }}",
    "{% block b %}in block{% endblock %}",
    "{{ s }}{{ '' }}{{ none }}{{ true }}{{ 1.0 }}{{ undefined_name }}",
    # errors
    "{{ raise_exception('bad role: ' ~ n) }}",
    "{{ undefined_name.x }}", "{{ undefined_name['x'] }}", "{{ undefined_name() }}", "{{ undefined_name + 1 }}",
    "{{ undefined_name < 1 }}", "{{ -undefined_name }}", "{{ user.missing.deeper }}", "{{ undefined_name | int }}",
    "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 'a' }}", "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ [1] + (2,) }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 'a' in none }}", "{{ 'a' in 5 }}", "{{ 1 in 'a' }}",
    "{% for x in none %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for a, b in nums %}{% endfor %}",
    "{{ nums.append(4) }}", "{{ user.update({}) }}", "{{ n.x.y }}", "{{ n() }}", "{{ 'abc'.nope() }}",
    "{{ 'x' | nope }}", "{{ 1 is nope }}", "{{ undefined_name | tojson }}", "{{ range(3) | tojson }}",
    "{{ [nums | select('odd')] | tojson }}", "{{ (nums | select('odd')) | length }}", "{{ none | length }}",
    "{% for k, v in none | items %}{% endfor %}", "{{ 'a' | abs }}", "{{ '%d' % 'x' }}", "{{ '%s %s' % ('a',) }}", "{{ '%s' % (1, 2) }}",
    "{{ '{}'.format() }}", "{{ '{x}'.format(y=1) }}", "{{ 'a'.index('b') }}", "{{ 'a'.split('') }}",
    "{% set n.x = 1 %}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}",
    "{{ {[1]: 2} }}", "{{ range(1000001) }}", "{{ nums | sort(attribute='x') | list }}", "{{ [1, 'a'] | sort }}",
    "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% for x in nums %}", "{% nope %}", "{{ 1 + }}", "{{ (1 }}",
    "{{ 'abc }}", "{{ a b }}", "{% set x %}", "{# never", "{{ 1", "{% raw %}x", "{{ [1, 2 }}", "{{ {'a' 1} }}",
    "{% break %}", "{% for loop in nums %}{% endfor %}", "{{ a.b. }}", "{{ 1 if }}", "{% macro %}{% endmacro %}",
    "{{ x | }}", "{{ x is }}", "{% else %}", "{{ }}", "{{ @ }}", "{% set 1 = 2 %}",
]


def main():
    env = environment()
    cases = [f"{{{{ {line} }}}}" for line in EXPRESSIONS] + TEMPLATES
    # A string may hold a line end.
    joined = []
    for case in cases:
        if joined and joined[-1].endswith("\\ }}") and case.startswith("{{ b'"):
            joined[-1] = joined[-1][:-3] + "\n" + case[3:]
        else:
            joined.append(case)
    with open(OUT, "w", encoding="utf-8") as out:
        out.write(json.dumps({"bindings": BINDINGS}, ensure_ascii=False) + "\n")
        for template in joined:
            line = {"template": template}
            try:
                line["expected"] = env.from_string(template).render(**copy.deepcopy(BINDINGS))
                line["variables"] = sorted(jinja2.meta.find_undeclared_variables(env.parse(template)))
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
