// The only source that depends on the commit: it alone is recompiled when HEAD moves (cmake/build_commit.cmake).
#include "build_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "build_commit.h"

namespace octet {
namespace {

// The instruction sets that -march (possibly "native") enabled.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
#ifdef __AVX2__
  sets.emplace_back("AVX2");
#endif
#ifdef __AVX512F__
  sets.emplace_back("AVX-512");
#endif
#ifdef __AVX512VNNI__
  sets.emplace_back("AVX-512-VNNI");
#endif
#ifdef __AVX512BF16__
  sets.emplace_back("AVX-512-BF16");
#endif
#ifdef __AMX_BF16__
  sets.emplace_back("AMX-BF16");
#endif
#ifdef __ARM_NEON
  sets.emplace_back("NEON");
#endif
#ifdef __ARM_FEATURE_SVE
  sets.emplace_back("SVE");
#endif
  if (sets.empty()) sets.emplace_back("the baseline alone");
  return sets;
}

}  // namespace

std::string version_text(const std::string& program) {
  return fmt::format("{} {} (commit {})\ncompiler: {}\nCPU: -march={} ({})\nCUDA: {}", program, OCTET_VERSION,
                     OCTET_COMMIT, OCTET_COMPILER, OCTET_MARCH, fmt::join(instruction_sets(), ", "), OCTET_CUDA_BUILD);
}

}  // namespace octet
