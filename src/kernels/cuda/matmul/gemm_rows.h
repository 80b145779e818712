// A product through cuBLASLt, whole or its rows in pieces: the library has no kernel for some numbers of rows between
// others that it does well (13.1: 768 x 4096 x 16384 in FP8 with row scales and a bias).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cuda/matmul/gemm.h"

namespace octet::cuda {

class GemmRows {
 public:
  // With the library's choices made; null when it has no kernel for the rows in pieces either (warns: what runs in its
  // place is slow). `most_rows` of a piece is for tests.
  static std::shared_ptr<GemmRows> make(DeviceContext& context, const GemmSpec& spec,
                                        int64_t most_rows = std::numeric_limits<int64_t>::max());
  void run(const GemmOperands& operands, cudaStream_t stream) const;
  size_t pieces() const { return pieces_.size(); }

 private:
  struct Piece {
    int64_t first;  // row
    std::unique_ptr<Gemm> gemm;
  };
  bool add(DeviceContext& context, const GemmSpec& spec, int64_t first, int64_t most_rows);

  std::vector<Piece> pieces_;
};

}  // namespace octet::cuda
