// The template language against Jinja2's own answers (tests/chat/make_template_cases.py), and its limits.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/rng.h"
#include "base/testing/test_data.h"
#include "base/testing/test_error.h"
#include "chat/chat_template.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

std::string render(const std::string& source, const ordered_json& bindings = {}, const RenderLimits& limits = {}) {
  return ChatTemplate(source, "t").render(bindings, {}, 0, limits).text;
}

std::vector<ordered_json> read_lines(const std::string& path) {
  std::vector<ordered_json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(ordered_json::parse(line));
  return lines;
}

std::vector<ordered_json> own_cases() { return read_lines(source_dir() + "/src/chat/testdata/jinja_cases.jsonl"); }

TEST(Jinja, RendersAsJinja2) {
  const auto lines = own_cases();
  ASSERT_GT(lines.size(), 200u);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::string source = lines[i]["template"];
    SCOPED_TRACE(source);
    std::string text, error;
    try {
      const ChatTemplate parsed(source, "t");
      text = parsed.render(lines[0]["bindings"], {}, 0).text;
      EXPECT_EQ(ordered_json(parsed.variables()), lines[i].value("variables", ordered_json(parsed.variables())));
    } catch (const Error& thrown) {
      EXPECT_EQ(thrown.code(), ErrorCode::kInvalidArgument);
      error = thrown.what();
    }
    if (lines[i].contains("error")) {
      EXPECT_TRUE(error.starts_with("t:")) << error << " " << text;
    } else {
      EXPECT_EQ(error, "");
      EXPECT_EQ(text, lines[i]["expected"].get<std::string>());
    }
  }
}

TEST(Jinja, PassesSharedCases) {
  const std::string path = test_data_path("serving/chat/jinja_cases.jsonl");
  if (path.empty()) GTEST_SKIP() << missing_test_data("serving/chat");
  for (const ordered_json& line : read_lines(path)) {
    const TemplateOptions options{.trim_blocks = line["trim_blocks"], .lstrip_blocks = line["lstrip_blocks"]};
    const ChatTemplate parsed(line["template"].get<std::string>(), "t", options);
    EXPECT_EQ(parsed.render(line["bindings"], {}, 0).text, line["expected"].get<std::string>()) << line["name"];
  }
}

TEST(Jinja, BlocksKeepTheirSpaceWhereToldSo) {
  const std::string source = "a\n  {% if true %}\nb\n{% endif %}\nc";
  EXPECT_EQ(render(source), "a\nb\nc");
  EXPECT_EQ(ChatTemplate(source, "t", {.trim_blocks = false, .lstrip_blocks = false}).render({}, {}, 0).text,
            "a\n  \nb\n\nc");
}

TEST(Jinja, UndefinedValuesAreErrorsWhereToldSo) {
  const auto strict = [](const std::string& source) {
    return ChatTemplate(source, "t", {.strict_undefined = true}).render({{"a", {{"b", 1}}}}, {}, 0).text;
  };
  EXPECT_EQ(strict("{{ a.b }}{{ x is defined }}{{ x|default('d') }}{{ a.c|d(2) }}"), "1Falsed2");
  for (const char* source : {"{{ x }}", "{{ 'a' ~ x }}", "{% if x %}{% endif %}", "{% for i in x %}{% endfor %}",
                             "{{ x|length }}", "{{ not x }}", "{{ [x] }}", "{{ x == 1 }}"})
    EXPECT_EQ(error_of([&] { strict(source); }), "t:1: 'x' is undefined") << source;
  EXPECT_EQ(error_of([&] { strict("{{ a.c }}"); }), "t:1: 'c' is undefined");
}

TEST(Jinja, TellsTheTime) {
  setenv("TZ", "UTC", 1);
  tzset();
  EXPECT_EQ(ChatTemplate("{{ strftime_now('%d %b %Y %H:%M') }}", "t").render({}, {}, 1721997296).text,
            "26 Jul 2024 12:34");
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(error_of([] { render("a\n\n{{ x.y }}"); }), "t:3: 'x' is undefined");
  EXPECT_EQ(error_of([] { render("{% if 1 %}\n{% fi %}"); }), "t:2: unknown tag \"fi\" (nearest: if)");
  EXPECT_EQ(error_of([] { render("{{ raise_exception('no\nway') }}"); }), "t:1: no\nway");
  EXPECT_NE(error_of([] { render("\xFF"); }).find("not UTF-8"), std::string::npos);
}

TEST(Jinja, BombsEndByALimit) {
  std::string nested_ifs,
      nested_lists = "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  for (int i = 0; i < 5000; ++i) nested_ifs += "{% if 1 %}";
  const std::pair<std::string, std::string> bombs[] = {
      {"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", "limit|more than"},
      {"{% for a in range(1000000000) %}x{% endfor %}", "the limit is 100000"},
      {"{% for a in range(90000) %}{% for b in 'abcdefghijklmnopqrstuvwxyz' %}{% endfor %}{% endfor %}", "steps"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper than 500"},
      {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
       "nested deeper than 500"},
      {"{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}", "nested deeper than 500"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
       "8000000 bytes"},
      {"{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
       "steps|memory"},
      {"{{ 'a' * 1000000000 }}", "8000000 bytes"},
      {"{{ [1] * 1000000000 }}", "steps"},
      {"{{ 'a'.ljust(1000000000) }}", "8000000 bytes"},
      {"{{ '%1000000000d' % 1 }}", "bytes"},
      {"{{ '{:1000000000}'.format(1) }}", "bytes"},
      {"{{ '{:>1000000000}'.format('a') }}", "bytes"},
      {"{{ 'a' | center(1000000000) }}", "8000000 bytes"},
      {"{{ ('a\\n' * 1000) | indent(100000) }}", "8000000 bytes"},
      {"{% set s = 'a' * 8000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps"},
      {"{% set s = 'a' * 4000 %}{{ s.replace('', s) }}", "8000000 bytes"},
      {"{{ 2 ** 64 }}", "64 bits"},
      {"{{ " + std::string(20000, '(') + "1" + std::string(20000, ')') + " }}", "nested deeper than 100"},
      {"{{ " + std::string(20000, '[') + std::string(20000, ']') + " }}", "nested deeper than 100"},
      {"{{ " + std::string(20000, '-') + "1 }}", "nested deeper than 100"},
      {nested_ifs, "nested deeper than 100"},
      {nested_lists + "{{ ns.x }}", "nested deeper than 500"},
      {nested_lists + "{{ ns.x | tojson }}", "nested deeper than 500"},
      {nested_lists + "{{ ns.x == [ns.x] }}", "nested deeper than 500"},
      {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested deeper than 500"},
      {"{% set l = range(100000) | list %}{{ ([l] * 2000) | tojson }}", "steps|bytes"},
  };
  for (const auto& [source, wanted] : bombs) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = error_of([&source = source] { render(source); });
    const std::string first = wanted.substr(0, wanted.find('|')), second = wanted.substr(wanted.find('|') + 1);
    EXPECT_TRUE(error.find(first) != std::string::npos || error.find(second) != std::string::npos)
        << source.substr(0, 100) << ": " << error;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << source.substr(0, 100);
  }
  ordered_json deep_json = "x";
  for (int i = 0; i < 1000; ++i) deep_json = ordered_json::array({std::move(deep_json)});
  EXPECT_NE(error_of([&] { render("{{ x }}", {{"x", deep_json}}); }).find("deeper than 500"), std::string::npos);
}

TEST(Jinja, SmallLimitsHold) {
  EXPECT_NE(error_of([] { render("{% for i in range(50) %}{{ i }}{% endfor %}", {}, {.steps = 60}); }).find("60 steps"),
            std::string::npos);
  EXPECT_NE(
      error_of([] { render("{% for i in range(50) %}{{ i }}{% endfor %}", {}, {.output_bytes = 60}); }).find("60"),
      std::string::npos);
  EXPECT_NE(
      error_of([] { render("{{ range(1000) | list }}", {}, {.memory_bytes = 9000}); }).find("9000 bytes of memory"),
      std::string::npos);
}

// Any bytes either render or throw an Error; sanitizer builds watch.
TEST(Jinja, MutatedTemplatesEndInTextOrError) {
  constexpr uint64_t kSeed = 20261123;
  Philox random(kSeed);
  const auto lines = own_cases();
  const RenderLimits limits{.steps = 20'000, .depth = 200, .output_bytes = 100'000, .memory_bytes = 4'000'000};
  const auto pick = [&](size_t count) { return static_cast<size_t>(random.below(static_cast<uint32_t>(count))); };
  const std::string bits = "{}%#-|().,[]:'\"+~*/=<> \nabis0129\\";
  int64_t rendered = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string source = lines[1 + pick(lines.size() - 1)]["template"];
    const std::string other = lines[1 + pick(lines.size() - 1)]["template"];
    for (size_t edits = 1 + pick(4); edits > 0; --edits) {
      const size_t at = pick(source.size() + 1);
      switch (pick(4)) {
        case 0: source.insert(at, 1, bits[pick(bits.size())]); break;
        case 1: source.erase(at, 1 + pick(3)); break;
        case 2: source.insert(at, other.substr(pick(other.size()), pick(20))); break;
        default: source = source.substr(0, at) + other.substr(pick(other.size() + 1)); break;
      }
    }
    try {
      rendered += ChatTemplate(source, "t").render(lines[0]["bindings"], {}, 0, limits).text.empty() ? 0 : 1;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what() << "\n" << source;
    }
  }
  EXPECT_GT(rendered, 400) << "seed " << kSeed;
}

}  // namespace
}  // namespace octet
