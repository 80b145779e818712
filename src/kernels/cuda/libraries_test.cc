// Which paths of CUDA's libraries are offered, and in which order.
#include "kernels/cuda/context.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace octet::cuda {
namespace {

namespace fs = std::filesystem;

TEST(PythonLibraries, TheActiveEnvironmentComesBeforeTheUsersOwn) {
  const fs::path base = fs::path(testing::TempDir()) / "octet_python_libraries";
  fs::remove_all(base);
  const std::string inside = "lib/python3.11/site-packages/nvidia/cu13/lib";
  std::vector<std::string> made;
  for (const fs::path& root : {base / "venv", base / "home" / ".local"}) {
    fs::create_directories(root / inside);
    made.push_back((root / inside / "libnobody.so.7").string());
    std::ofstream(made.back()) << "x";
  }
  const char* environment = std::getenv("VIRTUAL_ENV");
  const char* home = std::getenv("HOME");
  const std::string old_environment = environment ? environment : "", old_home = home ? home : "";
  setenv("VIRTUAL_ENV", (base / "venv").c_str(), 1);
  setenv("HOME", (base / "home").c_str(), 1);
  EXPECT_EQ(python_libraries("cu13", "libnobody.so.7"), made);
  EXPECT_TRUE(python_libraries("cudnn", "libnobody.so.7").empty());
  EXPECT_TRUE(python_libraries("cu13", "libnobody.so.8").empty());
  environment ? setenv("VIRTUAL_ENV", old_environment.c_str(), 1) : unsetenv("VIRTUAL_ENV");
  home ? setenv("HOME", old_home.c_str(), 1) : unsetenv("HOME");
  fs::remove_all(base);
}

}  // namespace
}  // namespace octet::cuda
