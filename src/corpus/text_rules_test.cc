// Each rule by a text that it alone drops, and its threshold.
#include "corpus/text_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "base/testing/test_error.h"
#include "corpus/mask_personal.h"

namespace octet {
namespace {

// Sentences of 12 different words each, on lines of their own.
std::string good_text(int sentences = 10) {
  std::string text;
  int number = 0;
  for (int i = 0; i < sentences; ++i) {
    text += "The";
    for (int k = 0; k < 11; ++k) text += fmt::format(" word{}", number++);
    text += i % 2 ? " and that.\n" : " with it.\n";
  }
  text.pop_back();
  return text;
}

std::string dropped_by(std::string_view text, const TextRules& rules = {}) {
  std::string buffer;
  return std::string(RuleChecker(rules).check(text, buffer));
}

std::string c4_of(std::string_view text, TextRules rules = {}) {
  rules.gopher_quality = rules.gopher_repetition = rules.fineweb = false;
  rules.c4_min_sentences = 0;
  std::string buffer;
  const std::string reason(RuleChecker(rules).check(text, buffer));
  return reason.empty() ? std::string(text) : "dropped: " + reason;
}

TEST(TextRules, GoodTextsStay) {
  EXPECT_EQ(dropped_by(good_text()), "");
  const std::string text = good_text();
  EXPECT_EQ(c4_of(text), text);
}

TEST(TextRules, EachFamilyCanBeOff) {
  EXPECT_EQ(dropped_by("one"), "gopher_min_words");
  EXPECT_EQ(dropped_by("one", {.gopher_repetition = false}), "gopher_min_words");
  EXPECT_EQ(dropped_by("one", {.gopher_repetition = false, .gopher_quality = false}), "c4_min_sentences");
  EXPECT_EQ(dropped_by("one", {.gopher_repetition = false, .gopher_quality = false, .c4 = false}),
            "fineweb_min_line_punctuation");
  EXPECT_EQ(dropped_by("one", {.gopher_repetition = false, .gopher_quality = false, .c4 = false, .fineweb = false}),
            "");
}

TEST(TextRules, Repetition) {
  const std::string text = good_text();
  const std::string line = text.substr(0, text.find('\n') + 1);
  std::string half = text;
  for (int i = 0; i < 6; ++i) half += "\n" + line.substr(0, line.size() - 1);
  EXPECT_EQ(dropped_by(half), "gopher_dup_lines");  // 6 of 16 lines
  EXPECT_EQ(dropped_by(half, {.dup_lines = 0.4}), "gopher_dup_line_chars");
  EXPECT_EQ(dropped_by(half, {.dup_lines = 0.4, .dup_line_chars = 0.4}), "gopher_dup_5grams");
  EXPECT_EQ(dropped_by("a b\n\nx y z\n\nx y z\n\nx y z"), "gopher_dup_paragraphs");
  const std::string page = good_text(3);
  EXPECT_EQ(dropped_by(good_text(4) + "\n\n" + page + "\n\n" + page + "\n\nend", {.dup_paragraphs = 0.9}),
            "gopher_dup_paragraph_chars");
  // "word1 word2 .. word6" again and again between other words.
  std::string phrases, top;
  for (int i = 0; i < 12; ++i)
    phrases += fmt::format("alpha beta gamma delta epsilon zeta other{} different{} quite{} unlike{} ", i, i, i, i);
  for (int i = 0; i < 30; ++i) top += fmt::format("something frequent{} somewhat ", i % 2 ? "" : std::to_string(i));
  TextRules rules;
  rules.top_ngram = {1, 1, 1};
  EXPECT_EQ(dropped_by(phrases, rules), "gopher_dup_5grams");
  rules.dup_ngrams[0] = 1;
  EXPECT_EQ(dropped_by(phrases, rules), "gopher_dup_6grams");
  rules.dup_ngrams[1] = 1;
  EXPECT_EQ(dropped_by(phrases, rules), "gopher_min_stop_words");
  EXPECT_EQ(dropped_by(top), "gopher_top_2gram");
  EXPECT_EQ(dropped_by(top, {.top_ngram = {1, 0.18, 1}}), "gopher_top_3gram");
}

TEST(TextRules, SharesAreOfCharacters) {
  // The most frequent pair stands 3 times: 3 * 5 characters of the 29.
  const std::string text = "äb cd äb cd äb cd efgh ijkl mn";
  TextRules rules;
  rules.gopher_quality = rules.c4 = rules.fineweb = false;
  rules.top_ngram = {15.01 / 30, 1, 1};
  EXPECT_EQ(dropped_by(text, rules), "");
  rules.top_ngram[0] = 14.99 / 30;
  EXPECT_EQ(dropped_by(text, rules), "gopher_top_2gram");
}

TEST(TextRules, Quality) {
  TextRules rules;
  rules.gopher_repetition = rules.c4 = rules.fineweb = false;
  const auto drops = [&](const std::string& text) { return dropped_by(text, rules); };
  const auto repeated = [](const std::string& word, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += word + (i % 10 == 9 ? "\n" : " ");
    return text;
  };
  EXPECT_EQ(drops(repeated("the and word", 16)), "gopher_min_words");
  EXPECT_EQ(drops(repeated("the and word", 17)), "");
  EXPECT_EQ(drops(repeated("word -- ", 40)), "gopher_min_words");  // symbols are no words
  rules.max_words = 60;
  EXPECT_EQ(drops(repeated("the and word", 21)), "gopher_max_words");
  rules.max_words = 100000;
  EXPECT_EQ(drops(repeated("to of", 40)), "gopher_min_word_length");
  EXPECT_EQ(drops(repeated("extraordinarily", 60)), "gopher_max_word_length");
  EXPECT_EQ(drops(repeated("the and word #tag", 30)), "gopher_max_symbols");
  EXPECT_EQ(drops(repeated("the and... word…", 30)), "gopher_max_symbols");
  std::string bullets, ellipses;
  for (int i = 0; i < 20; ++i)
    bullets += "- the item and more\n", ellipses += "the line and then it goes on with something more ...\n";
  EXPECT_EQ(drops(bullets), "gopher_max_bullets");
  EXPECT_EQ(drops(ellipses), "gopher_max_ellipsis_lines");
  EXPECT_EQ(drops(repeated("1234 5678 word", 30)), "gopher_min_alpha");
  EXPECT_EQ(drops(repeated("nothing frequent here", 30)), "gopher_min_stop_words");
  EXPECT_EQ(drops(repeated("nothing frequent The AND here", 30)), "gopher_min_stop_words") << "case counts";
  EXPECT_EQ(drops(repeated("nothing frequent 'the' and, here", 30)), "");
  rules.stop_words = {"und", "die"};
  EXPECT_EQ(drops(repeated("the and und", 30)), "gopher_min_stop_words");
  EXPECT_EQ(drops(repeated("und die", 30) + "überall"), "");
}

// Where datatrove's rules have an answer of their own.
TEST(TextRules, SymbolsAreThoseOfDatatrove) {
  TextRules rules;
  rules.gopher_repetition = rules.c4 = rules.fineweb = false;
  const auto drops = [&](const std::string& mark) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "the word of " + mark + " more\n";
    return dropped_by(text.substr(0, text.size() - 1), rules);
  };
  rules.max_symbols = 1;
  rules.max_words = 170;  // 160 words; a mark that is a word makes them 200
  for (const char* mark : {"--", "…", "»", "„", "%", "।", "１", "\xc2\x85"}) EXPECT_EQ(drops(mark), "") << mark;
  for (const char* mark : {"€", "→", "©", "•", "5"}) EXPECT_EQ(drops(mark), "gopher_max_words") << mark;
}

TEST(TextRules, ParagraphsAreOfTheStrippedText) {
  TextRules rules;
  rules.gopher_quality = rules.c4 = rules.fineweb = false;
  rules.top_ngram = {1, 1, 1}, rules.dup_ngrams = {1, 1, 1, 1, 1, 1};
  rules.dup_lines = rules.dup_line_chars = rules.dup_paragraph_chars = 1;
  rules.dup_paragraphs = 0.26;  // one of three, or of four
  EXPECT_EQ(dropped_by("one\n\ntwo\n\none\n \n", rules), "gopher_dup_paragraphs") << "the last is no other one";
  EXPECT_EQ(dropped_by("\n\none\n\ntwo\n\none", rules), "gopher_dup_paragraphs") << "none is empty";
}

TEST(TextRules, EmptyLinesAtBothEndsAreOneThatRepeats) {
  TextRules rules;
  rules.gopher_quality = rules.c4 = rules.fineweb = false;
  rules.top_ngram = {1, 1, 1}, rules.dup_ngrams = {1, 1, 1, 1, 1, 1};
  rules.dup_lines = 0.24;
  EXPECT_EQ(dropped_by("\none\ntwo\n", rules), "gopher_dup_lines") << "one of four";
  EXPECT_EQ(dropped_by("one\ntwo\n", rules), "");
}

TEST(TextRules, LinesEndAsInPython) {
  TextRules rules;
  rules.gopher_repetition = rules.c4 = rules.fineweb = false;
  std::string text;
  for (const char* end : {"\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\xc2\x85", "\u2028", "\u2029"})
    text += std::string("- the item that and a few more") + end;
  EXPECT_EQ(dropped_by(text, rules), "gopher_max_bullets");
  EXPECT_EQ(c4_of("one two three\rfour five six\u2028no more"), "one two three\nfour five six");
}

TEST(TextRules, C4EndsLinesInFiveMarks) {
  TextRules rules{.c4_terminal_punctuation = true};
  EXPECT_EQ(c4_of("it ends so.\nit ends so!\nit ends so?\nit ends so\"\nit ends so'", rules),
            "it ends so.\nit ends so!\nit ends so?\nit ends so\"\nit ends so'");
  EXPECT_EQ(c4_of("it ends so.\nit ends so”\nit ends so。\nit ends so…\nit ends so...", rules), "it ends so.");
  EXPECT_EQ(c4_of("[1] A first line here.\nA last line here. [2]"), "A first line here.\nA last line here.");
}

TEST(TextRules, FineWebsLinesEndInMarksOfUnicode) {
  TextRules rules;
  rules.gopher_repetition = rules.gopher_quality = rules.c4 = false;
  const auto drops = [&](const std::string& mark) {
    std::string text;
    for (int i = 0; i < 10; ++i) text += fmt::format("a line that is long enough to be no short line {}{}\n", i, mark);
    return dropped_by(text.substr(0, text.size() - 1), rules);
  };
  for (const char* mark : {".", "!", "?", "。", "؟", "።", "‼", "．", "\U0001da88"}) EXPECT_EQ(drops(mark), "") << mark;
  for (const char* mark : {"", "\"", "'", "”", "…", "；", ":", ")"})
    EXPECT_EQ(drops(mark), "fineweb_min_line_punctuation") << mark;
}

TEST(TextRules, C4TakesOutLines) {
  EXPECT_EQ(
      c4_of("  A line that stays. \ntwo words\nEnable JavaScript for this page.\nWe use cookies here, you know.\nEnds"),
      "A line that stays.");
  EXPECT_EQ(c4_of("A fact[1][] known[citation needed] by all[a].[edit]"), "A fact known by all[a].");
  EXPECT_EQ(c4_of("this is lorem Ipsum text"), "dropped: c4_lorem_ipsum");
  EXPECT_EQ(c4_of("if (x) { return y; }"), "dropped: c4_curly_bracket");
  EXPECT_EQ(c4_of("if (x) { return y; }", {.c4_curly_bracket = false}), "if (x) { return y; }");
  EXPECT_EQ(c4_of("no end at all\nwith one end.\nor like this...", {.c4_terminal_punctuation = true}), "with one end.");
  EXPECT_EQ(c4_of("a long " + std::string(1001, 'x') + " line\nand a short one"), "and a short one");
  TextRules rules;
  rules.gopher_quality = rules.gopher_repetition = rules.fineweb = false;
  EXPECT_EQ(dropped_by("One is here. Two is? Three is! \"Four is.\"", rules), "c4_min_sentences");
  EXPECT_EQ(dropped_by("One is here. Two is? Three is! \"Four is.\" Five v1.5 is", rules), "c4_min_sentences");
  EXPECT_EQ(dropped_by("One is here. Two is? Three is! \"Four is.\" Five is.", rules), "");
}

TEST(TextRules, FineWeb) {
  TextRules rules;
  rules.gopher_repetition = rules.gopher_quality = rules.c4 = false;
  const auto lines = [](const std::string& line, int times, int numbered) {
    std::string text;
    for (int i = 0; i < times; ++i) text += (i ? "\n" : "") + line + (i < numbered ? fmt::format(" {}.", i) : ".");
    return text;
  };
  const std::string long_line = "a line that is longer than thirty characters in all and has many words";
  EXPECT_EQ(dropped_by("no end here\nnor here", rules), "fineweb_min_line_punctuation");
  EXPECT_EQ(dropped_by(lines("short", 10, 10), rules), "fineweb_max_short_lines");
  EXPECT_EQ(dropped_by(lines(long_line, 10, 5), rules), "fineweb_max_dup_chars");
  EXPECT_EQ(dropped_by(lines(long_line, 10, 10), rules), "");
  EXPECT_EQ(dropped_by(lines("averylongwordthatisjustone-andanotherlongword", 10, 10), rules), "fineweb_max_newlines");
}

TEST(TextRules, EveryRuleIsASetting) {
  TextRules rules;
  SettingsTable table = rules.table();
  const std::vector<std::string> names = table.names();
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.size(), 41u);
  table.set("gopher_dup_10grams", "0.5", "here");
  EXPECT_EQ(rules.dup_ngrams[5], 0.5);
  EXPECT_NE(error_of([&] { table.set("c4_min_sentences", "-1", "here"); }), "(no error)");
}

std::string masked(const std::string& text,
                   const std::vector<std::string>& what = {"email=<E>", "ip=<I>", "phone=<P>"}) {
  std::string out;
  MaskCounts counts;
  return mask_personal(PersonalMasks(what), text, out, counts) ? out : text;
}

TEST(MaskPersonal, FindsWhatLooksLikeIt) {
  EXPECT_EQ(masked("Mail a.b+c@ex-ample.co.uk, or <x@y.org>."), "Mail <E>, or <<E>>.");
  EXPECT_EQ(masked("at 8.8.8.8 and 2001:db8:85a3::8a2e:370:7334!"), "at <I> and <I>!");
  EXPECT_EQ(masked("(212) 555-0123, 212-555-0123, 1 212.555.0123, +49 (30) 1234-567."), "<P>, <P>, <P>, <P>.");
  EXPECT_EQ(masked("a@b.de x@y.com", {"email"}), "email@example.com email@example.com");
  EXPECT_EQ(masked("call 212-555-0123 at 8.8.8.8", {"ip"}), "call 212-555-0123 at 192.0.2.1");
}

TEST(MaskPersonal, LeavesTheRest) {
  for (const char* text :
       {"@user a@b x@.com a@b..com", "10.0.0.1 192.168.1.1 127.0.0.1 1.2.3 1.2.3.4.5 256.1.1.1 v8.8.8.8",
        "std::ab::cd 12:30:45", "1234567890123 2024-01-15 3.14159 12-34-56 + 5", "email@example.com"})
    EXPECT_EQ(masked(text, {"email", "ip", "phone"}), text);
  EXPECT_EQ(masked("a@b.de 8.8.8.8", {"none"}), "a@b.de 8.8.8.8");
  EXPECT_NE(error_of([] { PersonalMasks masks({"mail"}); }).find("--mask mail: want email"), std::string::npos);
}

}  // namespace
}  // namespace octet
