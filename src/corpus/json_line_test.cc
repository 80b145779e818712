// JSON lines as they are scanned, against the parser of nlohmann-json.
#include "corpus/json_line.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

TEST(JsonLine, FindsTextAndId) {
  const std::string line = R"( {"meta": {"text": "inner", "x": [1, {"y": "]}"}]}, "id": 7e2, "text": "a\"b\u00e9\n"} )";
  const JsonLine found = scan_json_line(line, "text", "id", "f:1");
  EXPECT_EQ(found.id, "7e2");
  EXPECT_EQ(found.text, R"(a\"b\u00e9\n)");
  EXPECT_EQ(line.substr(found.begin, found.end - found.begin), R"("a\"b\u00e9\n")");
  std::string buffer;
  EXPECT_EQ(unescape_json(found.text, buffer), "a\"b\xC3\xA9\n");
}

TEST(JsonLine, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(scan_json_line(R"({"text":"a","te\u0078t":"b"})", "text", "id", "f:1").text, "b");
}

TEST(JsonLine, EscapesAndSurrogates) {
  std::string buffer;
  EXPECT_EQ(unescape_json(R"(\b\f\n\r\t\/\\\")", buffer), "\b\f\n\r\t/\\\"");
  EXPECT_EQ(unescape_json(R"(\ud83d\ude00!)", buffer), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(unescape_json(R"(\ud83d\u0041\udc00)", buffer),
            "\xEF\xBF\xBD"
            "A\xEF\xBF\xBD");
}

TEST(JsonLine, DamageIsNamedWithItsPlace) {
  const auto error = [](const std::string& line) {
    return error_of([&] { scan_json_line(line, "text", "id", "f:3"); });
  };
  EXPECT_EQ(error(R"({"text": "a)"), "f:3: damaged JSON at byte 11 of the line: the string does not end");
  EXPECT_EQ(error("[1]"), "f:3: the line is not a JSON object");
  EXPECT_EQ(error(R"({"text": 3})"), "f:3: key \"text\" is not a string");
  EXPECT_EQ(error(R"({"t": ""})"), "f:3: no key \"text\" (--key names that of the text)");
  EXPECT_EQ(error(R"({"text": "a"} x)"), "f:3: damaged JSON at byte 14 of the line: want the end of the line");
  const std::string deep = R"({"a":)" + std::string(600, '[') + std::string(600, ']') + R"(,"text":""})";
  EXPECT_NE(error(deep).find("nested deeper than 512"), std::string::npos);
  EXPECT_NE(error("{\"text\": \"a\x01\"}").find("a control character"), std::string::npos);
}

// Mutations of a line are taken or refused as by the parser, with the same text.
TEST(JsonLine, AgreesWithAParserOnMutations) {
  const std::string line =
      R"({"id": -12.5e+3, "a": [true, null, {"b": "c\u0041\\"}], "text": "One two\nthree \"four\" and some more text"})";
  std::mt19937 random(5);
  std::string buffer;
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string mutant = line;
    for (unsigned n = random() % 3; n-- > 0;) {
      const size_t at = random() % mutant.size();
      if (random() % 2)
        mutant.erase(at, 1 + random() % 4);
      else
        mutant[at] = R"({}[]",:\u0e-+tfn )"[random() % 18];
    }
    const nlohmann::json parsed = nlohmann::json::parse(mutant, nullptr, /*allow_exceptions=*/false);
    const bool good = parsed.is_object() && parsed.contains("text") && parsed.at("text").is_string();
    std::string text;
    const std::string error =
        error_of([&] { text = unescape_json(scan_json_line(mutant, "text", "id", "m").text, buffer); });
    EXPECT_EQ(error == "(no error)", good) << mutant << "\n" << error;
    if (good) {
      EXPECT_EQ(text, parsed.at("text").get<std::string>()) << mutant;
    }
    taken += good;
  }
  EXPECT_GT(taken, 1000);
}

TEST(JsonLine, QuotesAsItReads) {
  std::string quoted;
  append_json_string(quoted, "a\"\\\b\f\n\r\t\x01/\xC3\xA9");
  EXPECT_EQ(quoted, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001/\xC3\xA9\"");
}

}  // namespace
}  // namespace octet
