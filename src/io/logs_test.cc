// Event files and JSONL logs, decoded by readers of the test's own.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/testing/test_data.h"
#include "io/logs.h"

namespace octet {
namespace {

template <typename T>
T take(std::string* bytes) {
  T value{};
  EXPECT_GE(bytes->size(), sizeof(T));
  if (bytes->size() < sizeof(T)) return value;
  std::memcpy(&value, bytes->data(), sizeof(T));
  bytes->erase(0, sizeof(T));
  return value;
}

uint64_t take_varint(std::string* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    auto byte = take<uint8_t>(bytes);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

std::string take_bytes(std::string* bytes) {
  size_t length = take_varint(bytes);
  std::string part = bytes->substr(0, length);
  bytes->erase(0, length);
  return part;
}

// The mask as documented in TensorFlow: rotate right by 15 bits and add a constant.
uint32_t masked(const std::string& data) {
  uint32_t crc = crc32c(data.data(), static_cast<int64_t>(data.size()));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::vector<std::string> records_of(std::string file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    std::string length_bytes = file.substr(0, 8);
    auto length = take<uint64_t>(&file);
    EXPECT_EQ(take<uint32_t>(&file), masked(length_bytes));
    records.push_back(file.substr(0, length));
    file.erase(0, length);
    EXPECT_EQ(take<uint32_t>(&file), masked(records.back()));
  }
  return records;
}

TEST(EventFile, RecordsDecode) {
  TempFolder folder;
  EventFile events(folder.file("runs/a"), 300);
  events.scalars(300, {{"loss", 2.5}, {"rate", 1e-4}}, 12.5);
  events.scalars(-1, {}, 13);
  auto records = records_of(read_file(events.path()));
  ASSERT_EQ(records.size(), 4u);
  EXPECT_NE(records[0].find("\x1a\x0d"
                            "brain.Event:2"),
            std::string::npos);
  std::string start = records[1];  // what earlier files hold from step 300 on is dropped
  EXPECT_EQ(take_varint(&start), 1u << 3 | 1u);
  take<double>(&start);
  EXPECT_EQ(take_varint(&start), 2u << 3);
  EXPECT_EQ(take_varint(&start), 300u);
  EXPECT_EQ(take_varint(&start), 7u << 3 | 2u);
  EXPECT_EQ(take_bytes(&start), "\x08\x01");  // SessionLog.status: START
  EXPECT_TRUE(start.empty());
  std::string event = records[2];
  EXPECT_EQ(take_varint(&event), 1u << 3 | 1u);
  EXPECT_EQ(take<double>(&event), 12.5);
  EXPECT_EQ(take_varint(&event), 2u << 3);
  EXPECT_EQ(take_varint(&event), 300u);
  EXPECT_EQ(take_varint(&event), 5u << 3 | 2u);
  std::string summary = take_bytes(&event);
  EXPECT_TRUE(event.empty());
  for (auto [tag, number] : {std::pair{"loss", 2.5f}, std::pair{"rate", 1e-4f}}) {
    EXPECT_EQ(take_varint(&summary), 1u << 3 | 2u);
    std::string value = take_bytes(&summary);
    EXPECT_EQ(take_varint(&value), 1u << 3 | 2u);
    EXPECT_EQ(take_bytes(&value), tag);
    EXPECT_EQ(take_varint(&value), 2u << 3 | 5u);
    EXPECT_EQ(take<float>(&value), number);
  }
  EXPECT_TRUE(summary.empty());
  EventFile other(folder.file("runs/a"));
  EXPECT_NE(other.path(), events.path());
}

TEST(EventFile, TensorBoardReadsIt) {
  TempFolder folder;
  EventFile events(folder.path());
  for (int64_t step = 1; step <= 300; ++step)
    events.scalars(step, {{"train/loss", 5.0 / static_cast<double>(step)}, {"rate", 1e-4}});
  EventFile resumed(folder.path(), 281);  // from step 280, after which it was killed: 20 steps are made anew
  for (int64_t step = 281; step <= 300; ++step)
    resumed.scalars(step, {{"train/loss", 5.0 / static_cast<double>(step)}, {"rate", 1e-4}});
  const std::string command =
      fmt::format("python3 '{}/scripts/check_event_file.py' '{}' train/loss 300 {} rate 300 1e-4 > '{}' 2>&1",
                  source_dir(), folder.path(), 5.0 / 300, folder.file("report"));
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127))
    GTEST_SKIP() << "python3 with the tensorboard package is absent";
  EXPECT_EQ(status, 0) << read_file(folder.file("report"));
}

TEST(EventFile, FullDiskKeepsWholeRecords) {
  TempFolder folder;
  EventFile events(folder.path());
  inject_write_fault(5, ENOSPC);
  EXPECT_THROW(events.scalars(1, {{"x", 1}}), Error);
  inject_write_fault(-1, 0);
  events.scalars(2, {{"x", 2}});
  EXPECT_EQ(records_of(read_file(events.path())).size(), 3u);
}

TEST(JsonlLog, LinesParseAndKeepTheirOrder) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  std::string line =
      json_line({{"z", int64_t{3}}, {"a", 0.1}, {"t", std::string("q\"\n\xff")}, {"b", true}, {"n", nan}, {"i", -inf}});
  EXPECT_EQ(line.rfind("{\"z\":3,\"a\":0.1,", 0), 0u) << line;
  auto parsed = parse_json(line, "line");
  EXPECT_EQ(parsed.at("a"), 0.1);
  EXPECT_EQ(parsed.at("n"), "nan");
  EXPECT_EQ(parsed.at("i"), "-inf");
  EXPECT_EQ(parsed.at("b"), true);
  EXPECT_EQ(json_line({}), "{}");
}

TEST(JsonlLog, PartialLastLineIsRemovedOnReopen) {
  TempFolder folder;
  const std::string path = folder.file("logs/metrics.jsonl");
  JsonlLog(path).write({{"step", int64_t{1}}});
  { AppendFile(path).append("{\"step\":2,\"lo"); }
  testing::internal::CaptureStderr();
  JsonlLog(path).write({{"step", int64_t{2}}});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("partial last line of 13 bytes"), std::string::npos);
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"step\":2}\n");
  write_file(path, "no newline at all");
  testing::internal::CaptureStderr();
  JsonlLog empty(path);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(file_size(path), 0);
  EXPECT_THROW(JsonlLog(folder.path()), Error);
}

}  // namespace
}  // namespace octet
