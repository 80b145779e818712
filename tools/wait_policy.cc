#include "wait_policy.h"

#include <unistd.h>

#include <cstdlib>

namespace octet {

void settle_wait_policy(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return;  // no /proc: continue with the default
  path[length] = '\0';
  if (setenv("GOMP_SPINCOUNT", "1000", 0) != 0) return;
  execv(path, argv);  // returns only on failure: continue with the default
}

}  // namespace octet
