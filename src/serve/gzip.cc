#include "serve/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include "serve/fields.h"

namespace octet::serve {

size_t gzip_size(std::string_view packed) {
  size_t size = 0;
  for (size_t i = 0; packed.size() >= 18 && i < 4; ++i)  // the last four bytes, the lowest first
    size |= size_t{static_cast<unsigned char>(packed[packed.size() - 4 + i])} << (8 * i);
  return size;
}

std::string unpack_gzip(std::string_view packed, size_t most) {
  const size_t size = gzip_size(packed);
  const ApiError damaged("the body is not a gzip stream of one member", "Content-Encoding");
  if (!packed.starts_with("\x1f\x8b")) throw damaged;
  if (size > most) throw ApiError(fmt::format("the body unpacks to {} bytes (at most {})", size, most), {}, 413);
  std::string bytes(size + 1, 0);  // a byte more than wanted: there must be nothing for it
  z_stream stream = {};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) throw ApiError("not enough memory to unpack the body", {}, 503);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));  // which zlib does not write to
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  const int ended = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (ended != Z_STREAM_END || stream.avail_in != 0 || stream.avail_out != 1) throw damaged;
  bytes.resize(size);
  return bytes;
}

}  // namespace octet::serve
