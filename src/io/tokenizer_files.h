// Files of a tokenizer: JSON string quoting for those that the tokenizer and corpus code writes through base/file.h,
// and copies of a folder's.
#pragma once

#include <string>
#include <string_view>

#include "base/file.h"

namespace octet {

void make_folder(const std::string& path);  // with parents; "" and existing folders are allowed
// "text" with JSON escapes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);
// Copies the tokenizer files and generation_config.json of folder `from` to `to`.
void copy_tokenizer_files(const std::string& from, const std::string& to);

}  // namespace octet
