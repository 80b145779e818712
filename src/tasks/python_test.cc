// Against what CPython 3.11 and 3.13 answer.
#include <gtest/gtest.h>

#include "base/testing/test_error.h"
#include "tasks/python_random.h"
#include "tasks/python_regex.h"
#include "tasks/python_text.h"

namespace octet {
namespace {

using nlohmann::ordered_json;
using Lists = std::vector<std::vector<std::string>>;

TEST(PythonRandom, DrawsAsPythonDoes) {
  PythonRandom random(1234);
  EXPECT_EQ(random.sample(10, 3), (std::vector<size_t>{7, 1, 0}));
  EXPECT_EQ(random.sample(1000, 4), (std::vector<size_t>{92, 932, 965, 961}));
  EXPECT_EQ(random.sample(90, 8), (std::vector<size_t>{74, 4, 85, 88, 10, 12, 45, 30}));
  EXPECT_EQ(random.uniform(), 0.017428048184618405);
  PythonRandom zero(0);
  EXPECT_EQ(zero.choice(24), 20u);
}

TEST(PythonRegex, FindsAndReplaces) {
  const auto all = [](const char* pattern, const char* text) { return PythonRegex(pattern, "t").find_all(text); };
  EXPECT_EQ(all("(-?[0-9]+)", "a -12 b 3"), (Lists{{"-12"}, {"3"}}));
  EXPECT_EQ(all("(-?[$0-9.,]{2,})|(-?[0-9]+)", "is 7 or $1,2"), (Lists{{"", "7"}, {"$1,2", ""}}));
  EXPECT_EQ(all("b*", "abb"), (Lists{{""}, {"bb"}, {""}}));
  EXPECT_EQ(all("\\w+", "été ¾ x"), (Lists{{"été"}, {"¾"}, {"x"}}));
  EXPECT_EQ(all("a\\Z", "a\n"), Lists());
  EXPECT_EQ(PythonRegex("\\[.*?\\]", "t").replace("a [b] c [d]", ""), "a  c ");
  EXPECT_EQ(PythonRegex("\\(\\s*([^\\)]*?)\\s*\\)", "t").replace("x ( y ) z", "(\\1)"), "x (y) z");
  EXPECT_EQ(PythonRegex("x*", "t").replace("axb", "-"), "-a--b-");
  EXPECT_NE(error_of([] { PythonRegex("a(", "here"); }).find("here: pattern \"a(\" does not compile"),
            std::string::npos);
  EXPECT_NE(error_of([] { PythonRegex("(a+)+$", "t").find_all(std::string(60, 'a') + "b"); }).find("gave up"),
            std::string::npos);
}

TEST(PythonText, ReadsLiterals) {
  const auto read = [](const char* text) { return python_literal(text).value_or("none"); };
  EXPECT_EQ(read(R"(['a', "b'c", 'd\n\u00e9\x41'])"), ordered_json({"a", "b'c",
                                                                    "d\n\xC3\xA9"
                                                                    "A"}));
  EXPECT_EQ(read("(1, -2.5, True, None)"), ordered_json({1, -2.5, true, nullptr}));
  EXPECT_EQ(read("('a' 'b')"), "ab");
  EXPECT_EQ(read("('a',)"), ordered_json::array({"a"}));
  EXPECT_EQ(read("{'a': [1], 'b': {}}"), ordered_json({{"a", {1}}, {"b", ordered_json::object()}}));
  EXPECT_EQ(read("'''x\ny'''"), "x\ny");
  for (const char* bad : {"[1", "a", "[1 2]", "'a", "{1: 2}", "[,]", "'a\nb'", "1 2", "", "__import__('os')"})
    EXPECT_EQ(read(bad), "none") << bad;
  EXPECT_FALSE(python_literal(std::string(1000, '[')).has_value());
}

TEST(PythonText, WritesAndCountsAsPython) {
  EXPECT_EQ(python_str({1, true, nullptr, "it's", {{"k", "v"}}}), "[1, True, None, \"it's\", {'k': 'v'}]");
  EXPECT_EQ(python_str(2.5), "2.5");
  EXPECT_EQ(python_str("a"), "a");
  EXPECT_EQ(word_count(""), 1);
  EXPECT_EQ(word_count(" a  b\n"), 4);
  EXPECT_EQ(character_count("señor 日本"), 8);
  EXPECT_EQ(strip(" \t\xC2\xA0x \n"), "x");
  EXPECT_TRUE(ends_with_space("a\xE3\x80\x80"));
  EXPECT_EQ(uppercase("été x"), "ÉTÉ X");
  EXPECT_EQ(replace_all("aaa", "aa", "b"), "ba");
}

}  // namespace
}  // namespace octet
