// Repairs of single texts, and what must stay as it is.
#include "corpus/repair_text.h"

#include <gtest/gtest.h>

namespace octet {
namespace {

std::string repaired(const std::string& text) {
  std::string out, again;
  repair_text(text, out);
  EXPECT_FALSE(repair_text(out, again).any()) << text << "\n" << out << "\n" << again;
  EXPECT_EQ(again, out);
  return out;
}

TEST(RepairText, Utf8ReadAsWindows1252OrLatin1) {
  EXPECT_EQ(repaired("cafÃ© dÃ©jÃ\u00A0 vu"), "café déjà vu");
  EXPECT_EQ(repaired("donâ€™t â€œquoteâ€\u009D â€” it â€¦"), "don’t “quote” — it …");
  EXPECT_EQ(repaired("don\u00E2\u0080\u0099t"), "don’t");  // as Latin-1
  EXPECT_EQ(repaired("Â£5, 20Â\u00A0Â°C"), "£5, 20 °C");
  EXPECT_EQ(repaired("ðŸ˜€ ok"), "😀 ok");
  EXPECT_EQ(repaired("ÐŸÑ€Ð¸Ð²ÐµÑ‚"), "Привет");
  EXPECT_EQ(repaired("æ—¥æœ¬èªž"), "日本語");
  EXPECT_EQ(repaired("zÅ‚oty"), "złoty");
  EXPECT_EQ(repaired("Viá»‡t Náºµng é"), "Việt Nẵng é");
  EXPECT_EQ(repaired("zÅ‚oty Å\u00A0koda"), "złoty Škoda");  // all of it reads so
  EXPECT_EQ(repaired("zÅ‚oty Å\u00A0koda é"), "złoty Å koda é");
  EXPECT_EQ(repaired("ÃƒÂ©tÃƒÂ©"), "été");  // twice over
  EXPECT_EQ(repaired("ï»¿text"), "text");   // a byte order mark
}

TEST(RepairText, LeavesWhatIsWritten) {
  for (const char* text :
       {"«CAFÉ» et «été…»", "À côté – déjà", "SÃO PAULO, AÇÕES", "SÃ… no: Å", "naïve façade Ñandú", "20 °C ±3",
        "Übergröße §5", "日本語 テキスト", "Привет мир", "Đà Nẵng", "“CÂ”", "é®", "a ≤ b", "«está»…"})
    EXPECT_EQ(repaired(text), text);
  std::string out;  // French quotes with no-break spaces: only these change
  EXPECT_FALSE(repair_text("il dit «\u00A0été\u00A0»", out).mojibake);
  EXPECT_EQ(out, "il dit « été »");
}

TEST(RepairText, BytesThatAreNotUtf8) {
  EXPECT_EQ(repaired("caf\xE9 \x93quoted\x94"), "café “quoted”");
  EXPECT_EQ(repaired("é caf\xE9"), "é caf\uFFFD");
  EXPECT_EQ(repaired("cut \xE2\x82"), "cut â‚");  // nothing else is beyond ASCII
}

TEST(RepairText, ControlsAndWhiteSpace) {
  EXPECT_EQ(repaired("a\x01"
                     "b\x7F c\uFEFFd"),
            "ab cd");
  EXPECT_EQ(repaired("\u0093quoted\u0094"), "“quoted”");
  EXPECT_EQ(repaired("a\r\nb\rc\u2028d\u2029e"), "a\nb\nc\nd\ne");
  EXPECT_EQ(repaired("  keep indents  \n\n\n\n\tend \n\n"), "  keep indents\n\n\tend");
  EXPECT_EQ(repaired("a\u00A0b\u3000c"), "a b c");
  EXPECT_EQ(repaired(" \n \n"), "");
  EXPECT_EQ(repaired(""), "");
  std::string long_line(100, 'x');
  EXPECT_EQ(repaired(long_line + "\x02" + long_line), long_line + long_line);
}

TEST(RepairText, Composes) {
  EXPECT_EQ(repaired("e\u0301te\u0301"), "été");
  EXPECT_EQ(repaired("\u1112\u1161\u11AB"), "한");
  EXPECT_EQ(repaired("か\u3099"), "が");
}

}  // namespace
}  // namespace octet
