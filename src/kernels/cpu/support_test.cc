// docs/support.md is what the case list and the kernel rows say.
#include "kernels/cpu/testing/support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/testing/test_data.h"
#include "kernels/cpu/matmul/onednn_gemm.h"

namespace octet::cpu {
namespace {

TEST(Support, CommittedTableIsCurrent) {
  if (*onednn_version() == '\0') GTEST_SKIP() << "libdnnl.so.2 is absent: its rows are not in the table";
  const std::string table = support_table();
  std::ifstream file(source_dir() + "/docs/support.md");
  std::stringstream committed;
  committed << file.rdbuf();
  if (committed.str() == table) return;
  const std::string made = testing::TempDir() + "octet_support.md";
  std::ofstream(made) << table;
  FAIL() << "docs/support.md is out of date: cp " << made << " docs/support.md";
}

}  // namespace
}  // namespace octet::cpu
