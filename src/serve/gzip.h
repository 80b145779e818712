// Bodies with Content-Encoding: gzip.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octet::serve {

// How many bytes it says that it unpacks to; 0 for what is too short to say.
size_t gzip_size(std::string_view packed);

// The bytes; never more than it says, and no memory for more than `most` of them. ApiError 413 for more, 400 for what
// is damaged or holds several members.
std::string unpack_gzip(std::string_view packed, size_t most);

}  // namespace octet::serve
