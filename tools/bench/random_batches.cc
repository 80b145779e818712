#include "bench/random_batches.h"

namespace octet {

std::vector<Batch> random_batches(int64_t micro_batches, int64_t sequences, int64_t length, int64_t vocab) {
  std::vector<Batch> batches;
  uint64_t state = 1337;
  auto next_token = [&] {  // linear congruential generator: any spread of ids will do
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab));
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    BatchPacker packer(sequences, length, false);
    for (int64_t s = 0; s < sequences; ++s) {
      std::vector<int32_t> tokens(static_cast<size_t>(length) + 1);
      for (int32_t& token : tokens) token = next_token();
      packer.add(tokens, {0});
    }
    batches.push_back(packer.finish());
  }
  return batches;
}

}  // namespace octet
