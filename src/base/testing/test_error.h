// For tests: the message of the error that a call throws.
#pragma once

#include <string>

#include "base/error.h"

namespace octet {

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  }
  return "(no error)";
}

}  // namespace octet
