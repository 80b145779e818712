#include "tasks/python_random.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"

namespace octet {

// init_by_array([seed]) of CPython's _randommodule.c.
PythonRandom::PythonRandom(uint32_t seed) {
  constexpr size_t kSize = 624;
  state_[0] = 19650218;
  for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  size_t i = 1;
  const auto step = [&](uint32_t factor, uint32_t add) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * factor)) + add;
    if (++i == kSize) state_[0] = state_[kSize - 1], i = 1;
  };
  for (size_t k = 0; k < kSize; ++k) step(1664525u, seed);
  for (size_t k = 0; k + 1 < kSize; ++k) step(1566083941u, static_cast<uint32_t>(0 - i));
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::next() {
  constexpr size_t kSize = 624, kMiddle = 397;
  if (at_ == kSize) {
    for (size_t i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7fffffffu);
      state_[i] = state_[(i + kMiddle) % kSize] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double PythonRandom::uniform() {
  const uint32_t a = next() >> 5, b = next() >> 6;
  return (a * 67108864.0 + b) / 9007199254740992.0;
}

size_t PythonRandom::below(size_t limit) {
  const int bits = std::bit_width(limit);
  size_t value = limit;
  while (value >= limit) value = next() >> (32 - bits);
  return value;
}

std::vector<size_t> PythonRandom::sample(size_t population, size_t count) {
  check(count <= population && population < (size_t{1} << 31), ErrorCode::kInternal, "{} samples of {}", count,
        population);
  std::vector<size_t> result(count);
  size_t set_size = 21;
  if (count > 5)
    set_size +=
        static_cast<size_t>(std::pow(4.0, std::ceil(std::log(3.0 * static_cast<double>(count)) / std::log(4.0))));
  if (population <= set_size) {
    std::vector<size_t> pool(population);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t j = below(population - i);
      result[i] = pool[j];
      pool[j] = pool[population - i - 1];
    }
    return result;
  }
  std::set<size_t> selected;
  for (size_t& one : result) {
    do one = below(population);
    while (!selected.insert(one).second);
  }
  return result;
}

}  // namespace octet
