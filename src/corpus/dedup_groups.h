// The file of groups: for each document, in the order of all inputs, the number of the first of its group, its own
// where it stays; with kNearDuplicate where its words differ from those of that one.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "corpus/signatures.h"

namespace octet {

constexpr uint64_t kNearDuplicate = uint64_t{1} << 63;

inline std::span<const uint64_t> groups_of(const MappedFile& file, const DocumentTable& table) {
  check(file.size() == table.documents() * 8, ErrorCode::kCorrupt, "{}: {} bytes for {} documents: remove it",
        file.path(), file.size(), table.documents());
  return {reinterpret_cast<const uint64_t*>(file.bytes().data()), static_cast<size_t>(table.documents())};
}

}  // namespace octet
