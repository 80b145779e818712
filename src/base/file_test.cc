// Files, faults and checksums. Faults are injected at the write call and, once, by the kernel itself (/dev/full, a file
// size limit).
#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

class Files : public ::testing::Test {
 protected:
  void TearDown() override { inject_write_fault(-1, 0); }

  template <typename Call>
  Error error_of(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return {ErrorCode::kInternal, ""};
  }
  TempFolder folder;
};

TEST_F(Files, WriteReadAndMap) {
  std::string path = folder.file("a");
  std::string content(3 << 20, 'x');
  content += '\0';
  write_file(path, content);
  EXPECT_EQ(read_file(path), content);
  EXPECT_EQ(file_size(path), static_cast<int64_t>(content.size()));
  MappedFile first(path);
  MappedFile map = std::move(first);
  EXPECT_EQ(first.size(), 0);  // NOLINT(bugprone-use-after-move): what this test is about
  ASSERT_EQ(map.size(), static_cast<int64_t>(content.size()));
  EXPECT_EQ(std::memcmp(map.bytes().data(), content.data(), content.size()), 0);
  write_file(path, "");
  EXPECT_EQ(MappedFile(path).size(), 0);
  EXPECT_EQ(map.bytes()[5], std::byte{'x'}) << "a rename must not disturb an open map";
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"a"}) << "a temporary file was left behind";
}

TEST_F(Files, BadPathsAreNamed) {
  EXPECT_EQ(error_of([&] { read_file(folder.file("absent")); }).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of([&] { MappedFile map(folder.file("absent")); }).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of([&] { file_size(folder.path()); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { write_file(folder.file("no/such/folder"), "x"); }).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of([&] { list_folder(folder.file("absent")); }).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of([&] { MappedFile map("/dev/zero"); }).code(), ErrorCode::kInvalidArgument);
  write_file(folder.file("big"), "12345");
  Error error = error_of([&] { read_file(folder.file("big"), 4); });
  EXPECT_NE(error.message().find("5 bytes"), std::string::npos);
  EXPECT_EQ(error_of([&] { make_folders(folder.file("big/sub")); }).code(), ErrorCode::kIo);
  EXPECT_EQ(error_of([&] { make_folders(folder.file("big")); }).code(), ErrorCode::kIo);
}

TEST_F(Files, FullDiskKeepsTheOldFile) {
  std::string path = folder.file("state");
  write_file(path, "old");
  for (int64_t room : {0, 1, 5000, 1 << 20}) {
    inject_write_fault(room, ENOSPC);
    Error error = error_of([&] { write_file(path, std::string(3 << 20, 'n')); });
    inject_write_fault(-1, 0);
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(error.message().find("disk is full"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(path), std::string::npos);
    EXPECT_EQ(read_file(path), "old");
    EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"state"});
  }
}

// The kernel's own short write: a limit on the size of files.
TEST_F(Files, KernelLimitKeepsTheOldFile) {
  std::string path = folder.file("state");
  write_file(path, "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{100000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  Error error = error_of([&] { write_file(path, std::string(3 << 20, 'n')); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_EQ(read_file(path), "old");
}

TEST_F(Files, AppendCutsARecordThatDoesNotFit) {
  std::string path = folder.file("log");
  AppendFile log(path);
  log.append("one\n");
  inject_write_fault(2, ENOSPC);
  EXPECT_EQ(error_of([&] { log.append("two\n"); }).code(), ErrorCode::kIo);
  inject_write_fault(-1, 0);
  log.append("three\n");
  log.sync();
  EXPECT_EQ(read_file(path), "one\nthree\n");
  AppendFile again(path);
  again.append("four\n");
  EXPECT_EQ(read_file(path), "one\nthree\nfour\n");
  if (path_exists("/dev/full")) {
    Error error = error_of([&] { AppendFile("/dev/full").append("x"); });
    EXPECT_NE(error.message().find("disk is full"), std::string::npos) << error.message();
  }
}

TEST_F(Files, UnfinishedWriterLeavesNothing) {
  std::string path = folder.file("state");
  {
    FileWriter writer(path);
    writer.write("half");
    EXPECT_EQ(writer.position(), 4);
    EXPECT_EQ(writer.checksum(), crc32c("half", 4));
  }
  EXPECT_TRUE(list_folder(folder.path()).empty());
  FileWriter writer(path);
  writer.commit();
  EXPECT_EQ(error_of([&] { writer.write("x"); }).code(), ErrorCode::kInternal);
  EXPECT_EQ(error_of([&] { writer.commit(); }).code(), ErrorCode::kInternal);
}

TEST_F(Files, HaveOneWriterAtATime) {
  const std::string path = folder.file("state");
  FileWriter first(path);
  first.write("first");
  const Error error = error_of([&] { FileWriter second(path); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message().find("state: another process is writing it"), std::string::npos) << error.message();
  first.commit();
  EXPECT_EQ(read_file(path), "first");
  FileWriter next(path);
  next.commit();
  EXPECT_EQ(read_file(path), "");
}

TEST_F(Files, Folders) {
  make_folders(folder.file("a/b/c"));
  make_folders(folder.file("a/b/c"));
  EXPECT_TRUE(is_folder(folder.file("a/b")));
  sync_path(folder.file("a"));
  rename_path(folder.file("a"), folder.file("z"));
  EXPECT_EQ(error_of([&] { rename_path(folder.file("a"), folder.file("y")); }).code(), ErrorCode::kNotFound);
  remove_path(folder.file("z"));
  remove_path(folder.file("z"));
  EXPECT_FALSE(path_exists(folder.file("z")));
  EXPECT_EQ(parent_folder("x"), ".");
  EXPECT_EQ(parent_folder("a/x"), "a");
}

// RFC 3720 (iSCSI), appendix B.4.
TEST(Crc32c, KnownAnswers) {
  std::string zeros(32, '\0'), ones(32, '\xff'), rising(32, '\0');
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(zeros.data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones.data(), 32), 0x62a8ab43u);
  EXPECT_EQ(crc32c(rising.data(), 32), 0x46dd794eu);
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c("", 0), 0u);
}

TEST(Crc32c, PortableEqualsInstructionAndPiecesEqualTheWhole) {
  Philox random(9);
  std::string data(1000, '\0');
  for (char& byte : data) byte = static_cast<char>(random.next_u32());
  for (int64_t offset = 0; offset < 9; ++offset)
    for (int64_t length : {0, 1, 7, 8, 9, 63, 991}) {
      uint32_t whole = crc32c(data.data() + offset, length);
      EXPECT_EQ(whole, crc32c_portable(data.data() + offset, length));
      int64_t cut = length / 3;
      EXPECT_EQ(whole, crc32c(data.data() + offset + cut, length - cut, crc32c(data.data() + offset, cut)));
    }
}

}  // namespace
}  // namespace octet
