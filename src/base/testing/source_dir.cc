// The only source that depends on the path of the source tree, so that a compiler cache works for all other tests in
// any checkout.
#include "base/testing/test_data.h"

namespace octet {

std::string source_dir() { return OCTET_SOURCE_DIR; }

}  // namespace octet
