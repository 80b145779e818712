// The progress line, JSON errors and log filtering.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

TEST(Progress, Line) {
  ProgressOptions options{.title = "train", .total = 200};
  EXPECT_EQ(progress_line(options, 50, 10, "loss 2.31", 80),
            "train [######..................] 50/200 5.0 it/s 0:10<0:30  loss 2.31");
  EXPECT_EQ(progress_line(options, 50, 10, "loss 2.31", 0), "train 50/200 5.0 it/s 0:10<0:30  loss 2.31");
  EXPECT_EQ(progress_line(options, 200, 7200, "", 0), "train 200/200 36.00 s/it 2:00:00");
  EXPECT_EQ(progress_line({.title = "read", .unit = "B"}, 5000000, 2, "", 80), "read 5000000 2.50M B/s 0:02");
  EXPECT_EQ(progress_line({.title = "t", .total = 20, .start = 10}, 15, 5, "", 0), "t 15/20 1.0 it/s 0:05<0:05");
  EXPECT_EQ(progress_line(options, 0, 0, "", 0), "train 0/200 0:00");
  EXPECT_EQ(progress_line(options, 50, 10, "a long text", 20).size(), 19u) << "never wraps";
}

TEST(Progress, PlainLinesWhenNotATerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress({.title = "copy", .total = 3, .plain_seconds = 0});
    progress.update(1);
    log_info("between");
    progress.update(2, "x");
    progress.finish();
    progress.update(3);
  }
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("copy"), std::string::npos);
  EXPECT_NE(text.find("info: between\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("3/3"), std::string::npos);
}

TEST(Log, LevelsFilter) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::kWarning);
  log_info("hidden {}", 1);
  log_warning("shown {} {{}}", 2);
  set_log_level(LogLevel::kInfo);
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("warning: shown 2 {}"), std::string::npos) << text;
}

TEST(Json, ErrorsNameTheFileAndTheMember) {
  auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      return error.message();
    }
    return "no error";
  };
  EXPECT_NE(message([] { parse_json("{\"a\": ", "x.json"); }).find("x.json"), std::string::npos);
  EXPECT_NE(message([] { parse_json("{\"a\": 1e}", "x.json"); }).find("x.json"), std::string::npos);
  EXPECT_NE(message([] { parse_json("{\"a\":1,\"a\":2}", "x", true); }).find("'a' occurs twice"), std::string::npos);
  EXPECT_EQ(parse_json("{\"a\":1,\"a\":2}", "x").at("a"), 2);
  EXPECT_NO_THROW(parse_json("{\"a\":{\"b\":1},\"b\":{\"b\":2}}", "x", true));
  EXPECT_NE(message([] { parse_json(std::string(100000, '['), "deep"); }).find("512"), std::string::npos);
  EXPECT_NE(message([] { parse_json("\"\xff\"", "bytes"); }).find("bytes"), std::string::npos);
  auto object = parse_json(R"({"n": 3, "f": 1.5, "s": "t", "big": 18446744073709551615, "neg": -1})", "x");
  EXPECT_EQ(json_get<int64_t>(object, "n", "x"), 3);
  EXPECT_EQ(json_get<double>(object, "n", "x"), 3.0);
  EXPECT_EQ(json_get<std::string>(object, "s", "x"), "t");
  EXPECT_NE(message([&] { json_get<int64_t>(object, "f", "x"); }).find("wrong type: 1.5"), std::string::npos);
  EXPECT_NE(message([&] { json_get<int64_t>(object, "big", "x"); }).find("wrong type"), std::string::npos);
  EXPECT_NE(message([&] { json_get<uint32_t>(object, "neg", "x"); }).find("wrong type"), std::string::npos);
  EXPECT_NE(message([&] { json_get<bool>(object, "n", "x"); }).find("'n'"), std::string::npos);
  EXPECT_NE(message([&] { json_get<int64_t>(object, "zz", "x"); }).find("missing"), std::string::npos);
  EXPECT_NE(message([&] { json_get<int64_t>(parse_json("[]", "x"), "zz", "x"); }).find("missing"), std::string::npos);
}

TEST(Json, NumbersTooLargeRefuseOnlyTheirReader) {
  const std::string large = "1" + std::string(400, '0');
  const nlohmann::json json = parse_json(
      R"({"a": [1e400, -1E999, 2], "b": "1e400 \" -1e400", "c": )" + large + R"(, "d": 5e-1})", "x.json", true);
  EXPECT_EQ(json.at("b"), "1e400 \" -1e400");
  EXPECT_EQ(json.at("a"), (nlohmann::json{std::numeric_limits<double>::max(), -std::numeric_limits<double>::max(), 2}));
  EXPECT_EQ(json_get<double>(json, "d", "x.json"), 0.5);
  EXPECT_NE(error_of([&] { json_get<double>(json, "c", "x.json"); }).find("member 'c'"), std::string::npos);
  EXPECT_NE(error_of([&] { json_get<int64_t>(json, "c", "x.json"); }).find("member 'c'"), std::string::npos);
}

}  // namespace
}  // namespace octet
