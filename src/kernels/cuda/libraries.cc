#include "kernels/cuda/libraries.h"

#include <glob.h>

#include <cstdlib>

namespace octet::cuda {

std::vector<std::string> python_libraries(const std::string& package, const std::string& file) {
  std::vector<std::string> roots;
  if (const char* environment = std::getenv("VIRTUAL_ENV")) roots.emplace_back(environment);
  if (const char* home = std::getenv("HOME")) roots.push_back(std::string(home) + "/.local");
  for (const char* root : {"/opt/*/.venv", "/opt/*", "/usr/local", "/usr"}) roots.emplace_back(root);
  std::vector<std::string> paths;
  for (const std::string& root : roots) {
    glob_t found{};
    const std::string pattern = root + "/lib/python3*/*-packages/nvidia/" + package + "/lib/" + file;
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
      paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
  }
  return paths;
}

}  // namespace octet::cuda
