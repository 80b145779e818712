// JSON string quoting for the files that the tokenizer and corpus code writes through base/file.h.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace octet {

void make_folder(const std::string& path);  // and its parents; "" and existing folders are fine
// "text" with JSON escapes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace octet
