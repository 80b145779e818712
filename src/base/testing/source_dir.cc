// The one source that knows where the source tree lies, so that a compiler cache serves every other test from any
// checkout.
#include "base/testing/test_data.h"

namespace octet {

std::string source_dir() { return OCTET_SOURCE_DIR; }

}  // namespace octet
