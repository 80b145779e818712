// octet eval --rouge FILE.
#pragma once

#include <string>

namespace octet {

// Prints the scores of each line {target, prediction} of FILE, a line each, and logs their means.
void print_rouge(const std::string& file);

}  // namespace octet
