// docs/support.md is what the case list and the kernel rows say.
#include "kernels/cpu/testing/support.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/testing/test_data.h"
#include "kernels/cpu/matmul/onednn_gemm.h"

namespace octet::cpu {
namespace {

// What follows the table, the choices of CUDA kernels, is made by a CUDA build (tests/cuda/choose_test.cc).
TEST(Documents, SupportTableIsTheGeneratedOne) {
  if (*onednn_version() == '\0') GTEST_SKIP() << "libdnnl.so.2 is absent: its rows are not in the table";
  const std::string table = support_table(), path = source_dir() + "/docs/support.md";
  std::stringstream committed;
  committed << std::ifstream(path).rdbuf();
  const std::string text = committed.str(), choices = text.substr(std::min(text.find("## Choices"), text.size()));
  if (text == table + choices) return;
  if (std::getenv("OCTET_UPDATE_GOLDENS") == nullptr) FAIL() << "docs/support.md is out of date: run make docs";
  std::ofstream(path) << table << choices;
}

}  // namespace
}  // namespace octet::cpu
