// For tests: the path of test data, and a temporary folder that is removed on destruction.
//
//   std::string path = test_data_path("hf_goldens/gpt2");
//   if (path.empty()) GTEST_SKIP() << missing_test_data("hf_goldens/gpt2");
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace octet {

// The root of the source tree the test was built from.
std::string source_dir();

// The path of `name` inside $OCTET_TEST_DATA, else inside ../shared/data beside the source tree; "" when absent.
inline std::string test_data_path(const std::string& name) {
  const char* variable = std::getenv("OCTET_TEST_DATA");
  std::string root = variable ? variable : source_dir() + "/../shared/data";
  std::string path = root + "/" + name;
  std::error_code error;
  return !root.empty() && std::filesystem::exists(path, error) ? path : "";
}

inline std::string missing_test_data(const std::string& name) {
  return "test material '" + name + "' is absent: set OCTET_TEST_DATA to the folder that holds it";
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "octet_test_XXXXXX").string();
    check(mkdtemp(pattern.data()) != nullptr, ErrorCode::kIo, "cannot make a folder like {}", pattern);
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace octet
