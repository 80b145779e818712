// How far vectors are apart.
#pragma once

#include <cmath>
#include <vector>

namespace octet {

// |a - b| / |b|, both of one length.
inline double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace octet
