// Algorithm choices of matrix products: the library's suggestions, timed once per product, kept in a file so that later
// runs make the same choice without timing.
//
// A choice belongs to the product (GemmSpec::key), the device's name and the library's version. Deterministic runs time
// nothing and read no file: they take the library's first suggestion, which depends on nothing else. The file is text,
// a line a choice; one that is not ours is left alone, a damaged line is dropped, either with a warning: what is lost
// is measured again.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "kernels/cuda/matmul/gemm.h"

namespace octet::cuda {

class GemmTuning final : public DeviceLibrary {
 public:
  explicit GemmTuning(DeviceContext& context);
  GemmTuning(const GemmTuning&) = delete;
  ~GemmTuning() override { save(); }

  // The algorithm for this product; none when the library has no kernel for it. May allocate and use the context's
  // stream: for binding only.
  std::optional<cublasLtMatmulAlgo_t> choose(Gemm& gemm);
  // Writes what was measured since the last time.
  void save() override;

 private:
  std::optional<cublasLtMatmulAlgo_t> fastest(Gemm& gemm, const std::vector<cublasLtMatmulAlgo_t>& algorithms);
  void load();

  DeviceContext& context_;
  std::string file_, prefix_;
  int64_t unsaved_ = 0;                                  // choices
  double seconds_ = 0;                                   // of measuring them
  std::map<std::string, cublasLtMatmulAlgo_t> choices_;  // by prefix and product
};

// The text of choices: reading throws kCorrupt when it is not such a file; damaged lines are counted and left out.
std::map<std::string, cublasLtMatmulAlgo_t> read_gemm_choices(std::string_view text, int& damaged);
std::string write_gemm_choices(const std::map<std::string, cublasLtMatmulAlgo_t>& choices);

}  // namespace octet::cuda
