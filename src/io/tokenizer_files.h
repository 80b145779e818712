// Small file helpers of the tokenizer and corpus code: whole-file read, write beside and rename, JSON string quoting.
#pragma once

#include <string>
#include <string_view>

namespace octet {

std::string read_file(const std::string& path);
// Writes PATH.partial, syncs it and renames it: PATH is either the old file or the whole new one.
void write_file(const std::string& path, std::string_view bytes);
// "text" with JSON escapes; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace octet
