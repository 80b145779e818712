#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace octet {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;  // table 2 of the paper
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
constexpr uint64_t kHostStreams = 0x9E3779B97F4A7C15u;  // keeps host streams apart from graph_random

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

uint64_t mix64(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

PhiloxBlock graph_random(uint64_t seed, uint64_t step, uint32_t micro_batch, uint32_t node_key, uint64_t block) {
  uint64_t key = seed ^ mix64(step);
  return philox({low(block), high(block), node_key, micro_batch}, {low(key), high(key)});
}

uint32_t Philox::next_u32() {
  if (used_ == 4) {
    uint64_t key = mix64(seed_ + kHostStreams);
    words_ = philox({low(block_), high(block_), low(stream_), high(stream_)}, {low(key), high(key)});
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

uint64_t Philox::next_u64() {
  uint64_t upper = next_u32();
  return upper << 32 | next_u32();
}

// Lemire, "Fast random integer generation in an interval", 2019: the rejection makes it unbiased.
uint64_t Philox::below(uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(next_u64()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    uint64_t threshold = -bound % bound;
    while (static_cast<uint64_t>(product) < threshold) product = static_cast<Wide>(next_u64()) * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

double Philox::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double Philox::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - u is in (0, 1]: the logarithm is finite
  double angle = 2 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace octet
