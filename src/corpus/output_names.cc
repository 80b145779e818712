// See lines.h.
#include <filesystem>
#include <set>

#include "corpus/lines.h"

namespace octet {

std::vector<std::string> output_names(const std::vector<CorpusFile>& files) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const CorpusFile& file : files) {
    std::string stem = std::filesystem::path(file.path).filename().string();
    const auto strip = [&](std::initializer_list<std::string_view> endings) {
      for (const std::string_view ending : endings)
        if (stem.size() > ending.size() && stem.ends_with(ending)) return stem.resize(stem.size() - ending.size());
    };
    strip({".gz", ".zst"});
    strip({".jsonl", ".ndjson", ".json", ".txt"});
    std::string name = stem + ".jsonl";
    for (int number = 2; !taken.insert(name).second; ++number) name = fmt::format("{}-{}.jsonl", stem, number);
    names.push_back(name);
  }
  return names;
}

}  // namespace octet
