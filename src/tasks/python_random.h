// Python's random.Random, bit for bit: the few shots and the bootstrapped errors of lm-evaluation-harness are drawn
// from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octet {

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.Random(seed)

  std::vector<size_t> sample(size_t population, size_t count);  // indices of random.sample(); count <= population
  double uniform();                                             // random.random()
  size_t choice(size_t population) {                            // an index of random.choices()
    return static_cast<size_t>(uniform() * static_cast<double>(population));
  }

 private:
  uint32_t next();
  size_t below(size_t limit);  // _randbelow(), limit < 2^32

  std::array<uint32_t, 624> state_;  // of the Mersenne Twister
  size_t at_ = 624;
};

}  // namespace octet
