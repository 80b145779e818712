// Whole folders: round trip, every kind of damage, and faults at every byte of a replacement.
#include "io/manifest.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/testing/test_data.h"

namespace octet {
namespace {

void fill(FolderWriter& writer, const std::string& content) {
  write_file(writer.file("model.bin"), content);
  write_file(writer.file("empty"), "");
  make_folders(writer.file("ranks"));
  write_file(writer.file("ranks/0.bin"), content + content);
}

std::string error_of(const std::string& folder, ErrorCode code, Verify depth = Verify::kChecksums) {
  try {
    verify_folder(folder, depth);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    return error.message();
  }
  return "accepted";
}

class ManifestTest : public ::testing::Test {
 protected:
  void TearDown() override { inject_write_fault(-1, 0); }
  void write(const std::string& content) {
    FolderWriter writer(path);
    fill(writer, content);
    writer.commit(R"({"step": 7, "rate": 0.1})");
  }
  TempFolder folder;
  std::string path = folder.file("checkpoint");
};

// What its writer checksummed is not read again, but must be there.
TEST_F(ManifestTest, KnownFilesAreTakenFromTheirWriters) {
  const auto commit = [&](const ManifestFile& known) {
    FolderWriter writer(path);
    fill(writer, "some");
    writer.commit("{}", {known});
  };
  commit({"model.bin", 4, 17});
  EXPECT_EQ(
      read_manifest(path).files,
      (std::vector<ManifestFile>{{"empty", 0, 0}, {"model.bin", 4, 17}, {"ranks/0.bin", 8, crc32c("somesome", 8)}}));
  for (const ManifestFile& wrong : {ManifestFile{"model.bin", 5, 17}, ManifestFile{"absent", 4, 17}})
    EXPECT_THROW(commit(wrong), Error) << wrong.name;
  EXPECT_EQ(read_manifest(path).files[1].crc32c, 17u);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"checkpoint"});
}

TEST_F(ManifestTest, RoundTripAndReplacement) {
  write("old");
  Manifest manifest = verify_folder(path);
  ASSERT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(manifest.files[1], (ManifestFile{"model.bin", 3, crc32c("old", 3)}));
  EXPECT_EQ(manifest.files[2].name, "ranks/0.bin");
  EXPECT_EQ(parse_json(manifest.info, "info").at("step"), 7);
  write("newer");
  EXPECT_EQ(read_file(path + "/model.bin"), "newer");
  EXPECT_EQ(verify_folder(path + "/").files[1].bytes, 5);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"checkpoint"});
  write_file(path + "/notes.txt", "not listed, not judged");
  verify_folder(path);
}

TEST_F(ManifestTest, OthersManifestsAreNotTakenForOurs) {
  write("content");
  EXPECT_TRUE(has_manifest(path));
  const std::string text = read_file(path + "/manifest.json");
  write_file(path + "/manifest.json", text.substr(0, text.size() / 2));  // damaged
  EXPECT_TRUE(has_manifest(path));
  for (const char* other : {"{}", "[1]", R"({"name": "an app", "files": []})", R"({"format": 3})"}) {
    write_file(path + "/manifest.json", other);
    EXPECT_FALSE(has_manifest(path)) << other;
  }
  remove_path(path + "/manifest.json");
  EXPECT_FALSE(has_manifest(path));
}

TEST_F(ManifestTest, DamageIsReportedByFile) {
  write("content");
  write_file(path + "/model.bin", "cOntent");
  EXPECT_EQ(error_of(path, ErrorCode::kCorrupt, Verify::kSizes), "accepted");
  std::string text = error_of(path, ErrorCode::kCorrupt);
  EXPECT_NE(text.find("1 of 3 files are damaged: model.bin: content does not match"), std::string::npos) << text;
  write_file(path + "/model.bin", "short");
  remove_path(path + "/ranks/0.bin");
  text = error_of(path, ErrorCode::kCorrupt, Verify::kSizes);
  EXPECT_NE(text.find("model.bin: 5 bytes instead of 7"), std::string::npos) << text;
  EXPECT_NE(text.find("ranks/0.bin: missing"), std::string::npos) << text;
  EXPECT_EQ(verify_folder(path, Verify::kChecksums, {"model.bin", "ranks/0.bin"}).files.size(), 3u);
  make_folders(path + "/ranks/0.bin");
  EXPECT_NE(error_of(path, ErrorCode::kCorrupt).find("is a folder"), std::string::npos);
  remove_path(path + "/manifest.json");
  EXPECT_NE(error_of(path, ErrorCode::kNotFound).find("never finished"), std::string::npos);
  EXPECT_NE(error_of(folder.file("absent"), ErrorCode::kNotFound), "accepted");
}

TEST_F(ManifestTest, EveryDamagedByteOfTheManifestIsNoticedOrHarmless) {
  write("x");
  const std::string good = read_file(path + "/manifest.json");
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    write_file(path + "/manifest.json", bad);
    try {
      Manifest manifest = read_manifest(path);
      EXPECT_TRUE(std::isspace(static_cast<unsigned char>(good[i]))) << "byte " << i << " '" << good[i] << "'";
      EXPECT_EQ(manifest.files.size(), 3u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
    write_file(path + "/manifest.json", good.substr(0, i));
    EXPECT_EQ(i + 1 == good.size(), error_of(path, ErrorCode::kCorrupt) == "accepted") << i;
  }
}

// A manifest whose own checksum is right but whose claims are not.
TEST_F(ManifestTest, HostileManifestsAreRefused) {
  write("x");
  for (const char* files :
       {R"([{"name":"../x","bytes":1,"crc32c":0}])", R"([{"name":"/etc/passwd","bytes":1,"crc32c":0}])",
        R"([{"name":"a/../../x","bytes":1,"crc32c":0}])", R"([{"name":"","bytes":1,"crc32c":0}])",
        R"([{"name":"model.bin","bytes":-1,"crc32c":0}])", R"([{"name":"model.bin","bytes":1}])",
        R"([{"name":"model.bin","bytes":1,"crc32c":4294967296}])", R"([7])", R"(7)",
        R"([{"name":"e","bytes":0,"crc32c":0},{"name":"e","bytes":0,"crc32c":0}])"}) {
    auto root =
        nlohmann::ordered_json::parse(R"({"format":"octet-folder","info":{},"files":)" + std::string(files) + "}");
    std::string text = root.dump();
    root["manifest_crc32c"] = crc32c(text.data(), static_cast<int64_t>(text.size()));
    write_file(path + "/manifest.json", root.dump());
    EXPECT_NE(error_of(path, ErrorCode::kCorrupt), "accepted") << files;
  }
  for (const char* text : {"{}", "[]", "", "{\"format\":\"octet-folder\"}", "{\"format\":1}"}) {
    write_file(path + "/manifest.json", text);
    EXPECT_NE(error_of(path, ErrorCode::kCorrupt), "accepted") << text;
  }
}

TEST_F(ManifestTest, FaultsLeaveThePreviousFolder) {
  write("old");
  for (int error_number : {ENOSPC, EIO}) {
    int64_t room = 0;
    for (bool failed = true; failed; room += 11) {
      inject_write_fault(room, error_number);
      failed = false;
      try {
        FolderWriter writer(folder.file("other"));
        fill(writer, "new content");
        writer.commit();
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::kIo);
      }
      inject_write_fault(-1, 0);
      EXPECT_EQ(path_exists(folder.file("other")), !failed);
      EXPECT_FALSE(path_exists(folder.file("other.tmp")));
      ASSERT_LT(room, 10000);
    }
    EXPECT_GT(room, 100) << "the fault never struck";
    remove_path(folder.file("other"));
  }
  inject_write_fault(3, ENOSPC);
  EXPECT_THROW(write("new"), Error);
  inject_write_fault(-1, 0);
  EXPECT_EQ(read_file(path + "/model.bin"), "old");
  verify_folder(path);
  {
    FolderWriter abandoned(path);
    fill(abandoned, "half");
    EXPECT_THROW(abandoned.commit("not json"), Error);
    EXPECT_THROW(abandoned.commit("[]"), Error);
  }
  verify_folder(path);
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"checkpoint"});
}

TEST_F(ManifestTest, LeftoversOfAKilledWriterAreReplaced) {
  make_folders(path + ".tmp/junk");
  write("a");
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"checkpoint"});
  EXPECT_EQ(verify_folder(path).files.size(), 3u);
}

}  // namespace
}  // namespace octet
