#include "serve/access_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/testing/test_error.h"
#include "serve/testing/tiny_server.h"

namespace octet::serve {
namespace {

using Json = nlohmann::json;

class AccessLogTest : public testing::Test {
 protected:
  AccessLogTest() { make_folders(folder_); }
  ~AccessLogTest() override { remove_path(folder_); }
  std::string some_path() { return folder_ + "/" + std::to_string(count_++); }

 private:
  const std::string folder_ = testing::TempDir() + "/octet_access_log_" + std::to_string(::getpid());
  int count_ = 0;
};

// Lines of the file once there are so many.
std::vector<Json> lines(const std::string& path, size_t count) {
  std::vector<Json> list;
  eventually([&] {
    std::istringstream text(read_file(path));
    list.clear();
    for (std::string line; std::getline(text, line);) {
      if (text.eof()) break;  // without its end
      list.push_back(Json::parse(line));
    }
    return list.size() >= count;
  });
  EXPECT_EQ(list.size(), count);
  return list;
}

std::shared_ptr<RequestRecord> some_record(const std::string& id) {
  auto record = std::make_shared<RequestRecord>();
  record->time = 1700000000.0625, record->id = id, record->path = "/x";
  return record;
}

TEST_F(AccessLogTest, SaysWhatARequestWasAndBecame) {
  const std::string path = some_path();
  const TinyServer tiny({.log = {.access_log = path}});
  const std::string prompt = "BCDBCDBCD";
  const Answer whole =
      tiny.complete({{"prompt", prompt}, {"max_tokens", 5}, {"ignore_eos", true}}, "X-Request-Id: mine\r\n");
  const Json line = lines(path, 1)[0];
  EXPECT_EQ(line["request_id"], "mine");
  EXPECT_EQ(line["method"], "POST");
  EXPECT_EQ(line["path"], "/v1/completions");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["bytes"], whole.head.size() + 4 + whole.body.size());
  EXPECT_EQ(line["prompt_tokens"], 9);
  EXPECT_EQ(line["cached_tokens"], 0);
  EXPECT_EQ(line["output_tokens"], 5);
  EXPECT_EQ(line["finish_reason"], "length");
  EXPECT_FALSE(line.contains("error") || line.contains("key"));
  EXPECT_TRUE(line["peer"].get<std::string>().starts_with("127.0.0.1:"));
  EXPECT_TRUE(line["time"].get<std::string>().ends_with("Z"));
  EXPECT_LE(line["first_byte_seconds"], line["seconds"]);
  EXPECT_GT(line["first_byte_seconds"], 0);
  EXPECT_EQ(read_file(path).find(prompt), std::string::npos);
}

TEST_F(AccessLogTest, StreamsErrorsAndRefusalsAreThere) {
  const std::string path = some_path(), keys = some_path(), key = make_key();
  write_file(keys, key_line("alice", key) + "\n");
  const TinyServer tiny({.log = {.access_log = path}, .keys = keys});
  const std::string with = "Authorization: Bearer " + key + "\r\n";
  EXPECT_EQ(tiny.complete({{"prompt", "B"}, {"stream", true}}, with).status, 200);
  EXPECT_EQ(lines(path, 1)[0]["key"], "alice");
  EXPECT_EQ(tiny.complete({{"prompt", "B"}}).status, 401);
  EXPECT_EQ(lines(path, 2)[1]["error"], "invalid_api_key");
  EXPECT_EQ(tiny.complete({{"prompt", std::string(300, 'B')}}, with).status, 400);
  EXPECT_EQ(lines(path, 3)[2]["error"], "context_length_exceeded");
  EXPECT_EQ(tiny.ask("GET", "/nothing?secret=1").status, 404);
  EXPECT_EQ(lines(path, 4)[3]["path"], "/nothing");
  EXPECT_EQ(tiny.ask("GET", "/livez").status, 200);
  Peer(tiny.server->port()).send("rubbish\r\n\r\n").read();
  EXPECT_EQ(lines(path, 5)[4]["status"], 400) << "a probe that succeeds is left out";
  EXPECT_EQ(read_file(path).find(key), std::string::npos);
}

TEST_F(AccessLogTest, AClientThatLeavesIsStatus499) {
  const std::string path = some_path();
  const TinyServer tiny({.log = {.access_log = path}}, {.limits = fake_limits(), .step_seconds = 1e-3});
  const std::string body = Json{{"prompt", "B"}, {"max_tokens", 60}, {"ignore_eos", true}}.dump();
  Peer peer(tiny.server->port());
  peer.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n" + body);
  ASSERT_TRUE(eventually([&] { return tiny.engine->stats().running > 0; }));
  peer.half_close().read();
  const Json line = lines(path, 1)[0];
  EXPECT_EQ(line["status"], 499);
  EXPECT_EQ(line["finish_reason"], "abort");
}

TEST_F(AccessLogTest, ControlCharactersAreEscaped) {
  RequestRecord record;
  record.id = "a\n\x1b[31m\x7f\"\xff\u202e", record.path = "/\r\n{}";
  const std::string line = access_line(record);
  EXPECT_TRUE(std::ranges::all_of(line, [](char c) { return c >= ' ' && c < 0x7f; })) << line;
  EXPECT_EQ(Json::parse(line)["path"], record.path);
}

TEST_F(AccessLogTest, IsReopenedWhereItWasMoved) {
  const std::string path = some_path(), moved = some_path();
  AccessLog log(path);
  log.add(some_record("a"));
  EXPECT_EQ(lines(path, 1)[0]["time"], "2023-11-14T22:13:20.062Z");
  rename_path(path, moved);
  log.reopen();
  log.add(some_record("b"));
  EXPECT_EQ(lines(path, 1)[0]["request_id"], "b");
  EXPECT_EQ(lines(moved, 1)[0]["request_id"], "a");
  remove_path(path);
  make_folders(path);
  EXPECT_NE(error_of([&] { log.reopen(); }).find(path), std::string::npos);
  EXPECT_NE(error_of([&] { AccessLog("/nowhere/log"); }).find("want a writable file"), std::string::npos);
}

// A pipe that nobody empties blocks the writer, and no one else.
TEST_F(AccessLogTest, AFullQueueDropsAndCounts) {
  const std::string path = some_path();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Descriptor reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  auto log = std::make_unique<AccessLog>(path);
  while (log->dropped() < 1000) log->add(some_record(std::string(100, 'x')));
  std::string block(1 << 16, ' ');
  ::fcntl(reader.value, F_SETFL, 0);
  const auto empty = std::jthread([&] {
    while (::read(reader.value, block.data(), block.size()) > 0) {
    }
  });
  log.reset();  // writes what waits, and the reader sees the end
}

}  // namespace
}  // namespace octet::serve
