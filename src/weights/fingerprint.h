// A short text that tells the weights of one model from those of another.
#pragma once

#include <string>

#include "weights/weights.h"

namespace octet {

// Of sizes and values, whatever the files' names, parts and float types that hold them exactly: vectors of up to 4,096
// values whole, of larger parameters rows spread over them. Milliseconds for small models, seconds for the largest.
// Throws as views do.
std::string weights_fingerprint(const WeightSource& weights);

}  // namespace octet
