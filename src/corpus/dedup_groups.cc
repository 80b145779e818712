// The stages pairs and groups (dedup.h).
#include "corpus/dedup_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "corpus/dedup.h"

namespace octet {
namespace {

struct Entry {
  uint64_t key, document;
  auto operator<=>(const Entry&) const = default;
};

constexpr size_t kMaxCompared = 64;  // documents of one key that are like none before them, under --verify

// The sets of shingles of documents.
class Sets {
 public:
  Sets(const DocumentTable& table, const WorkFolder& folder) : table_(table) {
    for (size_t file = 0; file < table.files(); ++file)
      files_.emplace_back(folder.path(fmt::format("sets-{:06}.bin", file)));
  }
  double jaccard(uint64_t a, uint64_t b) const {
    const std::span<const uint64_t> left = of(a), right = of(b);
    size_t common = 0, i = 0, j = 0;
    while (i < left.size() && j < right.size()) {
      const uint64_t l = left[i], r = right[j];
      common += l == r, i += l <= r, j += r <= l;
    }
    return static_cast<double>(common) / static_cast<double>(left.size() + right.size() - common);
  }

 private:
  std::span<const uint64_t> of(uint64_t document) const {
    const DocumentTable::Place place = table_.place(document);
    const uint64_t begin = table_.begin_of(place, kSetEnd), end = table_.file(place.file).at(place.row, kSetEnd);
    const MappedFile& file = files_[place.file];
    check(begin < end && end * 8 <= file.bytes().size(), ErrorCode::kCorrupt,
          "{}: ends before the set of document {}: remove it and its signatures", file.path(), place.row);
    return {reinterpret_cast<const uint64_t*>(file.bytes().data()) + begin, end - begin};
  }
  const DocumentTable& table_;
  std::vector<MappedFile> files_;
};

// Writes a pair for each document that is like one before it with the same key, and leaves those that are not: what
// further documents of the key are compared with. Called again with these and more it does the same as once with all.
void settle(std::vector<Entry>& entries, const std::optional<Sets>& sets, double least, FileWriter& out) {
  std::ranges::sort(entries);
  size_t left = 0;
  for (size_t at = 0; at < entries.size();) {
    const size_t begin = left;  // of the key's entries that are left
    const uint64_t key = entries[at].key;
    for (; at < entries.size() && entries[at].key == key; ++at) {
      const uint64_t document = entries[at].document;
      const auto same =
          std::find_if(entries.begin() + static_cast<ptrdiff_t>(begin), entries.begin() + static_cast<ptrdiff_t>(left),
                       [&](const Entry& e) { return !sets || sets->jaccard(e.document, document) >= least; });
      if (same != entries.begin() + static_cast<ptrdiff_t>(left)) {
        const uint64_t pair[] = {same->document, document};
        out.write(pair, sizeof pair);
      } else if (left - begin < kMaxCompared) {
        entries[left++] = {key, document};
      }
    }
  }
  entries.resize(left);
}

uint64_t find_first(std::vector<uint64_t>& parent, uint64_t document) {
  while (parent[document] != document) document = parent[document] = parent[parent[document]];
  return document;
}

}  // namespace

void Dedup::pairs(Shard shard) {
  const std::string path = folder_.path(fmt::format("pairs-{:06}-of-{}.bin", shard.index, shard.count));
  if (path_exists(path)) return;
  const DocumentTable table = documents();
  FileWriter out(path);
  std::optional<Sets> sets;
  if (options_.verify > 0) sets.emplace(table, folder_);
  const int64_t room = std::max<int64_t>(options_.memory / static_cast<int64_t>(sizeof(Entry)), 1024);
  const int64_t parts = std::max<int64_t>((table.documents() / shard.count * 5 / 4 + room - 1) / room, 1);
  CorpusProgress progress{.total_disk_bytes = parts * options_.bands * table.documents() * 8};
  std::vector<Entry> entries;
  for (int64_t part = 0; part < parts; ++part) {
    const auto all = static_cast<unsigned __int128>(shard.count * parts);
    const auto wanted = static_cast<uint64_t>(shard.index * parts + part);
    for (int64_t band = 0; band < options_.bands; ++band) {
      entries.clear();
      int64_t limit = room;
      for (size_t file = 0; file < table.files(); ++file) {
        auto document = static_cast<uint64_t>(table.first(file));
        for (int64_t block = 0; block < table.file(file).blocks(); ++block) {
          for (const uint64_t key : table.file(file).column(block, kFirstBand + band)) {
            if (static_cast<uint64_t>(key * all >> 64) == wanted) entries.push_back({key, document});
            ++document;
          }
          if (std::ssize(entries) < limit) continue;  // many of one key
          settle(entries, sets, options_.verify, out);
          limit = std::max(room, 2 * std::ssize(entries));
        }
      }
      settle(entries, sets, options_.verify, out);
      progress.disk_bytes += table.documents() * 8;
      if (options_.progress) options_.progress("pairs", progress);
    }
  }
  out.commit();
}

void Dedup::groups() {
  const std::string path = folder_.path("groups.bin");
  if (path_exists(path)) return;
  const DocumentTable table = documents();
  check(table.documents() * 8 <= options_.memory, ErrorCode::kInvalidArgument,
        "the groups of {} documents want {} bytes of memory: --memory {} is less", table.documents(),
        table.documents() * 8, options_.memory);
  std::map<std::string, std::vector<std::string>> found;  // "4.bin": pairs of shards of 4
  for (const std::string& name : list_folder(folder_.path("")))
    if (name.starts_with("pairs-") && name.ends_with(".bin"))
      found[name.substr(name.rfind("-of-") + 4)].push_back(name);
  const auto whole = std::ranges::find_if(
      found, [](const auto& entry) { return std::stoll(entry.first) == std::ssize(entry.second); });
  check(whole != found.end(), ErrorCode::kNotFound, "{}: run --stage pairs for every shard first",
        found.empty() ? "no pairs are there"
                      : fmt::format("pairs of {} shards of {} are there", found.begin()->second.size(),
                                    std::stoll(found.begin()->first)));
  FileWriter out(path);
  std::vector<uint64_t> parent(static_cast<size_t>(table.documents()));
  std::iota(parent.begin(), parent.end(), 0);
  for (const std::string& name : whole->second) {
    const MappedFile file(folder_.path(name));
    const std::span<const uint64_t> pairs(reinterpret_cast<const uint64_t*>(file.bytes().data()),
                                          file.bytes().size() / 8);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      check(std::max(pairs[i], pairs[i + 1]) < parent.size(), ErrorCode::kCorrupt,
            "{}: names document {} of {}: remove it and run its stage again", file.path(),
            std::max(pairs[i], pairs[i + 1]), parent.size());
      const uint64_t a = find_first(parent, pairs[i]), b = find_first(parent, pairs[i + 1]);
      parent[std::max(a, b)] = std::min(a, b);  // the first one stays
    }
  }
  for (uint64_t document = 0; document < parent.size(); ++document) {
    uint64_t first = find_first(parent, document);
    if (first != document && (table.at(first, kTextLow) != table.at(document, kTextLow) ||
                              table.at(first, kTextHigh) != table.at(document, kTextHigh)))
      first |= kNearDuplicate;
    out.write(&first, sizeof first);
  }
  out.commit();
}

}  // namespace octet
